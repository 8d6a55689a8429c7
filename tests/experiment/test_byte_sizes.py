"""Sizes as people write them."""

import pytest

from fedmef.errors import UserError
from fedmef.experiment.byte_sizes import parse_bytes
from fedmef.experiment.settings import Experiment, make_experiment


@pytest.mark.parametrize(
    ("written", "meant"),
    [("96MB", 96_000_000), ("64 MiB", 67_108_864), ("1.5gb", 1_500_000_000), (" 8kB ", 8000), (5, 5)],
)
def test_units_are_decimal_unless_they_have_an_i(written: object, meant: int) -> None:
    assert parse_bytes(written) == meant


@pytest.mark.parametrize("written", ["96", "0MB", "-1MB", "abc", "", "MB", "1e3MB", "nanMB", 0, -5])
def test_what_is_no_size_is_refused_by_the_fields_name(written: object) -> None:
    with pytest.raises(UserError, match="device_memory"):
        make_experiment({"device_memory": written})


def test_a_limit_survives_its_configuration_file() -> None:
    import tomllib

    text = make_experiment({"device_memory": "96MB"}).to_toml()
    assert "device_memory = 96000000\n" in text
    assert make_experiment(tomllib.loads(text)).device_memory == 96_000_000
    assert Experiment().device_memory is None

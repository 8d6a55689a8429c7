"""What a device needs, as published or measured, and the cases of the frontier."""

from pathlib import Path

import pytest

from fedmef.errors import UserError
from fedmef.studies.paper.frontier import DEVICE, METHODS, STUDY, DeviceCost
from tests.small import small, write_run


def test_a_published_measurement_is_taken_and_a_damaged_one_is_named(tmp_path: Path) -> None:
    run = write_run(tmp_path / "run", small(), [0.5])
    (run.path / DEVICE).write_text('{"backend": "native", "process": 40000000, "milliseconds": 0.5}\n')
    assert DeviceCost.of(run) == DeviceCost("native", 40_000_000, 0.5)
    for text in ("{", '{"backend": "native"}', "3"):
        (run.path / DEVICE).write_text(text)
        with pytest.raises(UserError, match=r"device\.json is damaged"):
            DeviceCost.of(run)


def test_every_method_is_there_at_three_widths_and_with_a_smaller_batch_and_rate() -> None:
    cases = {case.name: case.settings for case in STUDY.cases("desk")}
    assert len(cases) == 4 * len(METHODS)
    usual, smaller = cases["fedmef-width16-batch64"], cases["fedmef-width16-batch16"]
    assert (usual["learning_rate"], smaller["learning_rate"]) == (1.0, 0.25)

import pickle
from pathlib import Path

import numpy as np
import pytest

from fedmef.data.pickled_arrays import read_pickled_arrays
from fedmef.errors import UserError

# As Python 2 wrote CIFAR-10: str keys, numpy.core, and a dtype whose flags are numbers.
PYTHON_2 = (
    b"\x80\x02}U\x04datacnumpy.core.multiarray\n_reconstruct\ncnumpy\nndarray\nK\x00\x85U\x01b\x87R"
    b"(K\x01K\x02K\x03\x86cnumpy\ndtype\nU\x02u1K\x00K\x01\x87R(K\x03U\x01|NNNJ\xff\xff\xff\xffJ\xff\xff\xff\xff"
    b"K\x00tb\x89U\x06abcdeftbs."
)


class Hostile:
    def __reduce__(self) -> tuple[object, tuple[str]]:
        return print, ("it ran",)


def test_a_pickle_of_python_2_is_read(tmp_path: Path) -> None:
    (tmp_path / "batch").write_bytes(PYTHON_2)
    content = read_pickled_arrays(tmp_path / "batch", "delete it")
    np.testing.assert_array_equal(content[b"data"], np.array([[97, 98, 99], [100, 101, 102]]))


@pytest.mark.parametrize("protocol", [3, 4])
@pytest.mark.parametrize("order", ["C", "F"])
def test_a_pickle_of_python_3_is_read(tmp_path: Path, protocol: int, order: str) -> None:
    array = np.arange(6, dtype=np.uint8).reshape(2, 3)
    array = np.asfortranarray(array) if order == "F" else array
    (tmp_path / "batch").write_bytes(pickle.dumps({"data": array, "labels": [1, 2]}, protocol=protocol))
    content = read_pickled_arrays(tmp_path / "batch", "delete it")
    np.testing.assert_array_equal(content[b"data"], array)
    assert content[b"labels"] == [1, 2]


def test_a_pickle_that_would_run_code_is_refused_and_does_not(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "batch").write_bytes(pickle.dumps({b"data": Hostile()}))
    with pytest.raises(
        UserError, match=r"batch is damaged or not a data file \(it asks for builtins.print\)"
    ):
        read_pickled_arrays(tmp_path / "batch", "delete it")
    assert capsys.readouterr().out == ""


@pytest.mark.parametrize(
    "content",
    [
        b"",
        PYTHON_2[:-20],
        b"\xff\xfe nonsense",
        pickle.dumps([1, 2]),
        pickle.dumps({"data": np.zeros(3)}, protocol=4),
    ],
    ids=["empty", "truncated", "junk", "a list", "floats"],
)
def test_a_damaged_pickle_is_named_with_the_remedy(tmp_path: Path, content: bytes) -> None:
    file = tmp_path / "batch"
    file.write_bytes(content)
    with pytest.raises(UserError) as caught:
        read_pickled_arrays(file, "delete the folder")
    assert str(caught.value).startswith(f"{file} is damaged")
    assert str(caught.value).endswith(": delete the folder")

from pathlib import Path

import pytest

from fedmef.federation.engines.scratch import Scratch


def test_a_scratch_folder_goes_with_its_process_and_others_stay(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    abandoned = tmp_path / "fedmef-abandoned"
    (abandoned / "data").mkdir(parents=True)
    (abandoned / "lock").touch()
    (tmp_path / "fedmef-of-somebody-else").mkdir()
    one = Scratch()
    assert not abandoned.exists()
    other = Scratch()
    assert one.folder.is_dir()  # its owner lives
    for scratch in (one, other):
        scratch.remove()
    assert [path.name for path in tmp_path.iterdir()] == ["fedmef-of-somebody-else"]

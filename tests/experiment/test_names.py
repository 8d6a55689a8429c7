import gc
import sys
from pathlib import Path

import pytest

from fedmef.errors import UserError
from fedmef.experiment.names import load_object, load_part


@pytest.fixture(autouse=True)
def standing_in_a_folder_of_modules(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "plugin_good.py").write_text("class Box:\n    value = 5\n")
    (tmp_path / "plugin_broken.py").write_text("1 / 0\n")
    (tmp_path / "plugin_needy.py").write_text("import plugin_absent_library\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))


def test_an_object_of_the_current_folder_is_found() -> None:
    assert load_object("model", "plugin_good:Box.value") == 5


def test_an_installed_object_is_found() -> None:
    assert load_object("model", "pathlib:Path") is Path


@pytest.mark.parametrize("path", ["nocolon", ":name", "module:", ""])
def test_a_path_of_another_form_is_refused(path: str) -> None:
    with pytest.raises(UserError, match=rf"model '{path}' is not of the form 'package.module:name'"):
        load_object("model", path)


@pytest.mark.parametrize(
    ("path", "message"),
    [
        ("plugin_nowhere:f", "there is no module 'plugin_nowhere'"),
        ("plugin_needy:f", "there is no module 'plugin_absent_library'"),
        ("plugin_broken:f", "importing 'plugin_broken' raised ZeroDivisionError: division by zero"),
        ("plugin_good:Bag", "module 'plugin_good' has no 'Bag'"),
        ("..relative:f", "importing '..relative' raised"),
    ],
)
def test_what_cannot_be_loaded_is_explained(path: str, message: str) -> None:
    with pytest.raises(UserError, match=message):
        load_object("method", path)


@pytest.mark.parametrize("collecting", [True, False])
def test_a_part_is_imported_and_garbage_is_collected_as_before(collecting: bool) -> None:
    before = gc.isenabled()
    try:
        (gc.enable if collecting else gc.disable)()
        assert load_part("pathlib", "Path") is Path
        assert gc.isenabled() is collecting
        with pytest.raises(ModuleNotFoundError):
            load_part("plugin_nowhere", "f")
        assert gc.isenabled() is collecting
    finally:
        (gc.enable if before else gc.disable)()

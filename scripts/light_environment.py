"""An environment as on a device, without PyTorch: links to packages that this environment has, no download.

    python scripts/light_environment.py DIR

It has what a device needs (Flower without Ray, NumPy, pydantic, with all that they need) and
fedmef from where it is imported here. Nothing else can be imported there, as after
`pip install '.[flower-device]'` on a device.
"""

import sys
import venv
from collections.abc import Iterable
from importlib.metadata import Distribution, distribution
from pathlib import Path

from packaging.requirements import Requirement

import fedmef

DEVICE = ("numpy", "pydantic", "flwr")


def make_light_environment(folder: Path) -> Path:
    """Write the environment into a new folder; returns where its commands are."""
    venv.create(folder, symlinks=True)
    commands, packages = folder / "bin", next(folder.glob("lib/python*/site-packages"))
    for installed in with_dependencies(DEVICE):
        for part in {file.parts[0] for file in installed.files or []} - {"..", "__pycache__"}:
            link = packages / part
            if not link.exists():  # two may share a folder
                link.symlink_to(Path(str(installed.locate_file(part))))
    (packages / "fedmef").symlink_to(Path(fedmef.__file__).parent)
    for entry in distribution("flwr").entry_points.select(group="console_scripts"):
        command = commands / entry.name
        command.write_text(
            f"#!{commands / 'python'}\nimport sys\nfrom {entry.module} import {entry.attr}\n"
            f"sys.exit({entry.attr}())\n"
        )
        command.chmod(0o755)
    return commands


def with_dependencies(names: Iterable[str]) -> Iterable[Distribution]:
    """These packages and what they require, each once or more."""
    seen: set[str] = set()
    todo = [Requirement(name) for name in names]
    while todo:
        wanted = todo.pop()
        if str(wanted) in seen:
            continue
        seen.add(str(wanted))
        found = distribution(wanted.name)
        yield found
        for needed in map(Requirement, found.requires or []):
            extras = wanted.extras or {""}
            if needed.marker is None or any(needed.marker.evaluate({"extra": extra}) for extra in extras):
                todo.append(needed)


if __name__ == "__main__":
    print(make_light_environment(Path(sys.argv[1]).absolute()))

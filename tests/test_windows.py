"""What Windows lacks is not needed to import fedmef: there are no `fcntl` and `resource`, among others."""

import subprocess
import sys

PROGRAM = """
import sys
for missing in ("fcntl", "resource", "pwd", "grp", "termios"):
    sys.modules[missing] = None  # importing it raises ImportError
import importlib, pkgutil
import fedmef
for name in fedmef.__all__:
    getattr(fedmef, name)
import fedmef.cli.app, fedmef.cli
for module in pkgutil.iter_modules(fedmef.cli.__path__):
    importlib.import_module(f"fedmef.cli.{module.name}")
for name in ("inline", "processes", "scratch", "worker"):
    importlib.import_module(f"fedmef.federation.engines.{name}")
import fedmef.device.__main__
from fedmef.federation.engines.scratch import Scratch
Scratch().remove()
"""


def test_everything_is_imported_without_what_windows_lacks() -> None:
    ended = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True, check=False)
    assert ended.returncode == 0, ended.stderr[-2000:]

"""fedmef for 64-bit ARM: its wheel built here, installed into a folder, and run by qemu."""

import fcntl
import os
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[2]
TOOLS = ("aarch64-linux-gnu-g++", "apt-get")
EMULATORS = ("qemu-aarch64-static", "qemu-aarch64")
# What Debian 12 takes, newest first: pip asks which systems a folder is for, and does not add the older ones.
PLATFORMS = [f"manylinux_2_{minor}_aarch64" for minor in range(36, 16, -1)] + ["manylinux2014_aarch64"]


@dataclass(frozen=True)
class Arm:
    """An installation, and what starts its Python."""

    wheel: Path
    command: tuple[str, ...]

    def run(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        """Python with these arguments; fails if it does."""
        done = subprocess.run(
            [*self.command, *arguments], capture_output=True, text=True, check=False, cwd=ROOT
        )
        assert done.returncode == 0, f"{done.stdout[-2000:]}{done.stderr[-2000:]}"
        return done


def missing() -> str:
    """What there must be, and is not; "" when all is there."""
    if sys.version_info[:2] != (3, 11):
        return "the wheel for ARM is one for Python 3.11"
    if missing_tools := [name for name in TOOLS if shutil.which(name) is None]:
        return f"there is no {missing_tools[0]}: apt install g++-aarch64-linux-gnu"
    return "" if any(map(shutil.which, EMULATORS)) else "there is no qemu: apt install qemu-user-static"


def install(folder: Path) -> Arm:
    """Build the wheel, and install it with what it needs and what its tests need."""
    build, root = ROOT / "build", ROOT / "build" / "arm64"
    build.mkdir(exist_ok=True)
    with (build / "arm64.lock").open("w") as lock:  # two workers of xdist would build in the same place
        fcntl.flock(lock, fcntl.LOCK_EX)
        environment = {**os.environ, "PYTHON": sys.executable, "FEDMEF_ARM64_ROOT": str(root)}
        subprocess.run([ROOT / "scripts" / "wheels.sh", folder, "arm64"], check=True, env=environment)
    (wheel,) = folder.glob("*.whl")
    site = folder / "site"
    for_arm = ["--only-binary=:all:", "--python-version=3.11", *(f"--platform={name}" for name in PLATFORMS)]
    pip = [sys.executable, "-m", "pip", "install", "--quiet", "-c", str(ROOT / "constraints.txt")]
    subprocess.run([*pip, "--target", site, *for_arm, wheel, "pytest", "hypothesis"], check=True)
    inside = ("env", "-u", "FEDMEF_INSTRUCTIONS", "-u", "FEDMEF_EMULATOR", f"PYTHONPATH={site}")
    python = str(root / "usr" / "bin" / "python3.11")
    command = (next(filter(shutil.which, EMULATORS)), "-L", str(root), python)
    return Arm(wheel, (*inside, "PYTHONDONTWRITEBYTECODE=1", *command))

"""A fleet with churn ends in the bits of one that nobody disturbed and that lost the same updates."""

import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("fedmef.native._kernels", reason="only light workers can be told by their command")


@pytest.mark.slow
def test_a_fleet_with_churn_ends_in_the_bits_of_one_that_lost_the_same_updates(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "tests.federation.churn", str(tmp_path)]
    command += ["--minutes", "0.8", "--rounds", "25", "--server-kills", "2"]
    ended = subprocess.run(
        command, cwd=Path(__file__).parents[2], capture_output=True, text=True, timeout=600, check=False
    )
    assert ended.returncode == 0, ended.stdout + ended.stderr

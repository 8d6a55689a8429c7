"""Copy finished runs to results/ without models and device reports: what was run and measured, in few bytes.

    python scripts/publish_results.py runs/reproduce-table1-desk results/desk/table1

`fedmef report results/desk/table1` and `fedmef reproduce table1 --finished` read them like other runs; only
the two studies that look into models cannot.
"""

import argparse
import shutil
from pathlib import Path

from fedmef.experiment.files import to_toml
from fedmef.experiment.settings import MACHINE_FIELDS, Experiment
from fedmef.runs.directory import CONFIG, SUMMARY, read_finished
from fedmef.runs.metrics import METRICS


def publish(run: Path, folder: Path) -> None:
    """Copy one run."""
    finished = read_finished(run)  # checked first: a damaged run raises
    folder.mkdir(parents=True, exist_ok=True)
    for name in (METRICS, SUMMARY):
        shutil.copyfile(run / name, folder / name)
    # Without the paths and engines of this machine, which change no bit.
    experiment = Experiment(**finished.experiment.model_dump(exclude=set(MACHINE_FIELDS)))
    (folder / CONFIG).write_text(to_toml(experiment))


def main() -> None:
    """Copy every finished run of a directory."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("runs", type=Path, help="a directory of runs")
    parser.add_argument("out", type=Path, help="where they go")
    arguments = parser.parse_args()
    finished = sorted(file.parent for file in arguments.runs.glob(f"*/{SUMMARY}"))
    if not finished:
        parser.error(f"there is no finished run in {arguments.runs}")
    for run in finished:
        publish(run, arguments.out / run.name)
    print(f"{len(finished)} runs in {arguments.out}")


if __name__ == "__main__":
    main()

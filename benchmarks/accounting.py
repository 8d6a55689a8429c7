"""What the accounting itself costs, as a share of a run's time: the bar is 2 %.

Accounting is what a run does only to know and to check its costs: counting active weights in the masks,
decoding and checking updates, writing each round's line with its bytes, the summary. Evaluation and
checkpoints are not.

    python benchmarks/accounting.py
"""

import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import fedmef
from fedmef.experiment.settings import Experiment
from fedmef.federation.update_checks import UpdateChecks
from fedmef.runs.directory import Run
from fedmef.runs.records import Round, Summary
from fedmef.sparsity.model import Model

CASES = {
    "digits, small CNN": Experiment(rounds=6, engine="inline"),
    "32x32, ResNet18 width 16": Experiment(
        dataset="synthetic",
        synthetic_train=640,
        synthetic_test=100,
        model="resnet18",
        width=16,
        devices=4,
        devices_per_round=2,
        local_epochs=1,
        rounds=6,
        batch_size=32,
        engine="inline",
    ),
}
ACCOUNTING: tuple[tuple[Any, str], ...] = (
    (Round, "of"),
    (Summary, "of"),
    (Model, "active_counts"),
    (UpdateChecks, "accept"),
    (Run, "log"),
)


class Stopwatch:
    """Seconds by what is called from now on; what a call calls itself is a part of it."""

    def __init__(self) -> None:
        self.spent: dict[str, float] = {}
        self._running = False
        for owner, name in ACCOUNTING:
            setattr(owner, name, self._timed(getattr(owner, name), f"{owner.__name__}.{name}"))

    def _timed(self, function: Callable[..., Any], name: str) -> Callable[..., Any]:
        def wrapper(*arguments: Any, **options: Any) -> Any:
            if self._running:
                return function(*arguments, **options)
            self._running = True
            started = time.perf_counter()
            try:
                return function(*arguments, **options)
            finally:
                self.spent[name] = self.spent.get(name, 0.0) + time.perf_counter() - started
                self._running = False

        return wrapper


def main() -> None:
    watch = Stopwatch()
    for case, experiment in CASES.items():
        watch.spent.clear()
        with tempfile.TemporaryDirectory() as folder:
            started = time.perf_counter()
            fedmef.run(experiment, Path(folder) / "run")
            total = time.perf_counter() - started
        parts = ", ".join(f"{name} {seconds * 1000:.0f} ms" for name, seconds in watch.spent.items())
        print(f"{case:28}{sum(watch.spent.values()) / total:>8.2%} of {total:.1f} s ({parts})", flush=True)


if __name__ == "__main__":
    main()

"""Contestants that take turns in one process, so that whatever else the machine does hits all of them.

One thread is measured by its CPU time, which other processes change little; several by wall time, which only
means something on a quiet machine.
"""

import argparse
import json
import os
import statistics
import sys
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, TypedDict

Contestant = Callable[[], float]  # one turn: the seconds that count

SPARSITIES = [0.9, 0.95]
TURN = 0.002  # seconds that a turn should last: shorter work is repeated
MOST_REPEATS = 20
PILOTS = 3  # turns that choose between two ways of doing the same
PAUSE = 0.004  # seconds in which threads that wait for work go to sleep


@dataclass(frozen=True, kw_only=True)
class Row:
    """A ratio and what it is of.

    Attributes:
        of: the pass, or nothing for a whole step.
        ratio: the median time of PyTorch's dense computation over our median.
        low, high: quartiles of that ratio, turn by turn.
        dense_seconds, our_seconds: the medians.
    """

    network: str
    width: int
    layer: str | None = None
    of: str | None = None
    batch: int
    threads: int
    sparsity: float
    ratio: float
    low: float
    high: float
    dense_seconds: float
    our_seconds: float

    def as_json(self) -> dict[str, Any]:
        """Without what does not apply. In Python `pass` is no name for a field."""
        table = {"pass" if name == "of" else name: value for name, value in asdict(self).items()}
        return {name: value for name, value in table.items() if value is not None}


def clock_of(threads: int) -> Callable[[], float]:
    """What tells the seconds of work on this many threads."""
    return time.thread_time if threads == 1 else time.perf_counter


def clocked(work: Callable[[], object], threads: int) -> Contestant:
    """Work as a contestant."""
    clock = clock_of(threads)

    def turn() -> float:
        begin = clock()
        work()
        return clock() - begin

    return turn


def take_turns(contestants: Mapping[str, Contestant], rounds: int, threads: int) -> dict[str, list[float]]:
    """Seconds of each contestant, round by round, after turns that do not count."""
    repeats = {name: _repeats(contestant) for name, contestant in contestants.items()}
    seconds: dict[str, list[float]] = {name: [] for name in contestants}
    for _ in range(rounds):
        for name, contestant in contestants.items():
            if threads > 1:
                time.sleep(PAUSE)
            seconds[name].append(statistics.fmean(contestant() for _ in range(repeats[name])))
    return seconds


def _repeats(contestant: Contestant) -> int:
    first = contestant()  # prepares much that later turns find
    if first > 100 * TURN:
        return 1
    return max(1, min(MOST_REPEATS, round(TURN / max(contestant(), 1e-9))))


def faster(candidates: Mapping[str, Contestant], threads: int) -> Contestant:
    """The one whose best of a few turns is the shortest."""
    seconds = take_turns(candidates, PILOTS, threads)
    return candidates[min(seconds, key=lambda name: min(seconds[name]))]


class Ratio(TypedDict):
    """The numbers of a `Row`."""

    ratio: float
    low: float
    high: float
    dense_seconds: float
    our_seconds: float


def compare(dense: Sequence[float], ours: Sequence[float]) -> Ratio:
    """Seconds of the same rounds."""
    pairs = [theirs / mine for theirs, mine in zip(dense, ours, strict=True)]
    low, _, high = statistics.quantiles(pairs, n=4, method="inclusive")
    theirs, mine = statistics.median(dense), statistics.median(ours)
    return {
        "ratio": theirs / mine,
        "low": low,
        "high": high,
        "dense_seconds": theirs,
        "our_seconds": mine,
    }


def parse(parser: argparse.ArgumentParser, rounds: int) -> argparse.Namespace:
    """The arguments, with those that all such benchmarks have."""
    parser.add_argument("--sparsity", type=float, nargs="+", default=SPARSITIES, metavar="SHARE")
    parser.add_argument("--rounds", type=int, default=rounds, help=f"turns of each ({rounds}; at least 2)")
    parser.add_argument("--json", action="store_true", help="one JSON object instead of a table")
    arguments = parser.parse_args()
    if arguments.rounds < 2:
        parser.error("--rounds must be at least 2")
    if any(not 0 < sparsity < 1 for sparsity in arguments.sparsity):
        parser.error("--sparsity must be above 0 and below 1")
    return arguments


def show(rows: Iterable[Row], as_json: bool, threads: int) -> None:
    """As one JSON object, or as a table that grows."""
    tell_load(threads)
    if as_json:
        print(json.dumps({"rows": [row.as_json() for row in rows]}))
    else:
        print(
            f"{'network':22} {'layer':23} {'pass':22} {'batch':>5} {'threads':>7} {'sparse':>6} "
            f"{'dense ms':>9} {'ours ms':>8} {'ratio':>6}  quartiles"
        )
        for row in rows:
            print(_line(row), flush=True)
    tell_load(threads)


def _line(row: Row) -> str:
    return (
        f"{f'{row.network} w{row.width}':22} {row.layer or 'all':23} {row.of or 'step':22} {row.batch:5} "
        f"{row.threads:7} {row.sparsity:6.0%} {1e3 * row.dense_seconds:9.2f} {1e3 * row.our_seconds:8.2f} "
        f"{row.ratio:5.2f}x  {row.low:.2f} to {row.high:.2f}"
    )


def tell_load(threads: int) -> None:
    """How far to trust what is measured, to people."""
    load, cores = os.getloadavg()[0], os.cpu_count() or 1
    if threads == 1:
        trust = "CPU time of one thread: others take cache and bandwidth, not time"
    elif load + threads > cores + 0.5:
        trust = f"wall time of {threads} threads on a busy machine: do not trust it"
    else:
        trust = "wall time on a quiet machine"
    print(f"load average {load:.1f}, {cores} cores; {trust}", file=sys.stderr, flush=True)

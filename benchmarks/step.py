"""A whole training step: our native backend against PyTorch's dense network with BatchNorm.

A step is forward, loss, backward and plain SGD. Ours is FedMef's network (NSConv; weights and activations of
the same sparsity) and begins at pixels. PyTorch's is the dense network of the same width, eager, on images
that are normalised already, contiguous or channels last, whichever is faster. Both take turns in one process.

How to read it: `ratio` is PyTorch's median over ours, with the quartiles of the ratio turn by turn. The rows
that `--only` picks by their names or parts of them: width64, width16, width64-batch1, width16-batch1,
width64-threads2, width16-threads2, mobilenet_v2, and FedTiny's network, which keeps BatchNorm and all
activations: batchnorm-width64, batchnorm-width16. `--shares` prints where the time of a step goes instead.

    python benchmarks/step.py [--only width16] [--rounds 7] [--shares] [--json]
"""

import argparse
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

sys.path.insert(0, str(Path(__file__).parents[1]))  # before opacus's package of the same name

from benchmarks._interleaved import Row, clocked, compare, parse, show, take_turns, tell_load

if TYPE_CHECKING:
    from benchmarks._steps import Case


def measure(cases: "list[Case]", sparsities: list[float], rounds: int) -> Iterator[Row]:
    from benchmarks._steps import Ours, dense_step  # noqa: PLC0415  (after --help)

    for case in cases:
        contestants = {"dense": dense_step(case)}
        for sparsity in sparsities:
            contestants[str(sparsity)] = clocked(Ours.of(case, sparsity).step, case.threads)
        seconds = take_turns(contestants, rounds, case.threads)
        for sparsity in sparsities:
            yield Row(
                network=case.network + ("_batchnorm" if case.method == "fedtiny" else ""),
                width=case.width,
                batch=case.batch,
                threads=case.threads,
                sparsity=sparsity,
                **compare(seconds["dense"], seconds[str(sparsity)]),
            )


def print_shares(cases: "list[Case]", sparsities: list[float], steps: int) -> None:
    from benchmarks._steps import Ours, dense_parts  # noqa: PLC0415  (after --help)

    for case in cases:
        parts = {"PyTorch, dense": dense_parts(case, steps)}
        for sparsity in sparsities:
            parts[f"ours, {sparsity:.0%}"] = Ours.of(case, sparsity).parts(steps)
        for name, seconds in parts.items():
            total = sum(seconds.values())
            print(f"\n{case.name}, {name}: {1e3 * total / steps:.1f} ms a step")
            for part, time in sorted(seconds.items(), key=lambda item: -item[1]):
                print(f"  {part:30} {time / total:6.1%} {1e3 * time / steps:9.2f} ms", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--only", nargs="+", metavar="PART", help="names of rows, or parts of them")
    parser.add_argument("--shares", action="store_true", help="where the time of a step goes, instead")
    arguments = parse(parser, rounds=7)
    from benchmarks._steps import CASES  # noqa: PLC0415  (after --help)

    cases = list(CASES)
    if arguments.only:
        names = {case.name for case in CASES}
        parts = [part for part in arguments.only if part not in names]
        cases = [
            case for case in CASES if case.name in arguments.only or any(part in case.name for part in parts)
        ]
    if not cases:
        parser.error(f"--only: the rows are {', '.join(case.name for case in CASES)}")
    threads = max(case.threads for case in cases)
    if arguments.shares:
        tell_load(threads)
        print_shares(cases, arguments.sparsity, arguments.rounds)
    else:
        show(measure(cases, arguments.sparsity, arguments.rounds), arguments.json, threads)


if __name__ == "__main__":
    main()

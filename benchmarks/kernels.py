"""One layer at a time: our sparse convolutions against PyTorch's dense ones.

Every convolution of a network as FedMef trains it, each geometry once: forward, the gradient for its input,
and the gradient for its weights from the exact input and from one of which a tenth is kept. A layer that
stays dense in the network (the stem, depthwise ones) is dense here too: sparsity 0. PyTorch computes the same
with a dense weight, contiguous or channels last, whichever is faster for that layer and pass.

How to read it: `ratio` is PyTorch's median over ours, with the quartiles of the ratio turn by turn. A name
such as `64>128@32 3x3 s2` is 64 channels in, 128 out, an input of 32x32, stride 2; `dw` is depthwise.

    python benchmarks/kernels.py [--network mobilenet_v2] [--width 64] [--batch 64] [--threads 1] [--json]
"""

import argparse
import sys
from collections.abc import Iterator
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))  # before opacus's package of the same name

from benchmarks._interleaved import Row, compare, parse, show, take_turns


def measure(arguments: argparse.Namespace) -> Iterator[Row]:
    from benchmarks._layers import dense_passes, geometries, native_passes  # noqa: PLC0415  (after --help)

    layers = geometries(arguments.network, arguments.width)
    batch, threads = arguments.batch, arguments.threads
    for geometry in layers:
        if arguments.only and not any(part in geometry.name for part in arguments.only):
            continue
        sparsities = [0.0] if geometry.dense else arguments.sparsity
        dense = dense_passes(geometry, batch, threads)
        ours = {sparsity: native_passes(geometry, sparsity, batch, threads) for sparsity in sparsities}
        for name in geometry.passes:
            contestants = {"dense": dense[name]} | {str(s): ours[s][name] for s in sparsities}
            seconds = take_turns(contestants, arguments.rounds, threads)
            for sparsity in sparsities:
                yield Row(
                    network=arguments.network,
                    width=layers[0].output[0],
                    layer=geometry.name,
                    of=name,
                    batch=batch,
                    threads=threads,
                    sparsity=sparsity,
                    **compare(seconds["dense"], seconds[str(sparsity)]),
                )


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--network", choices=["resnet18", "mobilenet_v2"], default="resnet18")
    parser.add_argument("--width", type=int, help="channels of the first stage (default: as published)")
    parser.add_argument("--batch", type=int, default=64)
    parser.add_argument("--threads", type=int, default=1, help="of both; more than 1 counts wall time")
    parser.add_argument("--only", nargs="+", metavar="PART", help="layers whose name has one of these parts")
    arguments = parse(parser, rounds=9)
    show(measure(arguments), arguments.json, arguments.threads)


if __name__ == "__main__":
    main()

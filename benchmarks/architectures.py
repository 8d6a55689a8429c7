"""Whether NSConv keeps the signal in networks of all shapes: at the start, and after 60 steps on one batch.

Each network of `tests/nn/zoo.py` at 90 and 95 % sparsity, with pruned caches and the default learning rate.
`features` is the root mean square of the classifier's input at the start, `gradients` the smallest and the
largest norm of a layer's gradient over the median, `loss` that after 60 steps.

    python -m benchmarks.architectures
"""

from tests.nn.zoo import ARCHITECTURES, constant_loss, look


def main() -> None:
    """Print a row for each network and sparsity."""
    print(f"{'network':36}{'sparsity':>9}{'features':>10}{'gradients':>22}{'loss':>8}")
    for name in ARCHITECTURES:
        for sparsity in (0.9, 0.95):
            seen = look(name, sparsity)
            gradients = f"{seen.smallest_gradient:.1e} to {seen.largest_gradient:.1e}"
            print(f"{name:36}{sparsity:>9}{seen.features:>10.2f}{gradients:>22}{seen.loss:>8.3f}")
    print(f"a constant guess: {constant_loss():.3f}")


if __name__ == "__main__":
    main()

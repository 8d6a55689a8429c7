from pathlib import Path

from tests.report.reading import groups_in
from tests.small import small, write_run


def test_the_estimate_of_a_run_is_that_of_its_own_rounds(tmp_path: Path) -> None:
    write_run(tmp_path / "a", small("fedavg", batch_size=8), [0.5, 0.5])
    settings = {"adjust_every": 1, "adjust_until": 2, "batch_size": 8}
    write_run(tmp_path / "b", small("fedtiny", **settings), [0.5, 0.5], {1: (0.5, 0.5)})
    write_run(tmp_path / "c", small("feddst", **settings), [0.5, 0.5], {1: (0.5, 0.5)})
    dense, feddst, fedtiny = (group.estimated for group in groups_in(tmp_path))
    assert dense
    assert feddst
    assert fedtiny
    # small_cnn of width 4: 36 weights of the stem, 288 and 1,152 that are sparse, 56 of BatchNorm, 170.
    assert dense.exchange == 2 * (36 + 288 + 1152 + 56 + 170) * 4
    assert feddst.exchange == 2 * (36 + 56 + 170) * 4 + 2 * (288 + 28 * 32 + 1152 + 115 * 32) / 8
    # One round of two adjusts, with ζ = 0.2: 5 of 28 and 23 of 115 gradients, and their positions.
    assert fedtiny.exchange - feddst.exchange == (5 * (32 + 9) + 23 * (32 + 11)) / 8 / 2
    # 8 images of 64 pixels, of which the last layer sees 16; forwards, and twice that backwards.
    assert dense.step_flops == 3 * 8 * (36 * 64 + 288 * 64 + 1152 * 16 + 160)
    assert fedtiny.step_flops == 3 * 8 * (36 * 64 + 28 * 64 + 115 * 16 + 160)


def test_a_method_without_a_formula_has_no_estimate(tmp_path: Path) -> None:
    write_run(tmp_path / "a", small("gone:Method"), [0.5])
    assert groups_in(tmp_path)[0].estimated is None

"""Tables on a terminal: what fits its width, without a broken word."""

import io
from collections.abc import Sequence
from dataclasses import replace

import pytest
from rich.console import Console
from rich.table import Table

from fedmef.cli.tables import comparison_table, fitted_table, study_table, table_notes
from fedmef.studies.paper.base import Number
from fedmef.studies.paper.base import Row as StudyRow
from fedmef.studies.rows import Row

ROW = Row(
    method="fedmef",
    sparsity=0.9,
    seeds=(0, 1),
    failed_seeds=(),
    accuracy=0.5,
    accuracy_std=0.1,
    best_accuracy=0.6,
    adjustment_drop=0.05,
    bytes_per_round=400.0,
    seconds=10.0,
    parameters=7,
    parameters_if_dense=70,
    variant="",
    warning="",
)


def lines_of(table: Table, width: int) -> list[str]:
    screen = io.StringIO()
    Console(width=width, file=screen, color_system=None).print(table)
    lines = screen.getvalue().splitlines()
    assert all(len(line) <= width for line in lines)
    return [line.rstrip() for line in lines]


def printed(rows: Sequence[Row], width: int) -> list[str]:
    return lines_of(comparison_table(rows, width), width)


def test_a_row_with_failed_seeds_says_how_many_there_are() -> None:
    failed = replace(
        ROW,
        method="fedtiny",
        seeds=(),
        failed_seeds=(0, 1),
        accuracy=None,
        accuracy_std=None,
        best_accuracy=None,
        adjustment_drop=None,
        bytes_per_round=None,
        seconds=None,
        parameters=None,
    )
    half = replace(ROW, seeds=(0,), failed_seeds=(1,), accuracy_std=None)
    lines = printed([failed, half], width=80)
    assert lines[1].split()[:3] == ["fedtiny", "0.9", "failed"]
    assert lines[1].endswith("0/2")
    assert lines[2].endswith("1/2")


def test_the_widest_row_of_ours_fits_80_columns_and_a_long_name_folds() -> None:
    widest = replace(
        ROW,
        method="fedmef_restart",
        sparsity=0.975,
        accuracy=0.545,
        accuracy_std=0.6293,
        best_accuracy=0.645,
        adjustment_drop=0.8,
        bytes_per_round=999_900_075.0,
        seconds=123_456.7,
        parameters=25_557_032,
    )
    long = replace(widest, method="my.own.package:MethodWithALongName")
    head, restart, *folded = printed([widest, long], width=80)
    assert head.split()[-1] == "seeds"
    assert restart.split() == [
        *("fedmef_restart", "0.975", "54.50", "±", "62.93", "64.50", "80.00"),
        *("999.9", "MB", "34.3", "h", "25.56", "M", "2"),
    ]
    assert "".join(line.split()[0] for line in folded) == "my.own.package:MethodWithALongName"


def test_a_narrow_table_gives_up_columns_before_names() -> None:
    rows = [
        replace(ROW, method="fedavg_sap", sparsity=0.0),
        replace(ROW, method="fedmef_restart", adjustment_drop=-0.1),
    ]
    for width in (60, 66, 70, 80):
        names = [line.split()[0] for line in printed(rows, width) if line.startswith("fed")]
        assert names == ["fedavg_sap", "fedmef_restart"]
    narrow = " ".join(printed(rows, 60)).split()
    assert "best" not in narrow
    assert {"accuracy", "seeds", "columns"} <= {*narrow}  # and a line that says how many are left out
    assert "params" in printed(rows, 80)[0]
    assert table_notes(rows) == ["a drop below zero is a gain"]


def test_a_column_has_one_unit() -> None:
    rows = [replace(ROW, bytes_per_round=5_000_000.0), replace(ROW, bytes_per_round=100.0)]
    _, first, second = printed(rows, 80)
    assert "5.0 MB" in first.replace("\N{NO-BREAK SPACE}", " ")
    assert "0.0001 MB" in second.replace("\N{NO-BREAK SPACE}", " ")


def test_a_gain_too_small_to_print_is_no_minus_zero() -> None:
    (_, line) = printed([replace(ROW, adjustment_drop=-0.00001, accuracy_std=None)], width=80)
    assert line.split()[4] == "0.00"


def test_a_dense_method_says_so_and_a_variant_is_in_its_name() -> None:
    _, dense, variant = printed(
        [replace(ROW, method="fedavg", sparsity=0.0), replace(ROW, variant="alpha 0.1")], 120
    )
    assert dense.split()[:2] == ["fedavg", "dense"]
    assert variant.replace("\N{NO-BREAK SPACE}", " ").startswith("fedmef, alpha 0.1")


def test_what_is_wrong_with_a_row_is_said_below_the_table() -> None:
    rows = [ROW, replace(ROW, method="fedtiny", warning="its training loss was not finite")]
    assert table_notes(rows) == ["fedtiny 0.9: its training loss was not finite"]


def test_the_papers_numbers_are_shown_as_printed_and_ours_as_they_say() -> None:
    rows: list[StudyRow] = [
        {
            "accuracy % (ours)": Number(81.0),
            "accuracy % (paper)": 81.2,
            "memory MB (paper, estimated)": 84.94,
            "exchange bytes (ours)": Number(12_345, "bytes"),
        },
        {
            "accuracy % (ours)": Number(80.5),
            "accuracy % (paper)": 72.0,
            "memory MB (paper, estimated)": 101.2,
            "exchange bytes (ours)": None,
        },
    ]
    shown = [list(map(str, column.cells)) for column in study_table(rows).columns]
    unbroken = [[str(cell).replace("\N{NO-BREAK SPACE}", " ") for cell in cells] for cells in shown]
    assert unbroken == [["81.00", "80.50"], ["81.2", "72.0"], ["84.94", "101.20"], ["12.3 kB", "-"]]


def test_a_setting_is_shown_as_it_is_given() -> None:
    rows: list[StudyRow] = [{"sparsity": sparsity, "epochs": 10} for sparsity in (0.0, 0.95, 0.9)]
    shown = [list(map(str, column.cells)) for column in study_table(rows).columns]
    assert shown == [["0", "0.95", "0.9"], ["10", "10", "10"]]


def test_a_column_that_is_empty_everywhere_is_left_out() -> None:
    rows: list[StudyRow] = [{"method": "fedavg", "± (ours)": None}, {"method": "fedmef", "± (ours)": None}]
    assert [column.header for column in study_table(rows).columns] == ["method"]


def test_a_narrow_table_breaks_no_word_but_leaves_columns_out() -> None:
    rows: list[StudyRow] = [
        {"method": "fedmef_no_bae", "accuracy % (ours)": 81.0, "exchange bytes (ours, measured)": 12_345}
    ]
    numbers = set()
    for width in range(16, 80):
        table = study_table(rows, width)
        words = " ".join(lines_of(table, width)).split()
        numbers.add(len(table.columns))
        for column in table.columns:
            assert {*str(column.header).split(), *" ".join(map(str, column.cells)).split()} <= {*words}
        assert ("left" in words) == (len(table.columns) < 3)
    assert numbers == {1, 2, 3}


@pytest.mark.parametrize(
    ("width", "shown"), [(20, ["name", "one", "two"]), (12, ["name", "two"]), (7, ["name"])]
)
def test_the_first_dispensable_column_goes_first_and_the_others_stay(width: int, shown: list[str]) -> None:
    columns = {"name": ["fedmef"], "one": ["12345"], "two": ["12345"]}
    table = fitted_table(columns, width, dispensable=["one", "two"], text=["name"])
    assert [column.header for column in table.columns] == shown

"""How the page of results writes its numbers."""

from pathlib import Path

from scripts.results_page import BLOCK, each, markdown, spread
from tests.small import small, write_run


def test_a_table_is_markdown() -> None:
    assert markdown([["method", "accuracy %"], ["`fedmef`", "51.0"]]) == (
        "| method | accuracy % |\n| --- | --- |\n| `fedmef` | 51.0 |\n"
    )


def test_accuracies_have_a_spread_where_there_are_several_and_a_dash_where_one_is_missing(
    tmp_path: Path,
) -> None:
    first = write_run(tmp_path / "0", small(seed=0), [0.5])
    third = write_run(tmp_path / "2", small(seed=2), [0.52])
    assert spread([first]) == "50.0 (seed 0)"
    assert spread([first, third]) == "51.0 ± 1.4"
    assert each([first, third]) == "50.0, –, 52.0"


def test_a_table_ends_where_the_page_says_so() -> None:
    text = "<!-- table: main desk -->\n| old |\n<!-- end -->\nbetween\n<!-- table: a b -->\n<!-- end -->\n"
    assert [found.group(2) for found in BLOCK.finditer(text)] == ["main", "a"]
    assert "between" in BLOCK.sub("", text)

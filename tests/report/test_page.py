import re
from pathlib import Path

import pytest

from fedmef.runs.directory import Run
from tests.report.reading import page_of
from tests.runs.written import NETWORK
from tests.small import small, write_run

pytestmark = pytest.mark.usefixtures("no_figures")

ATTACK = '<script>alert("x")</script>'


def test_notes_are_only_about_what_is_there(tmp_path: Path) -> None:
    write_run(tmp_path / "a", small(), [0.5])
    page = page_of(tmp_path)
    assert "Ratios are" not in page
    assert "sample standard deviation over seeds." not in page
    assert "1 seed each." in page
    write_run(tmp_path / "b", small("fedavg", learning_rate=0.25), [0.05])
    page = page_of(tmp_path)
    assert "Ratios are to fedavg" in page
    assert "Rows also differ in: learning_rate" in page
    assert "fedavg: at chance level" in page


def test_nothing_that_comes_from_a_run_becomes_markup(tmp_path: Path) -> None:
    write_run(tmp_path / "a<b>&", small(ATTACK), [0.5, 0.5], {1: (0.5, 0.25)}, {ATTACK: (1, 4)})
    Run.create(tmp_path / "<i>half", small(), NETWORK)
    page = page_of(tmp_path)
    assert "<script" not in page
    assert "&lt;script&gt;alert(" in page
    assert "<b>" not in page
    assert "<i>" not in page


def test_the_page_needs_nothing_from_elsewhere(tmp_path: Path) -> None:
    write_run(tmp_path / "a", small(), [0.5])
    page = page_of(tmp_path)
    sources = re.findall(r"(?:src|srcset|href)=\"(.{5})", page)
    assert set(sources) == {"data:"}
    assert "@import" not in page
    assert "url(" not in page


def test_each_run_says_how_to_repeat_it(tmp_path: Path) -> None:
    run = write_run(tmp_path / "my run", small(seed=7), [0.5])
    page = page_of(tmp_path)
    assert f"fedmef run &#x27;{run.path}/config.toml&#x27;" in page
    assert "seed = 7" in page
    assert "torch 2.13.0" in page


def test_what_was_left_out_is_said(tmp_path: Path) -> None:
    write_run(tmp_path / "a", small(), [0.5])
    Run.create(tmp_path / "half", small(), NETWORK)
    assert f"Left out: {tmp_path / 'half'}" in page_of(tmp_path)


def test_no_control_character_comes_from_a_run_into_the_page(tmp_path: Path) -> None:
    write_run(tmp_path / "a\x1b[31m\u202eb", small("\x1b]0;x\x07"), [0.5, 0.5])
    page = page_of(tmp_path)
    assert not {letter for letter in page if not letter.isprintable()} - {"\n"}
    assert "\\x1b[31m\\u202eb" in page

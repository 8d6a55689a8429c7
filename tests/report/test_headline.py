import re
from pathlib import Path

import pytest

from fedmef.report.reading import read_runs
from fedmef.report.writing import write_report
from tests.report.reading import page_of
from tests.small import small, write_run

pytestmark = pytest.mark.usefixtures("no_figures")


def test_the_table_has_a_row_for_each_method_with_ratios_to_fedavg(tmp_path: Path) -> None:
    write_run(tmp_path / "a", small("fedavg"), [0.5, 0.75])
    write_run(tmp_path / "b", small("fedmef", seed=0), [0.5, 0.5], {1: (0.5, 0.25)})
    write_run(tmp_path / "c", small("fedmef", seed=1), [0.5, 0.5], {1: (0.5, 0.5)})
    rows = re.findall(r"<tr><th scope=\"row\".*?</tr>", page_of(tmp_path))
    cells = [[re.sub("<.*?>", "", cell) for cell in re.findall("<t[hd].*?</t[hd]>", row)] for row in rows]
    assert cells[0][:4] == ["fedavg", "dense", "1", "75.00"]
    assert cells[0][5:] == ["1×", "400", "1×", "–", "10.0 s"]
    assert cells[1][:4] == ["fedmef", "0.9", "2", "50.00 ± 0.00"]
    assert cells[1][6:] == ["400", "1×", "12.50", "10.0 s"]


def test_rows_follow_the_order_in_which_runs_are_named(tmp_path: Path) -> None:
    runs = [write_run(tmp_path / name, small(name), [0.5]).path for name in ("fedmef", "fedavg")]
    page = write_report(read_runs(runs), tmp_path / "report").read_text(encoding="utf-8")
    assert page.index('title="fedmef"') < page.index('title="fedavg"')


def test_nobody_wins_a_tie(tmp_path: Path) -> None:
    for name in ("fl_pqsu", "fedtiny", "fedavg"):
        write_run(tmp_path / name, small(name), [0.5])
    both = page_of(tmp_path)
    assert "<strong>fl_pqsu 0.9</strong> and <strong>fedtiny 0.9</strong> need the least memory" in both
    for name in ("fl_pqsu", "fedtiny"):
        write_run(tmp_path / "two" / name, small(name), [0.5])
    assert "the least memory" not in page_of(tmp_path / "two")


def test_the_message_is_about_the_whole_process(tmp_path: Path) -> None:
    for name in ("fedmef", "fedavg"):
        write_run(tmp_path / name, small(name), [0.5])
    page = page_of(tmp_path)
    (lead,) = re.findall(r"<strong>([^<]*B)</strong> for the whole process, measured, ", page)
    assert lead == "40.0 MB"
    (row,) = re.findall(r'<th [^>]* title="fedmef">.*?</tr>', page.partition('id="cost-table"')[2])
    assert lead == re.findall("<td>(.*?)</td>", row)[2]
    assert "device process, MB</th>" in page
    assert "“fedmef cost” measures the same" in page

import re
from pathlib import Path

from fedmef.report.reading import read_runs
from fedmef.report.writing import write_report
from fedmef.runs.directory import Run
from tests.report.finished_runs import experiment, write_run

ATTACK = '<script>alert("x")</script>'


def page_of(folder: Path) -> str:
    return write_report(read_runs([folder]), folder / "report").read_text(encoding="utf-8")


def test_the_table_has_a_row_for_each_method_with_ratios_to_fedavg(tmp_path: Path) -> None:
    write_run(tmp_path / "a", experiment("fedavg"), [0.5, 0.75])
    write_run(tmp_path / "b", experiment("fedmef", seed=0), [0.5, 0.5], {1: (0.5, 0.25)})
    write_run(tmp_path / "c", experiment("fedmef", seed=1), [0.5, 0.5], {1: (0.5, 0.5)})
    rows = re.findall(r"<tr><th scope=\"row\".*?</tr>", page_of(tmp_path))
    cells = [[re.sub("<.*?>", "", cell) for cell in re.findall("<t[hd].*?</t[hd]>", row)] for row in rows]
    assert cells[0][:4] == ["fedavg", "dense", "1", "75.00"]
    assert cells[0][5:] == ["1×", "400", "1×", "–", "10.0 s"]
    assert cells[1][:4] == ["fedmef", "0.9", "2", "50.00 ± 0.00"]
    assert cells[1][6:] == ["400", "1×", "12.50", "10.0 s"]


def test_rows_follow_the_order_in_which_runs_are_named(tmp_path: Path) -> None:
    runs = [write_run(tmp_path / name, experiment(name), [0.5]).path for name in ("fedmef", "fedavg")]
    page = write_report(read_runs(runs), tmp_path / "report").read_text(encoding="utf-8")
    assert page.index('title="fedmef"') < page.index('title="fedavg"')


def test_notes_are_only_about_what_is_there(tmp_path: Path) -> None:
    write_run(tmp_path / "a", experiment(), [0.5])
    page = page_of(tmp_path)
    assert "Ratios are" not in page
    assert "sample standard deviation over seeds." not in page
    assert "1 seed each." in page
    write_run(tmp_path / "b", experiment("fedavg", learning_rate=0.25), [0.05])
    page = page_of(tmp_path)
    assert "Ratios are to fedavg" in page
    assert "Rows also differ in: learning_rate" in page
    assert "fedavg: at chance level" in page


def test_nobody_wins_a_tie(tmp_path: Path) -> None:
    for name in ("fl_pqsu", "fedtiny", "fedavg"):
        write_run(tmp_path / name, experiment(name), [0.5])
    both = page_of(tmp_path)
    assert "<strong>fl_pqsu 0.9</strong> and <strong>fedtiny 0.9</strong> need the least memory" in both
    for name in ("fl_pqsu", "fedtiny"):
        write_run(tmp_path / "two" / name, experiment(name), [0.5])
    assert "the least memory" not in page_of(tmp_path / "two")


def test_the_message_is_about_the_peak(tmp_path: Path) -> None:
    for name in ("fedmef", "fedavg"):
        write_run(tmp_path / name, experiment(name), [0.5])
    page = page_of(tmp_path)
    (lead,) = re.findall(r"<strong>([^<]*B)</strong> at the peak of a step, measured, ", page)
    (row,) = re.findall(r'<th [^>]* title="fedmef">.*?</tr>', page.partition('id="cost-table"')[2])
    assert lead == re.findall("<td>(.*?)</td>", row)[3]
    assert "peak of a step, kB</th>" in page
    assert "“fedmef cost” measures the same" in page


def test_nothing_that_comes_from_a_run_becomes_markup(tmp_path: Path) -> None:
    write_run(tmp_path / "a<b>&", experiment(ATTACK), [0.5, 0.5], {1: (0.5, 0.25)}, {ATTACK: (1, 4)})
    Run.create(tmp_path / "<i>half", experiment())
    page = page_of(tmp_path)
    assert "<script" not in page
    assert "&lt;script&gt;alert(" in page
    assert "<b>" not in page
    assert "<i>" not in page


def test_the_page_needs_nothing_from_elsewhere(tmp_path: Path) -> None:
    write_run(tmp_path / "a", experiment(), [0.5])
    page = page_of(tmp_path)
    sources = re.findall(r"(?:src|srcset|href)=\"(.{5})", page)
    assert set(sources) == {"data:"}
    assert "@import" not in page
    assert "url(" not in page


def test_each_run_says_how_to_repeat_it(tmp_path: Path) -> None:
    run = write_run(tmp_path / "my run", experiment(seed=7), [0.5])
    page = page_of(tmp_path)
    assert f"fedmef run &#x27;{run.path}/config.toml&#x27;" in page
    assert "seed = 7" in page
    assert "torch 2.13.0" in page


def test_what_was_left_out_is_said(tmp_path: Path) -> None:
    write_run(tmp_path / "a", experiment(), [0.5])
    Run.create(tmp_path / "half", experiment())
    assert f"Left out: {tmp_path / 'half'}" in page_of(tmp_path)


def test_figures_of_an_earlier_report_go(tmp_path: Path) -> None:
    adjusting = write_run(tmp_path / "a", experiment("fedmef"), [0.5, 0.5], {1: (0.5, 0.25)})
    dense = write_run(tmp_path / "b", experiment("fedavg"), [0.5, 0.5])
    out = tmp_path / "report"
    write_report(read_runs([adjusting.path, dense.path]), out)
    assert (out / "figures" / "adjustments.pdf").is_file()
    write_report(read_runs([dense.path]), out)
    assert not (out / "figures" / "adjustments.pdf").exists()
    assert sorted(file.name for file in (out / "figures").iterdir()) == [
        f"{name}.{ending}" for name in ("accuracy", "costs", "memory", "traffic") for ending in ("pdf", "png")
    ]


def test_estimates_stand_beside_measurements(tmp_path: Path) -> None:
    write_run(tmp_path / "a", experiment("fedavg"), [0.5, 0.75])
    write_run(tmp_path / "b", experiment("gone:Method"), [0.5, 0.75])
    table = page_of(tmp_path).partition('<table id="cost-table">')[2].partition("</table>")[0]
    heads = re.findall(r'<th scope="col">([\w ]+)</th>', table)
    assert heads == ["estimated", "kept by a step", "peak of a step", "estimated", "measured", "estimated"]
    rows = [re.findall(r"<td>(.*?)</td>", row) for row in re.findall(r"<tr><th scope=\"row\".*?</tr>", table)]
    assert rows[0][0] == "dense"
    assert rows[0][1].endswith("kB")
    assert rows[0][2].endswith("kB")
    assert rows[0][3].endswith("kB")
    assert rows[0][5] == "200 B"  # 400 bytes in a round, of two devices
    assert rows[1] == ["0.9", "–", "–", "–", "–", "200 B", "–"]

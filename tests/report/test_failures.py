from pathlib import Path
from typing import Any

from fedmef.report.reading import read_runs
from fedmef.report.writing import write_report
from fedmef.runs.directory import Run
from tests.report.finished_runs import experiment, write_run


def page_with(folder: Path, lost: list[dict[str, Any]], rejected: list[dict[str, Any]]) -> str:
    run = write_run(folder / "run", experiment(), [0.5])
    (record,), summary = run.metrics, run.summary
    again = Run.create(run.path, run.experiment, overwrite=True)
    again.log({**record, "lost": lost, "rejected": rejected})
    again.finish({}, {**summary, "epsilon": 3.25})
    return write_report(read_runs([folder / "run"]), folder / "report").read_text(encoding="utf-8")


def failed(device: int, reason: str) -> dict[str, Any]:
    return {"device": device, "attempt": 0, "reason": reason}


def test_devices_that_failed_are_named_with_their_reason_and_nothing_becomes_markup(tmp_path: Path) -> None:
    page = page_with(tmp_path, [failed(3, "dropped out")], [failed(4, "<script>x</script>")])
    assert "1 updates were lost and 1 rejected" in page
    assert '<td>1</td><td>3</td><td class="text">lost: dropped out</td>' in page  # the first round
    assert "rejected: &lt;script&gt;x&lt;/script&gt;" in page


def test_a_long_list_is_cut(tmp_path: Path) -> None:
    page = page_with(tmp_path, [failed(device, "dropped out") for device in range(100)], [])
    assert page.count("lost: dropped out") == 40
    assert "The first 40 of them." in page


def test_without_failures_there_is_no_table_and_privacy_is_said(tmp_path: Path) -> None:
    page = page_with(tmp_path, [], [])
    assert "Devices that failed" not in page
    assert "Private for a device: ε = 3.25 at δ = 1e-05" in page

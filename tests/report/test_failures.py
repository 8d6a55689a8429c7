from collections.abc import Sequence
from pathlib import Path

import pytest

from fedmef.report.reading import read_runs
from fedmef.report.writing import write_report
from fedmef.runs.records import Failed
from tests.runs.written import a_round
from tests.small import small, write_run

pytestmark = pytest.mark.usefixtures("no_figures")


def page_with(
    folder: Path, lost: Sequence[Failed], rejected: Sequence[Failed], doubted: Sequence[Failed] = ()
) -> str:
    run = write_run(folder / "run", small(), [0.5], epsilon=3.25)
    record = a_round(0, lost=list(lost), rejected=list(rejected), doubted=list(doubted))
    (run.path / "metrics.jsonl").write_text(record.model_dump_json())
    return write_report(read_runs([run.path]), folder / "report").read_text(encoding="utf-8")


def failed(device: int, reason: str) -> Failed:
    return Failed(device=device, reason=reason)


def test_devices_that_failed_are_named_with_their_reason_and_nothing_becomes_markup(tmp_path: Path) -> None:
    page = page_with(tmp_path, [failed(3, "dropped out")], [failed(4, "<script>x</script>")])
    assert "1 updates were lost and 1 rejected" in page
    assert '<td>1</td><td>3</td><td class="text">lost: dropped out</td>' in page  # the first round
    assert "rejected: &lt;script&gt;x&lt;/script&gt;" in page


def test_devices_that_were_not_believed_in_everything_are_named_too(tmp_path: Path) -> None:
    page = page_with(tmp_path, [], [], [failed(5, "says that it has 500 samples, and counts for 10")])
    assert "doubted: says that it has 500 samples, and counts for 10" in page


def test_a_long_list_is_cut(tmp_path: Path) -> None:
    page = page_with(tmp_path, [failed(device, "dropped out") for device in range(100)], [])
    assert page.count("lost: dropped out") == 40
    assert "The first 40 of them." in page


def test_without_failures_there_is_no_table_and_privacy_is_said(tmp_path: Path) -> None:
    page = page_with(tmp_path, [], [])
    assert "Devices that failed" not in page
    assert "Private for a device: ε = 3.25 at δ = 1e-05" in page

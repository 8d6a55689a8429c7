import re
from pathlib import Path

from fedmef.report.devices import devices_table
from fedmef.report.reading import read_runs
from fedmef.runs.records import DeviceReport
from tests.small import small, write_run


def test_each_device_has_a_row_over_all_its_rounds(tmp_path: Path) -> None:
    reports = [
        DeviceReport(device=2, seconds=1.5, peak_memory=300_000_000, bytes_down=50, bytes_up=20),
        DeviceReport(device=0, seconds=0.5, peak_memory=200_000_000, bytes_down=50, bytes_up=10),
    ]
    write_run(tmp_path / "run", small(), [0.5, 0.75], device_reports=reports)
    (run,) = read_runs([tmp_path / "run"]).runs
    rows = re.findall(r"<tr class=\"device\">.*?</tr>", devices_table(run))
    assert [re.findall(r">([^<]+)<", row) for row in rows] == [
        ["0", "2", "0.50", "200.0 MB", "100 B", "20 B"],
        ["2", "2", "1.50", "300.0 MB", "100 B", "40 B"],
    ]


def test_a_run_whose_devices_did_not_report_has_no_table(tmp_path: Path) -> None:
    write_run(tmp_path / "run", small(), [0.5])
    (run,) = read_runs([tmp_path / "run"]).runs
    assert devices_table(run) == ""

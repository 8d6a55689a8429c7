from pathlib import Path

from fedmef.report.reading import read_runs
from fedmef.report.writing import write_report
from tests.small import small, write_run


def test_figures_of_an_earlier_report_go(tmp_path: Path) -> None:
    adjusting = write_run(tmp_path / "a", small("fedmef"), [0.5, 0.5], {1: (0.5, 0.25)})
    dense = write_run(tmp_path / "b", small("fedavg"), [0.5, 0.5])
    out = tmp_path / "report"
    write_report(read_runs([adjusting.path, dense.path]), out)
    assert (out / "figures" / "adjustments.pdf").is_file()
    write_report(read_runs([dense.path]), out)
    assert not (out / "figures" / "adjustments.pdf").exists()
    assert sorted(file.name for file in (out / "figures").iterdir()) == [
        f"{name}.{ending}" for name in ("accuracy", "costs", "memory", "traffic") for ending in ("pdf", "png")
    ]

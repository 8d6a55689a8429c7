import re
from pathlib import Path

from tests.report.reading import page_of
from tests.small import small, write_run


def test_estimates_stand_next_to_measurements(tmp_path: Path) -> None:
    write_run(tmp_path / "a", small("fedavg"), [0.5, 0.75])
    write_run(tmp_path / "b", small("gone:Method"), [0.5, 0.75])
    table = page_of(tmp_path).partition('<table id="cost-table">')[2].partition("</table>")[0]
    heads = re.findall(r'<th scope="col">([\w ,]+)</th>', table)
    memory = ["estimated", "whole process", "on", "PyTorch, dense", "kept by a step", "peak of a step"]
    assert heads == [*memory, "estimated", "measured", "estimated"]
    rows = [re.findall(r"<td>(.*?)</td>", row) for row in re.findall(r"<tr><th scope=\"row\".*?</tr>", table)]
    assert rows[0][0] == "dense"
    assert rows[0][1].endswith("kB")
    assert rows[0][2:5] == ["300.0 MB", "torch", "300.0 MB"]
    assert rows[0][5].endswith("kB")
    assert rows[0][6].endswith("kB")
    assert rows[0][8] == "200 B"  # 400 bytes in a round, of two devices
    assert rows[1] == ["0.9", "–", "–", "–", "300.0 MB", "–", "–", "–", "200 B", "–"]

"""What the devices of a run measured of themselves: a row for each."""

from collections.abc import Sequence
from itertools import groupby, islice

from fedmef.costs.units import human_bytes
from fedmef.runs.directory import Run
from fedmef.runs.records import DeviceReport

COLUMNS = ("device", "rounds", "seconds a round", "peak resident", "bytes down", "bytes up")
MOST_ROWS = 1000


def devices_table(run: Run) -> str:
    """Mean seconds, highest peak of memory and all bytes; nothing for a run whose devices did not say."""
    reports = sorted((report for record in run.rounds for report in record.device_reports), key=_device)
    if not reports:
        return ""
    heads = "".join(f'<th scope="col">{name}</th>' for name in COLUMNS)
    devices = groupby(reports, key=_device)
    rows = "".join(_row(device, list(rounds)) for device, rounds in islice(devices, MOST_ROWS))
    return f"""<p>What each device measured of itself. Peak resident is all that its process had in memory at
once, interpreter and libraries included; in a simulation a process stands for several devices.</p>
<div class="scroll" tabindex="0" role="region" aria-label="Devices">
<table class="devices"><thead><tr>{heads}</tr></thead><tbody>{rows}</tbody></table></div>"""


def _row(device: int, rounds: Sequence[DeviceReport]) -> str:
    cells = (
        str(len(rounds)),
        f"{sum(report.seconds for report in rounds) / len(rounds):.2f}",
        human_bytes(max(report.peak_memory for report in rounds)),
        human_bytes(sum(report.bytes_down for report in rounds)),
        human_bytes(sum(report.bytes_up for report in rounds)),
    )
    numbers = "".join(f"<td>{cell}</td>" for cell in cells)
    return f'<tr class="device"><th scope="row">{device}</th>{numbers}</tr>'


def _device(report: DeviceReport) -> int:
    return report.device

"""Numbers as a reader wants them: no −0.00, ratios with three digits."""

from fedmef.costs.device_process import ProcessCost
from fedmef.studies.rows import Row


def signless_zero(value: float) -> str:
    """Two digits after the point; `0.00` and not `-0.00`, and a real minus sign."""
    return f"{value:z.2f}".replace("-", "−")


def accuracy(row: Row) -> str:
    """`97.12 ± 0.30`, in percent."""
    if row.accuracy is None:
        return "–"
    spread = "" if row.accuracy_std is None else f" ± {100 * row.accuracy_std:.2f}"
    return f"{100 * row.accuracy:.2f}{spread}"


def ratio(value: float | None, one: float | None) -> str:
    """`0.066×`, of what counts as one."""
    return "–" if value is None or not one else f"{value / one:.3g}×"


def process_memory(process: ProcessCost | str) -> int | None:
    """Bytes of a device's whole process, when it could be measured."""
    return process.process if isinstance(process, ProcessCost) else None

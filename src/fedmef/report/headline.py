"""The top of a report: the table of methods, and its message in a sentence."""

from collections.abc import Sequence
from html import escape

from fedmef.comparison_summary import human_time
from fedmef.progress import human_bytes
from fedmef.report.groups import Group
from fedmef.report.numbers import accuracy, ratio, signless_zero, total_memory

COLUMNS = (
    ("method", "text", ""),
    ("sparsity", "", "share of weights pruned in sparse layers"),
    ("seeds", "", "finished runs"),
    ("accuracy, %", "", "final test accuracy: mean ± sample standard deviation over seeds"),
    ("memory", "", "of a device, measured: parameters, masks, gradients and kept activations"),
    ("ratio", "", "of the memory, to fedavg’s"),
    ("bytes a round", "", "up and down, all devices of a round"),
    ("ratio", "", "of the bytes, to fedavg’s"),
    ("drop", "", "percentage points of test accuracy lost at an adjustment, mean"),
    ("time", "", "of a run, evaluation included"),
)


def headline_table(groups: Sequence[Group]) -> str:
    """A row for each group."""
    heads = "".join(
        f'<th scope="col" class="{kind}" title="{escape(about)}">{escape(name)}</th>'
        for name, kind, about in COLUMNS
    )
    rows = "".join(_row(group, _dense(groups)) for group in groups)
    return (
        '<div class="scroll" tabindex="0" role="region" aria-labelledby="headline">'
        f'<table id="headline-table"><thead><tr>{heads}</tr></thead><tbody>{rows}</tbody></table></div>'
    )


def headline_sentence(groups: Sequence[Group]) -> str:
    """Who needs the least memory, how much that is, and at which accuracy."""
    measured = [group for group in groups if total_memory(group.memory) is not None]
    if len(measured) < 2:
        return ""
    least = min(measured, key=lambda group: total_memory(group.memory) or 0)
    dense = _dense(groups)
    size = human_bytes(total_memory(least.memory) or 0)
    against = beside = ""
    if dense is not None and dense is not least and total_memory(dense.memory):
        share = ratio(total_memory(least.memory), total_memory(dense.memory))
        against = f", {share} of fedavg’s"
        beside = f"; fedavg’s is {accuracy(dense.row)} %"
    return (
        f"<p class='lead'><strong>{escape(least.name)}</strong> needs the least memory on a device: "
        f"<strong>{size}</strong> measured{against}. "
        f"Its test accuracy is {accuracy(least.row)} %{beside}.</p>"
    )


def _dense(groups: Sequence[Group]) -> Group | None:
    return next((group for group in groups if group.row.method == "fedavg"), None)


def _row(group: Group, dense: Group | None) -> str:
    row, memory = group.row, total_memory(group.memory)
    cells = (
        f"{row.sparsity:g}" if row.sparsity else "dense",
        str(len(row.seeds)),
        accuracy(row),
        "–" if memory is None else human_bytes(memory),
        ratio(memory, total_memory(dense.memory) if dense else None),
        "–" if row.bytes_per_round is None else human_bytes(row.bytes_per_round),
        ratio(row.bytes_per_round, dense.row.bytes_per_round if dense else None),
        "–" if row.adjustment_drop is None else signless_zero(100 * row.adjustment_drop),
        "–" if row.seconds is None else human_time(row.seconds),
    )
    numbers = "".join(f"<td>{escape(cell)}</td>" for cell in cells)
    method = escape(row.method)
    return f'<tr><th scope="row" class="text" title="{method}">{method}</th>{numbers}</tr>'

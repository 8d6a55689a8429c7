"""The top of a report: the table of methods, and its message in a sentence."""

import math
from collections.abc import Sequence

from fedmef.costs.units import byte_unit, human_bytes, human_time, in_unit
from fedmef.report.groups import Group
from fedmef.report.numbers import accuracy, process_memory, ratio, signless_zero
from fedmef.report.text import escape

TIE = 0.03  # what a process has resident varies by a MB from one start to the next


def headline_table(groups: Sequence[Group]) -> str:
    """A row for each group; a column has one unit."""
    memory_size, memory_unit = byte_unit(max(process_memory(group.process) or 0 for group in groups))
    traffic_size, traffic_unit = byte_unit(max(group.row.bytes_per_round or 0 for group in groups))
    columns = (
        ("method", "text", ""),
        ("sparsity", "", "share of weights pruned in sparse layers"),
        ("seeds", "", "finished runs"),
        ("accuracy, %", "", "final test accuracy: mean ± sample standard deviation over seeds"),
        (
            f"device process, {memory_unit}",
            "",
            "most resident memory of a device’s whole process, measured: libraries and all",
        ),
        ("ratio", "", "of the process, to fedavg’s"),
        (f"{traffic_unit} a round, all devices", "", "up and down, all devices of a round together"),
        ("ratio", "", "of the bytes, to fedavg’s"),
        ("drop", "", "percentage points of test accuracy lost at an adjustment, mean; below zero it gained"),
        ("time", "", "of a run, evaluation included"),
    )
    heads = "".join(
        f'<th scope="col" class="{kind}" title="{escape(about)}">{escape(name)}</th>'
        for name, kind, about in columns
    )
    rows = "".join(_row(group, _dense(groups), memory_size, traffic_size) for group in groups)
    return (
        '<div class="scroll" tabindex="0" role="region" aria-labelledby="headline">'
        f'<table id="headline-table"><thead><tr>{heads}</tr></thead><tbody>{rows}</tbody></table></div>'
    )


def headline_sentence(groups: Sequence[Group]) -> str:
    """Who needs the least memory, how much that is, and at which accuracy."""
    memories = {group.name: size for group in groups if (size := process_memory(group.process)) is not None}
    if len(memories) < 2:
        return ""
    smallest = min(memories.values())
    least = [group for group in groups if memories.get(group.name, math.inf) <= (1 + TIE) * smallest]
    shown = human_bytes(smallest)
    dense = _dense(groups)
    if len(least) == len(memories):
        return ""
    against = dense_accuracy = ""
    if dense is not None and dense not in least and dense.name in memories:
        against = f", {ratio(smallest, memories[dense.name])} of fedavg’s"
        dense_accuracy = f"; fedavg’s is {accuracy(dense.row)} %"
    names = " and ".join(f"<strong>{escape(group.name)}</strong>" for group in least)
    accuracies = " and ".join(f"{accuracy(group.row)} %" for group in least)
    return (
        f"<p class='lead'>{names} {'needs' if len(least) == 1 else 'need'} the least memory on a device: "
        f"<strong>{shown}</strong> for the whole process, measured{against}. "
        f"{'Its' if len(least) == 1 else 'Their'} test accuracy is {accuracies}{dense_accuracy}.</p>"
    )


def _dense(groups: Sequence[Group]) -> Group | None:
    """What ratios are to: fedavg, if there is one and only one."""
    dense = [group for group in groups if group.row.method == "fedavg"]
    return dense[0] if len(dense) == 1 else None


def _row(group: Group, dense: Group | None, memory_size: float, traffic_size: float) -> str:
    row, memory = group.row, process_memory(group.process)
    cells = (
        f"{row.sparsity:g}" if row.sparsity else "dense",
        str(len(row.seeds)),
        accuracy(row),
        "–" if memory is None else in_unit(memory, memory_size),
        ratio(memory, process_memory(dense.process) if dense else None),
        "–" if row.bytes_per_round is None else in_unit(row.bytes_per_round, traffic_size),
        ratio(row.bytes_per_round, dense.row.bytes_per_round if dense else None),
        "–" if row.adjustment_drop is None else signless_zero(100 * row.adjustment_drop),
        "–" if row.seconds is None else human_time(row.seconds),
    )
    numbers = "".join(f"<td>{escape(cell)}</td>" for cell in cells)
    name = escape(row.label)
    return f'<tr><th scope="row" class="text" title="{name}">{name}</th>{numbers}</tr>'

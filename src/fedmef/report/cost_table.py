"""The table of costs: what the paper's formulas estimate next to what was measured."""

from collections.abc import Sequence
from statistics import fmean

from fedmef.costs.device_process import ProcessCost
from fedmef.costs.tensors import TensorCost
from fedmef.costs.units import human_bytes
from fedmef.report.costs import measured_exchange
from fedmef.report.groups import Group
from fedmef.report.text import escape

HEADINGS = (
    ("memory of a device", ("estimated", "whole process", "on", "PyTorch, dense")),
    ("tensors on PyTorch", ("kept by a step", "peak of a step")),
    ("exchange of one device in a round", ("estimated", "measured")),
    ("FLOPs of a step", ("estimated",)),
)


def cost_table(groups: Sequence[Group]) -> str:
    """A row for each group, and what its numbers are."""
    top = "".join(
        f'<th scope="colgroup" colspan="{len(kinds)}">{escape(name)}</th>' for name, kinds in HEADINGS
    )
    kinds = "".join(f'<th scope="col">{kind}</th>' for _, kinds in HEADINGS for kind in kinds)
    rows = "".join(map(_row, groups))
    return f"""<div class="scroll" tabindex="0" role="region" aria-labelledby="costs">
<table id="cost-table"><thead><tr><th scope="col" class="text" rowspan="2">method</th>
<th scope="col" rowspan="2">sparsity</th>{top}</tr>
<tr class="kinds">{kinds}</tr></thead><tbody>{rows}</tbody></table></div>
<ul class="notes">
<li>Estimated: by the formulas of the paper’s appendix, sparse weights as a bitmap; for methods that it has
no formula for, by the same logic. Memory is that of a round that adjusts. FLOPs are multiply-adds of an
ordinary local step.</li>
<li>Whole process, measured: the most resident memory of a device’s process over an ordinary and an adjusting
round at the run’s batch size: interpreter, libraries, messages, data and training. On: what executes the
network; native is without PyTorch. PyTorch, dense: the same for FedAvg with BatchNorm.
“fedmef cost” measures the same; it shows another number where its options are not the run’s settings.</li>
<li>Kept by a step, measured on PyTorch: parameters, masks, gradients, and the activations that the forward
pass keeps for the backward pass.</li>
<li>Peak of a step, measured on PyTorch: the most bytes of tensors alive at once while a device trains at the
run’s batch size, with its batch, a layer’s working space and what an adjustment holds.</li>
<li>Measured exchange: the messages down to a device that answered and up from it, mean over all; the
estimate is a mean over the same rounds.</li>
</ul>"""


def _row(group: Group) -> str:
    row, estimated, memory, process = group.row, group.estimated, group.memory, group.process
    cells = (
        f"{row.sparsity:g}" if row.sparsity else "dense",
        "–" if estimated is None else human_bytes(estimated.memory),
        *(
            (human_bytes(process.process), process.backend)
            if isinstance(process, ProcessCost)
            else ("–", "–")
        ),
        "–" if isinstance(group.dense, str) else human_bytes(group.dense.process),
        *(
            (human_bytes(memory.kept), human_bytes(memory.peak))
            if isinstance(memory, TensorCost)
            else ("–", "–")
        ),
        "–" if estimated is None else human_bytes(estimated.exchange),
        human_bytes(fmean(map(measured_exchange, group.runs))),
        "–" if estimated is None else f"{estimated.step_flops:.2e}".replace("e+", "e"),
    )
    numbers = "".join(f"<td>{escape(cell)}</td>" for cell in cells)
    method = escape(row.label)
    return f'<tr><th scope="row" class="text" title="{method}">{method}</th>{numbers}</tr>'

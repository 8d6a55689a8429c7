"""The page: one HTML file that needs no network and no scripts. Whatever comes from a run is escaped."""

import shlex
from base64 import b64encode
from collections.abc import Sequence
from importlib.resources import files

from fedmef.experiment.files import to_toml
from fedmef.report.cost_table import cost_table
from fedmef.report.devices import devices_table
from fedmef.report.failures import failures_section
from fedmef.report.figures import COSTS, Drawing, Kind
from fedmef.report.groups import Group
from fedmef.report.headline import headline_sentence, headline_table
from fedmef.report.reading import LeftOut
from fedmef.report.text import escape
from fedmef.runs.directory import CONFIG, Run
from fedmef.studies.rows import unnamed_differences


def report_page(groups: Sequence[Group], drawings: Sequence[Drawing], left_out: Sequence[LeftOut]) -> str:
    """The whole page."""
    experiment = groups[0].runs[0].experiment
    title = f"{experiment.dataset}, {experiment.model}"
    runs = [run for group in groups for run in group.runs]
    seeds = _seeds(groups)
    figures = "".join(
        _section(drawing.kind, _figure(drawing, seeds)) for drawing in drawings if drawing.kind != COSTS
    )
    costs = cost_table(groups)
    costs += "".join(_figure(drawing, seeds) for drawing in drawings if drawing.kind == COSTS)
    return f"""<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="color-scheme" content="light dark">
<meta http-equiv="Content-Security-Policy"
 content="default-src 'none'; img-src data:; style-src 'unsafe-inline'">
<link rel="icon" href="data:,">
<title>{escape(title)} – fedmef report</title>
<style>{files("fedmef.report").joinpath("page.css").read_text(encoding="utf-8")}</style>
</head>
<body>
<header>
<p class="kind">fedmef report</p>
<h1>{escape(title)}</h1>
<p class="facts">{_federation(runs)}</p>
</header>
<main>
<section aria-labelledby="headline">
<h2 id="headline">Results</h2>
{headline_sentence(groups)}
{headline_table(groups)}
{_notes(groups, left_out)}
</section>
{figures}{_section(COSTS, costs)}
{failures_section(runs)}
<section aria-labelledby="runs">
<h2 id="runs">Runs</h2>
<p>Each run’s configuration, the command that repeats it, and what its devices measured.</p>
{"".join(map(_run, runs))}
</section>
</main>
<footer>{_versions(runs)}</footer>
</body>
</html>
"""


def _federation(runs: Sequence[Run]) -> str:
    experiment = runs[0].experiment
    alpha = f", α = {_all('alpha', runs)}" if experiment.partition == "dirichlet" else ""
    facts = (
        f"{len(runs)} run{'s' if len(runs) > 1 else ''}",
        f"{experiment.rounds} rounds",
        f"{_all('devices_per_round', runs)} of {experiment.devices} devices in each",
        f"{experiment.partition} partition{alpha}",
        f"images {' × '.join(map(str, runs[0].summary.image_shape))}",
    )
    return escape(" · ".join(facts))


def _all(field: str, runs: Sequence[Run]) -> str:
    return " or ".join(f"{value:g}" for value in sorted({getattr(run.experiment, field) for run in runs}))


def _notes(groups: Sequence[Group], left_out: Sequence[LeftOut]) -> str:
    items = [
        f"The memory of {group.name} could not be measured: {problem}"
        for group in groups
        for problem in [next((part for part in (group.process, group.memory) if isinstance(part, str)), None)]
        if problem is not None
    ]
    items += [f"{group.name}: {group.row.warning}" for group in groups if group.row.warning]
    items += [f"Left out: {left}" for left in left_out]
    if different := unnamed_differences([group.runs[0].experiment for group in groups]):
        items.append(f"Rows also differ in: {', '.join(different)}")
    warnings = "".join(f'<li class="warning">{escape(item)}</li>' for item in items)
    plain = "".join(f"<li>{escape(note)}</li>" for note in _explanations(groups))
    return f'<ul class="notes">{warnings}{plain}</ul>'


def _explanations(groups: Sequence[Group]) -> list[str]:
    """What the columns mean, as far as these runs have something in them."""
    several = any(len(group.runs) > 1 for group in groups)
    spread = ": mean ± sample standard deviation over seeds" if several else ""
    methods = [group.row.method for group in groups]
    notes = [
        f"Accuracy is the final test accuracy{spread}. Rounds are counted as they finish, from 1; in "
        "metrics.jsonl the first is 0.",
        "Device process: the most resident memory of a device’s whole process, measured. Interpreter, "
        "libraries, messages, data, and training at the run’s batch size, what an adjustment holds included"
        + (": with prunefl, its dense sums above all." if "prunefl" in methods else "."),
        "Bytes are those of the messages that were sent."
        + (" Ratios are to fedavg: dense, with BatchNorm." if methods.count("fedavg") == 1 else ""),
        "Time is of the machine that ran it, with whatever else it had to do.",
    ]
    if any(group.row.adjustment_drop is not None for group in groups):
        notes.append(
            "Drop: percentage points of test accuracy lost at an adjustment of the masks, mean over all of "
            "them; below zero it gained."
            + (" feddst’s devices adjust themselves: it has none." if "feddst" in methods else "")
        )
    return notes


def _seeds(groups: Sequence[Group]) -> str:
    counts = sorted({len(group.runs) for group in groups})
    return f"{' or '.join(map(str, counts))} seed{'' if counts == [1] else 's'} each."


def _section(kind: Kind, content: str) -> str:
    return f"""<section aria-labelledby="{kind.name}">
<h2 id="{kind.name}">{escape(kind.title)}</h2>
{content}
</section>
"""


def _figure(drawing: Drawing, seeds: str) -> str:
    kind = drawing.kind
    caption = f"{kind.caption} {seeds}"
    return f"""<figure>
<img src="{_data(drawing.svg)}" alt="{escape(f"{kind.title}. {caption}")}">
<figcaption>{escape(caption)}</figcaption>
</figure>"""


def _data(svg: bytes) -> str:
    """An image within the page: nothing inside it can run, and its identifiers meet no others."""
    return f"data:image/svg+xml;base64,{b64encode(svg).decode()}"


def _run(run: Run) -> str:
    experiment, summary = run.experiment, run.summary
    sparsity = f", sparsity {run.sparsity:g}" if run.sparsity else ""
    title = f"{experiment.method}{sparsity}, seed {experiment.seed}"
    epsilon = summary.epsilon
    private = (
        "" if epsilon is None else f"Private for a device: ε = {epsilon:.2f} at δ = {experiment.delta:g}. "
    )
    command = f"fedmef run {shlex.quote(str(run.path / CONFIG))}"
    return f"""<details>
<summary><span>{escape(title)}</span>
<span class="result">{100 * summary.test_accuracy:.2f} %</span></summary>
<p>Repeat it: <code>{escape(command)}</code></p>
<pre tabindex="0">{escape(to_toml(experiment))}</pre>
{devices_table(run)}
<p class="facts">{private}fedmef {escape(summary.fedmef)}, torch {escape(summary.torch)}</p>
</details>
"""


def _versions(runs: Sequence[Run]) -> str:
    versions = {f"fedmef {run.summary.fedmef} and torch {run.summary.torch}" for run in runs}
    return f"<p>Trained with {escape('; '.join(sorted(versions)))}. This page needs no network.</p>"

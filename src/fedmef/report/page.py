"""The page: one HTML file that needs no network and no scripts. Whatever comes from a run is escaped."""

import shlex
from base64 import b64encode
from collections.abc import Sequence
from html import escape
from importlib.resources import files

from fedmef.report.failures import failures_section
from fedmef.report.figures import Drawing
from fedmef.report.groups import Group
from fedmef.report.headline import headline_sentence, headline_table
from fedmef.report.reading import FinishedRun, LeftOut
from fedmef.run_directory import CONFIG


def report_page(groups: Sequence[Group], drawings: Sequence[Drawing], left_out: Sequence[LeftOut]) -> str:
    """The whole page."""
    experiment = groups[0].runs[0].experiment
    title = f"{experiment.dataset}, {experiment.model}"
    runs = [run for group in groups for run in group.runs]
    figures = "".join(map(_figure, drawings))
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
{figures}
{failures_section(runs)}
<section aria-labelledby="runs">
<h2 id="runs">Runs</h2>
<p>Each run’s configuration, and the command that repeats it.</p>
{"".join(map(_run, runs))}
</section>
</main>
<footer>{_versions(runs)}</footer>
</body>
</html>
"""


def _federation(runs: Sequence[FinishedRun]) -> str:
    experiment = runs[0].experiment
    alpha = f", α = {experiment.alpha:g}" if experiment.partition == "dirichlet" else ""
    facts = (
        f"{len(runs)} run{'s' if len(runs) > 1 else ''}",
        f"{experiment.rounds} rounds",
        f"{experiment.devices_per_round} of {experiment.devices} devices in each",
        f"{experiment.partition} partition{alpha}",
        f"images {' × '.join(map(str, runs[0].summary.image_shape))}",
    )
    return escape(" · ".join(facts))


def _notes(groups: Sequence[Group], left_out: Sequence[LeftOut]) -> str:
    items = [
        f"The memory of {group.name} could not be measured: {group.memory}"
        for group in groups
        if isinstance(group.memory, str)
    ]
    items += [f"Left out: {left}" for left in left_out]
    warnings = "".join(f'<li class="warning">{escape(item)}</li>' for item in items)
    return f"""<ul class="notes">{warnings}
<li>Accuracy is the final test accuracy: mean ± sample standard deviation over seeds.</li>
<li>Memory is measured: parameters, masks, gradients and kept activations of a training step at the run’s
batch size, by PyTorch’s own allocator. A layer’s transient tensors come on top, in every method.</li>
<li>Bytes are those of the messages that were sent. Ratios are to fedavg: dense, with BatchNorm.</li>
<li>Drop: percentage points of test accuracy lost at an adjustment of the masks, mean over all of them.</li>
</ul>"""


def _figure(drawing: Drawing) -> str:
    kind = drawing.kind
    return f"""<section aria-labelledby="{kind.name}">
<h2 id="{kind.name}">{escape(kind.title)}</h2>
<figure>
<picture>
<source media="(max-width: 600px)" srcset="{_data(drawing.narrow_svg)}">
<img src="{_data(drawing.svg)}" alt="{escape(f"{kind.title}. {kind.caption}")}">
</picture>
<figcaption>{escape(kind.caption)}</figcaption>
</figure>
</section>
"""


def _data(svg: bytes) -> str:
    """An image within the page: nothing inside it can run, and its identifiers meet no others."""
    return f"data:image/svg+xml;base64,{b64encode(svg).decode()}"


def _run(run: FinishedRun) -> str:
    experiment, summary = run.experiment, run.summary
    sparsity = f", sparsity {run.sparsity:g}" if run.sparsity else ""
    title = f"{experiment.method}{sparsity}, seed {experiment.seed}"
    epsilon = summary.epsilon
    private = (
        "" if epsilon is None else f"Private for a device: ε = {epsilon:.2f} at δ = {experiment.delta:g}. "
    )
    command = f"fedmef run {shlex.quote(str(run.directory.path / CONFIG))}"
    return f"""<details>
<summary><span>{escape(title)}</span>
<span class="result">{100 * summary.test_accuracy:.2f} %</span></summary>
<p>Repeat it: <code>{escape(command)}</code></p>
<pre tabindex="0">{escape(experiment.to_toml())}</pre>
<p class="facts">{private}fedmef {escape(summary.fedmef)}, torch {escape(summary.torch)}</p>
</details>
"""


def _versions(runs: Sequence[FinishedRun]) -> str:
    versions = {f"fedmef {run.summary.fedmef} and torch {run.summary.torch}" for run in runs}
    return f"<p>Trained with {escape('; '.join(sorted(versions)))}. This page needs no network.</p>"

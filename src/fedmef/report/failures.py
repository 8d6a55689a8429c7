"""The report's table of devices that failed: in which round, and why."""

from collections import Counter
from collections.abc import Sequence

from fedmef.report.text import escape
from fedmef.runs.directory import Run

MOST_ROWS = 40


def failures_section(runs: Sequence[Run]) -> str:
    """Lost, rejected and doubted updates of all runs, the first of them one by one; nothing without any."""
    failures = [
        (run, record.number, failed.device, what, failed.reason)
        for run in runs
        for record in run.rounds
        for what, entries in (
            ("lost", record.lost),
            ("rejected", record.rejected),
            ("doubted", record.doubted),
        )
        for failed in entries
    ]
    if not failures:
        return ""
    counts = Counter(what for _, _, _, what, _ in failures)
    rows = "".join(
        f'<tr><th scope="row" class="text">{escape(run.path.name)}</th><td>{number}</td>'
        f'<td>{device}</td><td class="text">{what}: {escape(reason)}</td></tr>'
        for run, number, device, what, reason in failures[:MOST_ROWS]
    )
    shown = f"The first {MOST_ROWS} of them." if len(failures) > MOST_ROWS else "All of them."
    return f"""<section aria-labelledby="failures">
<h2 id="failures">Devices that failed</h2>
<p>{counts["lost"]} updates were lost and {counts["rejected"]} rejected; the rounds continued without them.
Of {counts["doubted"]} that were used, something that the device said was not believed. {shown}</p>
<div class="scroll" tabindex="0" role="region" aria-labelledby="failures">
<table><thead><tr><th scope="col" class="text">run</th><th scope="col">round</th><th scope="col">device</th>
<th scope="col" class="text">reason</th></tr></thead><tbody>{rows}</tbody></table></div>
</section>
"""

"""Writing a report: the page and its figures, each file complete or absent."""

from collections.abc import Sequence
from pathlib import Path

from fedmef.costs.limit import Tell
from fedmef.errors import UserError
from fedmef.report.figures import KINDS, draw_all
from fedmef.report.groups import group_runs
from fedmef.report.page import report_page
from fedmef.report.reading import FoundRuns, holds_runs
from fedmef.runs.directory import CONFIG
from fedmef.runs.place import check_place
from fedmef.wire.files import write_atomically

PAGE, FIGURES = "report.html", "figures"
MOST_REASONS = 3  # in an error


def write_report(
    found: FoundRuns, out: Path, tell: Tell = lambda words: None, *, allow_code: bool = False
) -> Path:
    """Write `report.html` and `figures/` into `out`, and return the page's path.

    With `allow_code`, networks and methods of the user's own are measured too: their code is run. Raises
    `UserError` when there is no finished run, or when runs cannot be compared.
    """
    if (out / CONFIG).exists():
        raise UserError(f"{out} is a run itself; choose another --out for the report")
    if not found.runs:
        reasons = [str(left) for left in found.left_out]
        more = f"; and {len(reasons) - MOST_REASONS} more" if len(reasons) > MOST_REASONS else ""
        raise UserError(f"there is nothing to report: {'; '.join(reasons[:MOST_REASONS])}{more}")
    check_place(out)
    groups = group_runs(found.runs, tell, allow_code=allow_code)
    tell("drawing")
    drawings = draw_all(groups)
    # A path need not be text: what UTF-8 cannot say becomes a question mark, before anything is written.
    page = report_page(groups, drawings, found.left_out).encode(errors="replace")
    content = {
        f"{drawing.kind.name}.{ending}": data
        for drawing in drawings
        for ending, data in (("png", drawing.png), ("pdf", drawing.pdf))
    }
    try:
        (out / FIGURES).mkdir(parents=True, exist_ok=True)
        for name in (f"{kind.name}.{ending}" for kind in KINDS for ending in ("png", "pdf")):
            if name in content:
                write_atomically(out / FIGURES / name, content[name])
            else:
                (out / FIGURES / name).unlink(missing_ok=True)  # of an earlier report on other runs
        write_atomically(out / PAGE, page)
    except OSError as error:
        raise UserError(f"cannot write the report into {out}: {error.strerror}") from None
    return out / PAGE


def default_place(paths: Sequence[Path]) -> Path:
    """`report/` next to the runs."""
    first = paths[0]
    return (first if holds_runs(first) else first.absolute().parent) / "report"

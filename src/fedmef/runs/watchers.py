"""Watchers: whatever wants to know how far a run is, such as a progress bar or TensorBoard."""

from typing import TYPE_CHECKING

from fedmef.runs.records import Round

if TYPE_CHECKING:
    from fedmef.runs.directory import Run


class Watcher:
    """Told of a run while it runs; overrides what it wants to know."""

    def run_begins(self, run: "Run") -> None:
        """A run starts, or resumes; `run.finished_rounds()` are those that it need not repeat."""

    def round_done(self, record: Round) -> None:
        """A round is done and written down."""

    def run_ends(self, run: "Run") -> None:
        """The run is finished."""

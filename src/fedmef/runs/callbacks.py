"""Callbacks: whatever wants to know how far a run is, or to stop it, such as a progress bar or a logger."""

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from fedmef.errors import StopRun, UserError, printable
from fedmef.runs.records import Round

if TYPE_CHECKING:
    from torch import nn

    from fedmef.runs.directory import Run

ModelNow = Callable[[], "nn.Module"]


class Callback:
    """Told of a run while it runs; overrides what it wants to know. Only `round_done` may end the run."""

    def run_begins(self, run: "Run") -> None:
        """A run starts, or resumes; `run.finished_rounds()` are those that it need not repeat."""

    def round_done(self, record: Round, model: ModelNow) -> None:
        """A round is done and written down; `model()` builds a copy of its model, as `fedmef.load` does.

        `raise fedmef.StopRun("why")` ends the run after this round. It is finished then, says why, and can be
        resumed all the same.
        """

    def run_ends(self, run: "Run") -> None:
        """The run is finished."""


AnyCallback = Callback | Callable[[Round, ModelNow], object]


class _EveryRound(Callback):
    """A function that is told of rounds only."""

    def __init__(self, function: Callable[[Round, ModelNow], object]) -> None:
        self._function = function

    def round_done(self, record: Round, model: ModelNow) -> None:
        self._function(record, model)


def as_callbacks(given: Sequence[AnyCallback]) -> list[Callback]:
    """Raises `UserError` for what is no callback."""
    callbacks: list[Callback] = []
    for one in given if isinstance(given, list | tuple) else [given]:
        if isinstance(one, type) or not (isinstance(one, Callback) or callable(one)):
            raise UserError(
                f"callbacks: {repr(one)[:80]} is no callback; give a list of functions of (record, model), "
                "or of objects of a subclass of fedmef.Callback"
            )
        callbacks.append(one if isinstance(one, Callback) else _EveryRound(one))
    return callbacks


def tell_of_round(callbacks: Sequence[Callback], record: Round, model: ModelNow) -> str:
    """Tell all of them; why one wants the run to end, or ""."""
    reasons = []
    for callback in callbacks:
        try:
            callback.round_done(record, model)
        except StopRun as stop:
            reasons.append(printable(str(stop)) or "a callback asked for it")
    return "; ".join(reasons)

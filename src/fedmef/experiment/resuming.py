"""What a resumed run may change, and what it may not."""

from collections.abc import Mapping
from typing import Any

from fedmef.errors import UserError
from fedmef.experiment.settings import MACHINE_FIELDS, Experiment, make_experiment

# Beside where and how it runs: how long it runs, and what becomes of a round that devices fail.
RESUMABLE_FIELDS = MACHINE_FIELDS | {"rounds", "min_devices", "round_attempts"}


def resumed_experiment(there: Experiment, changes: Mapping[str, Any]) -> Experiment:
    """The experiment to go on with; raises `UserError` that names every change that is not allowed.

    The schedule of adjustments stays what it was: by default it follows from the number of rounds.
    """
    given = {name: value for name, value in changes.items() if name != "adjust_until" or value is not None}
    asked = make_experiment({**there.model_dump(), **given})
    if different := changed_fields(there, asked, RESUMABLE_FIELDS):
        raise UserError(
            f"a resumed run goes on with its own experiment, but {'; '.join(different)}; leave that out, "
            f"or start another run (only {', '.join(sorted(RESUMABLE_FIELDS))} may change)"
        )
    if asked.rounds != there.rounds and there.adjust_until is None:
        asked = asked.model_copy(update={"adjust_until": there.last_adjustment})
    return asked


def changed_fields(there: Experiment, asked: Experiment, allowed: frozenset[str]) -> list[str]:
    """`sparsity = 0.9 there, 0.5 here` for every field that differs and may not."""
    old, new = there.model_dump(), asked.model_dump()
    return [
        f"{field} = {old[field]} there, {new[field]} here"
        for field in new
        if field not in allowed and old[field] != new[field]
    ]

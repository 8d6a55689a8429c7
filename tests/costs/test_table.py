"""A row of estimates next to measurements, and its names in JSON and CSV."""

from dataclasses import fields

import pytest

from fedmef.costs import table
from fedmef.costs.facts import network_facts
from fedmef.costs.step import StepCost
from fedmef.costs.table import Task, cost_rows
from fedmef.costs.traffic import MeasuredExchange
from fedmef.models.initial import plain_network
from tests.small import small

TASK = Task((1, 8, 8), 10, samples=70)
STEP, EXCHANGE = StepCost(1, 2, 3, 4, 5, 6.0), MeasuredExchange(7, 8, 9, 10)


def test_every_number_says_whether_it_was_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(table, "measure_step", lambda *_: STEP)
    monkeypatch.setattr(table, "measure_exchange", lambda *_: EXCHANGE)
    facts = network_facts(plain_network(small(), TASK.image_shape, TASK.classes))
    (row,) = cost_rows([small()], facts, TASK, measured=True)
    flat = row.flat()
    assert (flat.pop("method"), flat.pop("sparsity")) == ("fedmef", 0.9)
    assert all(name.startswith(("estimated_", "measured_")) for name in flat)
    assert all(value is not None for value in flat.values())
    assert [flat[f"measured_{field.name}"] for field in fields(StepCost)] == [1, 2, 3, 4, 5, 6.0]
    assert [flat[f"measured_exchange_{field.name}"] for field in fields(EXCHANGE)] == [7, 8, 9, 10]


def test_what_is_not_known_is_none_under_the_same_names(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(table, "measure_step", lambda *_: pytest.fail("not asked for"))
    facts = network_facts(plain_network(small(), TASK.image_shape, TASK.classes))
    known, own = cost_rows([small(), small("fedavg")], facts, TASK, measured=False)
    assert known.flat().keys() == own.flat().keys()
    assert known.flat()["measured_peak"] is None
    assert known.flat()["estimated_memory_bitmap"] > 0
    users = table.CostRow("mine:Method", 0.9, None, None, None, None)
    assert set(users.flat().values()) == {"mine:Method", 0.9, None}

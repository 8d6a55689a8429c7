"""A row of estimates next to measurements, and its names in JSON and CSV."""

from dataclasses import fields

import pytest

from fedmef.costs import table
from fedmef.costs.device_process import ProcessCost
from fedmef.costs.exchange import MeasuredExchange
from fedmef.costs.facts import network_facts
from fedmef.costs.table import Task, cost_rows
from fedmef.costs.tensors import TensorCost
from fedmef.models.initial import plain_network
from tests.small import small

TASK = Task((1, 8, 8), 10, samples=70)
EXCHANGE = MeasuredExchange(7, 8, 9, 10)
PROCESS, DENSE = ProcessCost("native", 5, 6.0, EXCHANGE), ProcessCost("torch", 50, 60.0, EXCHANGE)


@pytest.fixture
def stand_ins(monkeypatch: pytest.MonkeyPatch) -> None:
    """In place of all measurements."""
    monkeypatch.setattr(table, "measure_process", lambda *_: PROCESS)
    monkeypatch.setattr(table, "measure_torch_dense", lambda *_: DENSE)
    monkeypatch.setattr(table, "measure_tensors", lambda *_: TensorCost(1, 2, 3, 4))


@pytest.mark.usefixtures("stand_ins")
def test_every_number_says_whether_it_was_measured() -> None:
    facts = network_facts(plain_network(small(), TASK.image_shape, TASK.classes))
    (row,) = cost_rows([small(batch_size=32)], facts, TASK, measured=True, tensors=True)
    flat = row.flat()
    assert (flat.pop("method"), flat.pop("sparsity")) == ("fedmef", 0.9)
    assert all(name.startswith(("estimated_", "measured_")) for name in flat)
    assert all(value is not None for value in flat.values())
    assert [flat[f"measured_{name}"] for name in ("backend", "process", "seconds")] == ["native", 5, 6.0]
    assert flat["measured_torch_dense_process"] == 50
    assert [flat[f"measured_tensors_{field.name}"] for field in fields(TensorCost)] == [1, 2, 3, 4]
    assert [flat[f"measured_exchange_{field.name}"] for field in fields(EXCHANGE)] == [7, 8, 9, 10]


@pytest.mark.usefixtures("stand_ins")
def test_what_a_small_batch_sends_is_measured_on_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(table, "measure_exchange", lambda *_: MeasuredExchange(70, 80, None, None))
    facts = network_facts(plain_network(small(), TASK.image_shape, TASK.classes))
    (row,) = cost_rows([small(batch_size=31)], facts, TASK, measured=True)
    assert row.exchange == MeasuredExchange(70, 80, None, None)


def test_what_is_not_known_is_none_under_the_same_names(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(table, "measure_process", lambda *_: pytest.fail("not asked for"))
    facts = network_facts(plain_network(small(), TASK.image_shape, TASK.classes))
    known, own = cost_rows([small(), small("fedavg")], facts, TASK, measured=False)
    assert known.flat().keys() == own.flat().keys()
    assert known.flat()["measured_process"] is None
    assert known.flat()["estimated_memory_bitmap"] > 0
    users = table.CostRow("mine:Method", 0.9, None, None)
    assert set(users.flat().values()) == {"mine:Method", 0.9, None}

"""The job: what comes from outside makes sense or is refused."""

import json
from dataclasses import asdict, replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedmef.errors import MessageError
from fedmef.wire.broadcast import encode_broadcast
from fedmef.wire.container import MESSAGE_VERSION, encode
from fedmef.wire.job import LATER_FIELDS, MOST_EPOCHS, Job, job_of, job_table, read_job
from tests.sparsity.networks import random_model, sparse_network

JOB = Job(method="fedmef", round=3, seed=7, learning_rate=0.1, initial_rate=0.5, adjustment_rate=0.4)
TABLE = asdict(JOB)


def test_a_job_comes_back() -> None:
    assert job_of(json.loads(json.dumps(TABLE))) == JOB


@given(
    job=st.builds(
        Job,
        method=st.text(max_size=20),
        round=st.integers(0, 2**53),
        seed=st.integers(0, 2**53),
        learning_rate=st.floats(0, 1e30, exclude_min=True),
        initial_rate=st.floats(0, 1e30, exclude_min=True),
        local_epochs=st.integers(1, MOST_EPOCHS),
        batch_size=st.integers(1, 2**40),
        left_over=st.sampled_from(["even", "drop", "keep"]),
        augment=st.booleans(),
        adjustment_rate=st.floats(0, 1),
        attempt=st.integers(0, 9),
        extrusion=st.floats(0, 10),
        wire_scheme=st.sampled_from(["auto", "paper", "rice"]),
        wire_dtype=st.sampled_from(["fp32", "fp16", "bf16"]),
        remember_masks=st.booleans(),
    )
)
@settings(deadline=None)
def test_any_job_comes_back(job: Job) -> None:
    assert job_of(json.loads(json.dumps(asdict(job)))) == job


def test_a_job_can_be_read_without_the_rest_of_the_message() -> None:
    message = encode_broadcast(random_model(sparse_network()), JOB)
    assert read_job(message) == JOB
    head = message[: 8 + int.from_bytes(message[:8], "little")]
    assert read_job(head) == JOB


def test_a_field_of_a_later_version_travels_only_when_it_is_used() -> None:
    plain = Job(method="fedmef", round=0, seed=0, learning_rate=0.1, initial_rate=0.1)
    assert not LATER_FIELDS & job_table(plain).keys()
    used = replace(plain, momentum=0.5, weight_decay=0.25, proximal=0.125, loss="mine:loss")
    assert job_table(used).keys() - job_table(plain).keys() == set(LATER_FIELDS)
    assert [job_of(job_table(job)) for job in (plain, used)] == [plain, used]


def test_masks_change_after_a_round_with_a_rate() -> None:
    assert JOB.adjusts
    assert not replace(JOB, adjustment_rate=0.0).adjusts


@pytest.mark.parametrize("table", [None, 3, [], "job", {}, {"round": 3, "learning_rate": 0.1}])
def test_something_else_than_a_job_is_refused(table: object) -> None:
    with pytest.raises(MessageError, match="job"):
        job_of(table)


@pytest.mark.parametrize(
    "wrong",
    [
        {"round": "3"},
        {"round": 1.5},
        {"round": -1},
        {"round": True},
        {"seed": 2**64},
        {"learning_rate": -1},
        {"learning_rate": "fast"},
        {"learning_rate": float("nan")},
        {"learning_rate": float("inf")},
        {"learning_rate": 10**400},
        {"initial_rate": -0.5},
        {"initial_rate": 0.0},
        {"adjustment_rate": -0.5},
        {"extrusion": -0.5},
        {"batch_size": 0},
        {"batch_size": 1.0},
        {"local_epochs": 0},
        {"local_epochs": MOST_EPOCHS + 1},
        {"local_epochs": None},
        {"left_over": "spread"},
        {"left_over": None},
        {"augment": 1},
        {"method": 3},
        {"method": ["fedmef"]},
        {"method": "x" * 2000},
        {"wire_scheme": "zip"},
        {"wire_dtype": "int8"},
        {"remember_masks": "yes"},
        {"rate": 1},
    ],
    ids=lambda wrong: ascii(wrong)[:40],
)
def test_a_job_that_makes_no_sense_is_refused(wrong: dict[str, object]) -> None:
    with pytest.raises(MessageError, match="job"):
        job_of({**TABLE, **wrong})


@pytest.mark.parametrize("name", ["method", "round", "seed", "learning_rate", "initial_rate"])
def test_what_every_device_must_know_has_no_default(name: str) -> None:
    with pytest.raises(MessageError, match=f"lacks one of .*{name}"):
        job_of({key: value for key, value in TABLE.items() if key != name})


@pytest.mark.parametrize("header", [{}, {"job": None}, {"job": [1]}])
def test_a_message_without_a_job_has_none_to_read(header: dict[str, Any]) -> None:
    with pytest.raises(MessageError, match="whose job cannot be read"):
        read_job(encode({}, header, MESSAGE_VERSION))
    with pytest.raises(MessageError):
        read_job(b"junk")

from fedmef.studies.paper.sweep import sweep

CASES = sweep(
    "adjust_every",
    "period of adjustments",
    {"smoke": (1, 2), "desk": (3, 5), "bench": (3, 5), "paper": (5, 10)},
    {"fedtiny": (55.0, 58.0), "fedmef": ((61.9, 0.5), (62.1, 0.6))},
    local_epochs=1,
)


def test_each_value_stands_for_the_papers_at_the_same_place() -> None:
    first, second, third, last = CASES("desk")
    assert [case.name for case in (first, second, third, last)] == [
        "fedtiny-period3",
        "fedmef-period3",
        "fedtiny-period5",
        "fedmef-period5",
    ]
    assert first.labels == {"method": "fedtiny", "period of adjustments": 3}
    assert (first.settings["adjust_every"], first.settings["local_epochs"]) == (3, 1)
    assert first.paper == {"period of adjustments (paper)": 5, "accuracy % (paper)": 55.0}
    assert last.paper == {
        "period of adjustments (paper)": 10,
        "accuracy % (paper)": 62.1,
        "± (paper)": 0.6,
    }

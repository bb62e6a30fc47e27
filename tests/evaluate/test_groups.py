"""Groups are averaged as the harness averages them (its own numbers: test_harness_forty.py)."""

from __future__ import annotations

import math

import pytest

from prism.evaluate.groups import average_groups, describe_group
from prism.evaluate.schedule.trials import Dataset, Group, GroupMetric

DATASETS = [
    Dataset(name="a", adapter="lm-eval", task="a", samples=10, directions={"acc": True}),
    Dataset(name="b", adapter="lm-eval", task="b", samples=30, directions={"acc": True, "ppl": False}),
]
METRICS = {
    ("s", "a"): {"acc,none": 0.5, "acc_stderr,none": 0.1},
    ("s", "b"): {"acc,none": 0.9, "acc_stderr,none": 0.2, "acc,strict": 0.3},
    ("t", "a"): {"acc,none": 0.5},
}


def average(by_size: bool) -> dict[tuple[str, str], dict[str, float]]:
    group = Group(name="g", datasets=("a", "b"), metrics=(GroupMetric(metric="acc", by_size=by_size),))
    return average_groups([group], DATASETS, ["s", "t"], METRICS)


def test_a_weighted_group_counts_samples_and_pools_errors() -> None:
    found = average(True)
    assert set(found) == {("s", "g")}, "a checkpoint with a dataset missing has no average yet"
    assert found["s", "g"]["acc,none"] == pytest.approx(0.8)
    pooled = (9 * 0.1**2 * 10 + 29 * 0.2**2 * 30) / (40 - 2)
    assert found["s", "g"]["acc_stderr,none"] == pytest.approx(math.sqrt(pooled / 40))
    assert found["s", "g"]["acc,strict"] == pytest.approx(0.3)


def test_a_plain_group_counts_tasks() -> None:
    found = average(False)["s", "g"]
    assert found["acc,none"] == pytest.approx(0.7)
    assert found["acc_stderr,none"] == pytest.approx(math.sqrt(0.1**2 + 0.2**2) / 2)


def test_a_group_has_the_samples_and_the_directions_of_its_datasets() -> None:
    found = describe_group(Group(name="g", datasets=("a", "b"), version="2"), DATASETS)
    assert (found.samples, found.version, dict(found.directions)) == (40, "2", {"acc": True, "ppl": False})

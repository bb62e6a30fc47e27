"""The search for bad hosts, against fleets with known faults and against real probes."""

from __future__ import annotations

import sys

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from prism.errors import BadConfigError
from prism.recover.isolate.agents import ProbeConfig
from prism.recover.isolate.beliefs import FailureModel, find_beliefs
from prism.recover.isolate.examine import isolate_hosts
from prism.recover.isolate.fleet import Faults, Fleet, draw_faults
from prism.recover.isolate.grading import FAILED, PASSED, SLOW, Grader
from prism.recover.isolate.search import Search, SearchConfig
from prism.recover.isolate.two_round import find_by_two_rounds


def search(num_hosts: int, faults: Faults, seed: int = 0, config: SearchConfig | None = None):
    fleet = Fleet(faults, np.random.default_rng(seed))
    state = Search(num_hosts, config, seed=seed)
    while (tests := state.next_round()) is not None:
        state.add(tests, fleet.run(tests))
    return state.report([f"h{i}" for i in range(num_hosts)])


def faulty(kind, num_hosts: int, count: int, seed: int) -> Faults:
    return draw_faults(kind, num_hosts, count, np.random.default_rng(seed))


def names(mask: np.ndarray) -> set[str]:
    return {f"h{i}" for i in np.flatnonzero(mask)}


@pytest.mark.parametrize("num_hosts", [3, 4, 5, 6, 8, 16, 33, 256])
def test_a_dead_host_is_condemned_and_no_other(num_hosts: int):
    for seed in range(5):
        faults = faulty("permanent", num_hosts, 1, seed)
        report = search(num_hosts, faults, seed)
        assert set(report.condemned) == names(faults.fail_rate > 0)
        assert not report.bad_links


def test_hosts_that_fail_in_three_of_ten_tests_are_found():
    found = total = 0
    for seed in range(25):
        faults = faulty("intermittent", 128, 2, seed)
        report = search(128, faults, seed)
        bad = names(faults.fail_rate > 0)
        found += len(bad & set(report.condemned))
        total += len(bad)
        assert set(report.condemned) <= bad
    assert found / total >= 0.95


def test_a_bad_link_is_told_from_a_bad_host():
    for seed in range(10):
        faults = faulty("link", 64, 2, seed)
        report = search(64, faults, seed)
        assert report.condemned == ()
        found = {tuple(sorted((int(b.first[1:]), int(b.second[1:])))) for b in report.bad_links}
        assert found == set(faults.links)


def test_a_slow_host_is_found_as_well_and_called_slow():
    faults = faulty("slow", 64, 2, 3)
    report = search(64, faults)
    assert set(report.condemned) == set(report.slow) == names(faults.speed < 1)


@settings(max_examples=25)
@given(st.integers(4, 80), st.integers(0, 10_000))
def test_a_healthy_fleet_is_trusted_as_a_whole(num_hosts: int, seed: int):
    report = search(num_hosts, Faults(fail_rate=np.zeros(num_hosts), speed=np.ones(num_hosts), links=frozenset()), seed)
    assert report.condemned == () and report.bad_links == ()


@settings(max_examples=25)
@given(st.integers(2, 40), st.integers(0, 5), st.integers(0, 10_000))
def test_every_host_is_trusted_suspected_or_condemned(num_hosts: int, count: int, seed: int):
    report = search(num_hosts, faulty("intermittent", num_hosts, min(count, num_hosts), seed), seed)
    everyone = [*report.trusted, *report.suspected, *report.condemned]
    assert sorted(everyone) == sorted(f"h{i}" for i in range(num_hosts))


def test_two_hosts_cannot_be_told_apart():
    report = search(2, faulty("permanent", 2, 1, 0))
    assert report.condemned == () and len(report.suspected) == 2


def test_a_round_never_uses_a_host_twice():
    faults = faulty("permanent", 40, 3, 1)
    fleet = Fleet(faults, np.random.default_rng(0))
    state = Search(40)
    while (tests := state.next_round()) is not None:
        members = tests[tests >= 0].tolist()
        assert len(members) == len(set(members))
        state.add(tests, fleet.run(tests))


def test_a_failure_beside_a_host_known_to_be_bad_is_no_evidence():
    passes = np.zeros(6, dtype=np.int64)
    alone = find_beliefs(passes, [(0, 1)], FailureModel())
    beside = find_beliefs(passes, [(0, 1), (1, 2), (1, 3), (1, 4)], FailureModel())
    assert beside[1] > 0.99 and beside[0] < alone[0]


def test_two_rounds_condemn_a_dead_host_and_miss_a_link():
    dead = faulty("permanent", 16, 1, 0)
    found, tests = find_by_two_rounds(16, Fleet(dead, np.random.default_rng(0)).run)
    assert found == set(np.flatnonzero(dead.fail_rate)) and tests == 10
    link = Faults(fail_rate=np.zeros(16), speed=np.ones(16), links=frozenset({(0, 1)}))
    assert find_by_two_rounds(16, Fleet(link, np.random.default_rng(0)).run)[0] == set()


def test_slow_is_what_peers_are_not():
    grader = Grader(slow_ratio=0.5)
    outcomes = grader.grade(
        np.array([True] * 5 + [False]), np.array([10, 10, 9, 4, 11, 0.0]), np.array([1, 1, 1, 1, 9, 1.0])
    )
    assert outcomes.tolist() == [PASSED, PASSED, PASSED, SLOW, SLOW, FAILED]


# -- real probes on this machine


def test_real_probes_find_the_host_that_does_not_answer():
    hosts = [f"127.0.0.{i}" for i in range(1, 6)]
    config = ProbeConfig(num_bytes=20_000, timeout_s=20.0, grader=Grader(slow_ratio=0.0, late_ratio=1e9))
    report = isolate_hosts(
        hosts, lambda host: ["false"] if host == "127.0.0.3" else [], config, SearchConfig(group_rounds=1)
    )
    assert report.condemned == ("127.0.0.3",)
    assert "its probe did not start" in report.evidence["127.0.0.3"]


@pytest.mark.slow
def test_real_probes_over_gloo_find_it_too():
    hosts = [f"127.0.0.{i}" for i in range(1, 5)]
    config = ProbeConfig(
        backend="gloo", num_bytes=20_000, timeout_s=20.0, grader=Grader(slow_ratio=0.0, late_ratio=1e9)
    )
    report = isolate_hosts(
        hosts, lambda host: ["false"] if host == "127.0.0.2" else [], config, SearchConfig(group_rounds=1)
    )
    assert report.condemned == ("127.0.0.2",)


def test_a_probe_that_says_nonsense_counts_as_dead():
    hosts = ["127.0.0.1", "127.0.0.2", "127.0.0.3", "127.0.0.4"]
    liar = [sys.executable, "-c", 'print(\'{"ready": true, "port": 9}\', flush=True); import time; time.sleep(60)']
    config = ProbeConfig(num_bytes=1_000, timeout_s=2.0, grader=Grader(slow_ratio=0.0, late_ratio=1e9))
    report = isolate_hosts(
        hosts, lambda host: liar if host == "127.0.0.4" else [], config, SearchConfig(group_rounds=0)
    )
    assert report.condemned == ("127.0.0.4",)


def test_a_test_of_one_host_is_refused():
    with pytest.raises(BadConfigError, match="at least two"):
        isolate_hosts(["a"], lambda host: [])

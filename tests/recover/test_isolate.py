"""The search for bad hosts, against fleets with known faults and against real probes."""

from __future__ import annotations

import itertools
import json
import subprocess
import sys
from dataclasses import replace
from itertools import combinations
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from prism.errors import BadConfigError
from prism.recover.isolate.agents import Agents, Measured, ProbeConfig
from prism.recover.isolate.beliefs import FailureModel, find_beliefs
from prism.recover.isolate.examine import isolate_hosts, start_search, try_slow_ones
from prism.recover.isolate.few import plan_pairs
from prism.recover.isolate.grading import FAILED, PASSED, SLOW, Grader
from prism.recover.isolate.probe import read_counters
from prism.recover.isolate.proof import ProofConfig, Trial, prove_slow
from prism.recover.isolate.report import BadLink, IsolationReport
from prism.recover.isolate.search import Search, SearchConfig
from proving.benchmarks.isolate_fleet import Faults, Fleet, draw_faults
from proving.benchmarks.isolate_two_rounds import find_by_two_rounds


def search(num_hosts: int, faults: Faults, seed: int = 0, config: SearchConfig | None = None):
    fleet = Fleet(faults, np.random.default_rng(seed))
    state = start_search(num_hosts, config, seed)
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


def test_a_bad_link_is_distinguished_from_a_bad_host():
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
    assert "add a third" in report.advice


@pytest.mark.parametrize("num_hosts", [3, 4, 5, 6, 7, 8])
@pytest.mark.parametrize("kind", ["permanent", "intermittent", "link", "slow"])
def test_among_few_hosts_the_answer_is_right_or_says_what_else_to_test(kind, num_hosts: int):
    clear = 0
    for seed in range(6):
        faults = faulty(kind, num_hosts, 1, seed)
        report = search(num_hosts, faults, seed)
        bad = names((faults.fail_rate > 0) | (faults.speed < 1))
        links = {(f"h{a}", f"h{b}") for a, b in faults.links}
        assert set(report.condemned) <= bad
        assert bool(report.suspected) == bool(report.advice)
        clear += set(report.condemned) == bad and {(b.first, b.second) for b in report.bad_links} == links
    assert clear >= (6 if kind in ("permanent", "link") else 4)


@pytest.mark.parametrize("num_hosts", [3, 4, 5, 8])
def test_few_hosts_meet_in_every_pair_and_never_twice_in_a_round(num_hosts: int):
    rounds = [[tuple(sorted(pair)) for pair in tests.tolist()] for tests in plan_pairs(num_hosts)]
    assert sorted(pair for tests in rounds for pair in tests) == list(combinations(range(num_hosts), 2))
    for tests in rounds:
        members = [host for pair in tests for host in pair]
        assert len(members) == len(set(members))


@pytest.mark.parametrize("num_hosts", [9, 10, 13, 16])
def test_every_link_of_the_ring_is_tried_also_with_an_odd_number_of_hosts(num_hosts: int):
    state, tried = Search(num_hosts), set()
    for _ in range(3):
        tests = state.next_round()
        members = [tuple(sorted(host for host in row if host >= 0)) for row in tests.tolist()]
        tried |= {pair for pair in members if len(pair) == 2}
        state.add(tests, np.zeros(len(tests), dtype=np.int8))
    assert {tuple(sorted((h, (h + 1) % num_hosts))) for h in range(num_hosts)} <= tried


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
        np.array([True] * 5 + [False]), np.array([10, 10, 9, 4, 11, 0.0]), np.array([1, 1, 1, 1, 9, 1.0]), 12
    )
    assert outcomes.tolist() == [PASSED, PASSED, PASSED, SLOW, SLOW, FAILED]


# -- real probes on this machine


def test_real_probes_find_the_host_that_does_not_answer():
    hosts = [f"127.0.0.{i}" for i in range(1, 6)]
    config = ProbeConfig(num_bytes=20_000, timeout_s=600.0, grader=Grader(slow_ratio=0.0, late_ratio=1e9))
    report = isolate_hosts(
        hosts, lambda host: ["false"] if host == "127.0.0.3" else [], config, SearchConfig(group_rounds=1)
    )
    assert report.condemned == ("127.0.0.3",)
    assert "its probe did not start" in report.evidence["127.0.0.3"]


@pytest.mark.slow
def test_real_probes_over_gloo_find_it_too():
    hosts = [f"127.0.0.{i}" for i in range(1, 5)]
    config = ProbeConfig(
        backend="gloo", num_bytes=20_000, timeout_s=600.0, grader=Grader(slow_ratio=0.0, late_ratio=1e9)
    )
    report = isolate_hosts(
        hosts, lambda host: ["false"] if host == "127.0.0.2" else [], config, SearchConfig(group_rounds=1)
    )
    assert report.condemned == ("127.0.0.2",)


def test_a_probe_that_says_nonsense_counts_as_dead():
    hosts = ["127.0.0.1", "127.0.0.2", "127.0.0.3", "127.0.0.4"]
    liar = [sys.executable, "-c", 'print(\'{"ready": true, "port": 9}\', flush=True); import time; time.sleep(60)']
    config = ProbeConfig(num_bytes=1_000, timeout_s=3.0, grader=Grader(slow_ratio=0.0, late_ratio=1e9))
    report = isolate_hosts(
        hosts, lambda host: liar if host == "127.0.0.4" else [], config, SearchConfig(group_rounds=0)
    )
    assert report.condemned == ("127.0.0.4",)


def test_a_test_of_one_host_is_refused():
    with pytest.raises(BadConfigError, match="at least two"):
        isolate_hosts(["a"], lambda host: [])


# -- counters and torch's collectives


def test_error_counters_of_cards_ports_and_gpus_are_read_where_there_are_any(tmp_path: Path, monkeypatch):
    for place, text in {
        "net/eth0/statistics/rx_errors": "3",
        "net/eth0/statistics/rx_bytes": "99",
        "infiniband/mlx5_0/ports/1/counters/symbol_error": "7",
        "infiniband/mlx5_0/ports/1/counters/link_downed": "not a number",
    }.items():
        (tmp_path / place).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / place).write_text(text)
    tool = tmp_path / "nvidia-smi"
    tool.write_text("#!/bin/sh\necho '0, 2, 5'\necho '1, [N/A], 1'\n")
    tool.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    assert read_counters(tmp_path) == {
        "net/eth0/statistics/rx_errors": 3,
        "infiniband/mlx5_0/ports/1/counters/symbol_error": 7,
        "gpu/0/ecc_uncorrected": 2,
        "gpu/0/ecc_corrected": 5,
        "gpu/1/ecc_corrected": 1,
    }


def test_every_device_of_a_host_takes_part_in_a_collective_test():
    pytest.importorskip("torch")
    from prism.recover.checkpoint import collective_probe

    order = {"members": [["127.0.0.1", collective_probe._free_ports()[0]]], "place": 0, "devices": 2}
    answer = collective_probe.run_in_children({**order, "num_bytes": 10_000, "timeout_s": 60.0}, "gloo")
    assert answer["ok"] and answer["seconds"] > 0 and answer["latency_s"] > 0


def test_nccl_on_a_host_without_a_gpu_is_reported_and_not_tried(monkeypatch, capsys):
    torch = pytest.importorskip("torch")
    if torch.cuda.is_available():
        pytest.skip("there is a GPU here")
    from prism.recover.checkpoint import collective_probe

    monkeypatch.setattr(sys, "argv", ["collective_probe", "nccl"])
    collective_probe.main()
    assert "needs a CUDA device" in json.loads(capsys.readouterr().out)["error"]


@pytest.mark.gpu
def test_nccl_gathers_over_the_gpus_of_this_host():
    torch = pytest.importorskip("torch")
    program = [sys.executable, "-m", "prism.recover.checkpoint.collective_probe", "nccl"]
    with subprocess.Popen(program, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as probe:
        ready = json.loads(probe.stdout.readline())
        order = {"kind": "test", "id": 1, "members": [["127.0.0.1", ready["port"]]], "place": 0}
        order |= {"num_bytes": 10_000, "timeout_s": 60.0, "devices": torch.cuda.device_count()}
        answers, _ = probe.communicate(json.dumps(order) + "\n")
    assert json.loads(answers)["ok"], answers


# -- proof of slowness


def measured(bandwidth: np.ndarray, latency_s: np.ndarray) -> Measured:
    """Tests that all went well, on hosts without other work."""
    yes = np.ones(len(bandwidth), dtype=np.bool_)
    return Measured(alive=yes, bandwidth=bandwidth, latency_s=latency_s, busy=~yes, most_bandwidth=bandwidth)


class Noisy:
    """Measured pairs on hosts of known speed, under the noise of a busy machine."""

    def __init__(self, speed: np.ndarray, noise: float, seed: int) -> None:
        self.speed, self.noise, self.random = speed, noise, np.random.default_rng(seed)

    def __call__(self, rows: list[list[int]]) -> Measured:
        chance = np.exp(self.random.normal(0.0, self.noise, len(rows)))
        bandwidth = np.array([self.speed[row].min() for row in rows]) * chance
        flat = np.ones(len(rows))
        return measured(bandwidth, flat)


FIRST = Trial(part=(0,), others=(1, 2, 3), num_tried=4)


def test_no_healthy_host_is_called_slow_however_noisy_the_machine():
    for seed in range(1_000):
        noise = (0.1, 0.3, 0.6, 1.0)[seed % 4]
        measure = Noisy(np.ones(4), noise, seed)
        assert prove_slow(FIRST, measure, ProofConfig(), np.random.default_rng(seed)).answer != "slow"


def test_a_healthy_host_that_loses_every_second_comparison_is_called_slow_no_more_often_than_the_error_allows():
    """The hardest case: noise so large that each comparison is lost or won, none is even."""
    config, num_runs = ProofConfig(error=0.05), 600
    wrong = 0
    for seed in range(num_runs):
        measure = Noisy(np.ones(4), 50.0, seed)
        wrong += prove_slow(replace(FIRST, num_tried=1), measure, config, np.random.default_rng(seed)).answer == "slow"
    assert wrong <= 0.05 * num_runs


def test_noise_in_speed_and_in_latency_together_accuse_nobody():
    """Either alone is lost half the time; both together would be lost more often, were they counted apart."""
    wrong = 0
    for seed in range(300):
        chance = np.random.default_rng(seed)

        def measure(rows: list[list[int]], chance: np.random.Generator = chance) -> Measured:
            values = np.exp(chance.normal(0.0, 20.0, (2, len(rows))))
            return measured(values[0], values[1])

        wrong += prove_slow(FIRST, measure, ProofConfig(), np.random.default_rng(seed)).answer == "slow"
    assert wrong == 0


def test_a_slow_host_is_proven_slow_and_a_slow_link_too():
    for seed in range(50):
        measure = Noisy(np.array([0.4, 1.0, 1.0, 1.0]), 0.1, seed)
        random = np.random.default_rng(seed)
        assert prove_slow(FIRST, measure, ProofConfig(), random).answer == "slow"
        sound = Trial(part=(1,), others=(2, 3), num_tried=4)
        assert prove_slow(sound, measure, ProofConfig(), random).answer == "not slow"


def test_whoever_is_timed_first_in_a_comparison_of_three_hosts_has_no_advantage():
    """The second of two tests is always slower here; with three hosts both share one, so they cannot run together."""
    calls = itertools.count()

    def measure(rows: list[list[int]]) -> Measured:
        flat = np.ones(len(rows))
        speed = 0.5 if next(calls) % 2 else 1.0
        return measured(speed * flat, flat)

    trial = Trial(part=(0,), others=(1, 2), num_tried=3)
    for seed in range(200):
        assert prove_slow(trial, measure, ProofConfig(), np.random.default_rng(seed)).answer == "not slow"


class Busy:
    """The same pairs, on hosts at other work; how much of its speed that takes from a test is random each time."""

    def __init__(self, speed: np.ndarray, work: np.ndarray, seed: int, *, known: bool = True) -> None:
        self.speed, self.work, self.known, self.random = speed, work, known, np.random.default_rng(seed)

    def __call__(self, rows: list[list[int]]) -> Measured:
        reached = np.array([self.speed[row].min() for row in rows])
        slowed = 1.0 + self.random.exponential(np.array([self.work[row].max() for row in rows]))
        most = reached if self.known else np.full(len(rows), np.inf)
        found = measured(reached / slowed, 30.0 * slowed)
        return replace(found, busy=np.ones(len(rows), dtype=np.bool_), most_bandwidth=most)


def test_a_host_at_other_work_is_not_called_slow():
    everywhere, here = np.full(4, 3.0), np.array([30.0, 0.0, 0.0, 0.0])
    for seed in range(200):
        random = np.random.default_rng(seed)
        for work in (everywhere, here):
            assert prove_slow(FIRST, Busy(np.ones(4), work, seed), ProofConfig(), random).answer == "not slow"
        unknown = Busy(np.array([0.1, 1.0, 1.0, 1.0]), everywhere, seed, known=False)
        assert prove_slow(FIRST, unknown, ProofConfig(), random).answer == "not slow"


def test_a_host_that_is_far_slower_than_its_other_work_explains_is_proven_slow():
    slow = np.array([0.02, 1.0, 1.0, 1.0])
    for seed in range(50):
        random = np.random.default_rng(seed)
        found = prove_slow(FIRST, Busy(slow, np.full(4, 1.0), seed), ProofConfig(), random)
        assert found.answer == "slow"
        sound = Trial(part=(1,), others=(2, 3), num_tried=4)
        assert prove_slow(sound, Busy(slow, np.full(4, 1.0), seed), ProofConfig(), random).answer == "not slow"


@pytest.mark.parametrize("slow", ["host", "link"])
def test_a_slow_host_that_was_first_seen_as_a_slow_link_is_named_as_the_host(slow: str):
    def speed(row: list[int]) -> float:
        return 0.1 if (0 in row if slow == "host" else {0, 1} <= set(row)) else 1.0

    def measure(rows: list[list[int]]) -> Measured:
        return measured(np.array([speed(row) for row in rows]), np.ones(len(rows)))

    hosts = ["h0", "h1", "h2", "h3"]
    link = BadLink(first="h0", second="h1")
    empty = {"suspected": (), "condemned": (), "slow": (), "num_tests": 8, "num_rounds": 2}
    report = IsolationReport(trusted=tuple(hosts), bad_links=(link,), **empty)
    state = SimpleNamespace(by_failures=lambda: dict.fromkeys([(0,), (1,), (2,), (3,), (0, 1)], "good"))
    agents = SimpleNamespace(measure=measure, config=ProbeConfig())
    found = try_slow_ones(report, hosts, state, agents, lambda text: None)
    assert found.slow == found.condemned == (("h0",) if slow == "host" else ())
    assert found.bad_links == (() if slow == "host" else (link,))


@pytest.mark.parametrize("num_hosts", [4, 16])
@pytest.mark.parametrize("slow", [False, True])
def test_beside_a_dead_host_slow_tests_alone_accuse_nobody_without_a_proof(num_hosts: int, slow: bool):
    """The last host is dead and the first one's tests are slow; when they are compared, they are so or they are not."""
    dead, state = num_hosts - 1, start_search(num_hosts)
    while (tests := state.next_round()) is not None:
        found = [FAILED if dead in row else SLOW if 0 in row else PASSED for row in tests.tolist()]
        state.add(tests, np.array(found, dtype=np.int8))
    hosts = [f"h{i}" for i in range(num_hosts)]
    before = state.report(hosts)
    assert before.condemned == ("h0", f"h{dead}")

    def measure(rows: list[list[int]]) -> Measured:
        found = measured(np.array([0.1 if slow and 0 in row else 1.0 for row in rows]), np.ones(len(rows)))
        return replace(found, alive=np.array([dead not in row for row in rows]))

    agents = SimpleNamespace(measure=measure, config=ProbeConfig())
    report = try_slow_ones(before, hosts, state, agents, lambda text: None)
    assert report.condemned == (("h0", f"h{dead}") if slow else (f"h{dead}",)) and report.suspected == ()
    assert report.slow == (("h0",) if slow else ()) and f"h{dead}" in report.evidence
    assert set(report.trusted) == {*hosts} - {*report.condemned}


def test_a_host_that_fails_at_times_stays_suspected_though_its_slow_tests_were_chance():
    state = start_search(4)
    while (tests := state.next_round()) is not None:
        trouble = {1: SLOW, 2: FAILED, 4: FAILED, 5: SLOW, 8: FAILED, 10: FAILED}.get(state.num_rounds, PASSED)
        found = [trouble if 0 in row else PASSED for row in tests.tolist()]
        state.add(tests, np.array(found, dtype=np.int8))
    hosts = ["h0", "h1", "h2", "h3"]
    agents = SimpleNamespace(
        measure=lambda rows: measured(np.ones(len(rows)), np.ones(len(rows))), config=ProbeConfig()
    )
    report = try_slow_ones(state.report(hosts), hosts, state, agents, lambda text: None)
    assert state.report(hosts).condemned == report.suspected == ("h0",) and report.condemned == report.slow == ()
    assert "failed 6 tests (2 slow)" in report.evidence["h0"] and "--rounds" in report.advice


def test_what_the_probes_waited_for_a_core_is_taken_off_and_all_of_it_where_that_is_not_known():
    class Answered(Agents):
        def __init__(self, answers: list[list[dict[str, Any]]]) -> None:
            self.config, self._answers = ProbeConfig(num_bytes=1_000), iter(answers)

        def _order(self, row: list[int]) -> int:
            return 0

        def _collect(self, row: list[int], number: int, deadline: float) -> list[dict[str, Any]]:
            return next(self._answers)

    free = {"ok": True, "seconds": 1.0, "latency_s": 0.1, "busy": False, "queued_s": 0.1}
    busy = {"ok": True, "seconds": 1.0, "latency_s": 0.1, "busy": True, "queued_s": 0.3}
    throttled = {"ok": True, "seconds": 1.0, "latency_s": 0.1, "busy": True}
    failed = {"ok": False, "error": "gone"}
    found = Answered([[free, free], [busy, free], [throttled, free], [busy, failed]]).measure([[0, 1]] * 4)
    assert found.bandwidth.tolist() == [1e3, 1e3, 1e3, 0.0] and found.alive.tolist() == [True, True, True, False]
    assert found.most_bandwidth[0] == 1e3 and found.most_bandwidth[1] == pytest.approx(1e3 / 0.6)
    assert found.most_bandwidth[2] > 1e9


def test_the_probe_needs_no_file_on_the_host_and_what_ssh_says_is_shown(tmp_path: Path):
    hosts = [f"127.0.0.{i}" for i in range(1, 5)]
    refuse = ["sh", "-c", "echo 'ssh: connect to host n3 port 22: Connection refused' >&2; exit 255"]
    elsewhere = ["env", "-i", "-C", str(tmp_path)]  # no path to this package
    config = ProbeConfig(num_bytes=20_000, timeout_s=600.0, grader=Grader(slow_ratio=0.0, late_ratio=1e9))
    report = isolate_hosts(
        hosts, lambda host: refuse if host == "127.0.0.3" else elsewhere, config, SearchConfig(group_rounds=1)
    )
    assert report.condemned == ("127.0.0.3",) and set(report.trusted) == {*hosts} - {"127.0.0.3"}
    assert "Connection refused" in report.evidence["127.0.0.3"]


def test_hosts_that_cannot_be_reached_at_all_are_reported_in_one_line():
    with pytest.raises(BadConfigError, match="0 of 3 hosts could be reached.*no route"):
        isolate_hosts(["a", "b", "c"], lambda host: ["sh", "-c", "echo no route >&2; exit 1"])


def test_names_that_only_ssh_knows_accuse_nobody():
    config = ProbeConfig(num_bytes=1_000, timeout_s=60.0)
    with pytest.raises(BadConfigError, match="do not know each other by these names.*addresses that they can connect"):
        isolate_hosts(["alias-1.invalid", "alias-2.invalid", "alias-3.invalid"], lambda host: ["env"], config)


def test_the_command_exits_with_3_when_it_suspects_someone(tmp_path: Path):
    from typer.testing import CliRunner

    from prism.cli.main import app

    shell = tmp_path / "shell"
    shell.write_text(f'#!/bin/sh\nhost=$1; shift\n[ $host = 127.0.0.3 ] && exit 1\nshift; exec {sys.executable} "$@"\n')
    shell.chmod(0o755)
    words = ["isolate", "--hosts", "127.0.0.1,127.0.0.2,127.0.0.3,127.0.0.4", "--shell", f"{shell} {{host}}"]
    options = ["--rounds", "1", "--megabytes", "0.02", "--timeout", "20", "--json"]
    result = CliRunner().invoke(app, [*words, *options])
    assert result.exit_code == 3 and json.loads(result.stdout)["condemned"] == ["127.0.0.3"]

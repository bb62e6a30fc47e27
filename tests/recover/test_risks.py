"""What the supervisor and the host test do with predicted risks; without them nothing changes."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from prism.recover.interval import IntervalConfig, SaveClock, estimate_mtbf_s
from prism.recover.isolate.beliefs import find_beliefs
from prism.recover.isolate.examine import start_search, with_risks
from prism.recover.isolate.search import SearchConfig
from prism.recover.risks import NODE_MTBF, Risks
from prism.recover.supervise import events
from prism.recover.supervise.actions import Kill, Launch
from prism.recover.supervise.clock import ClockMark
from prism.recover.supervise.config import SuperviseConfig
from prism.recover.supervise.hosts import HostBook, HostPolicy
from prism.recover.supervise.journal import Journal, Snapshot
from prism.recover.supervise.replay import Fault, Forecasted, ReplayConfig, ReplayPolicy, replay
from prism.recover.supervise.state import JobState, Phase

FLEET = HostPolicy(hosts=("n1", "n2", "n3", "n4"), num_hosts=2, most_risk_per_day=0.1)
SAFE = dict.fromkeys(FLEET.hosts, 0.001)


def launch(per_day: dict[str, float]) -> JobState:
    job = JobState(config=SuperviseConfig(hosts=FLEET))
    job.handle(events.RisksRead(now_s=0.0, per_day=per_day))
    job.handle(events.Tick(now_s=0.0))
    return job


def test_a_run_starts_on_the_hosts_of_least_risk() -> None:
    assert launch(SAFE).hosts == ("n1", "n2")
    assert launch(SAFE | {"n1": 0.5}).hosts == ("n2", "n3")


def test_a_host_above_the_limit_is_swapped_right_after_a_save_and_not_before() -> None:
    job = launch(SAFE)
    job.handle(events.StepDone(now_s=10.0, step=10))
    assert job.handle(events.RisksRead(now_s=20.0, per_day=SAFE | {"n2": 0.5})) == []
    decided = job.handle(events.Saved(now_s=30.0, step=20))
    assert any(isinstance(action, Kill) and action.grace_s > 0 for action in decided)
    (again,) = [a for a in job.handle(events.Exited(now_s=40.0, code=0)) if isinstance(a, Launch)]
    assert again.hosts == ("n1", "n3") and job.book.cordoned() == ("n2",)
    assert job.handle(events.Saved(now_s=50.0, step=30)) == []


@pytest.mark.parametrize("per_day", [dict.fromkeys(FLEET.hosts, 0.5), SAFE | {"n2": 0.09}, {}])
def test_no_host_is_swapped_where_spares_are_no_safer_or_the_risk_is_below_the_limit(per_day: dict[str, float]) -> None:
    job = launch(SAFE)
    job.handle(events.RisksRead(now_s=20.0, per_day=per_day))
    assert job.handle(events.Saved(now_s=30.0, step=20)) == [] and job.phase is Phase.RUNNING


@pytest.mark.parametrize(
    ("spares", "leaves"),
    [((0.3, 0.4), False), ((0.25, 0.4), False), ((0.2, 0.9), True)],
    ids=["hardly safer", "just twice as safe", "one that is safer"],
)
def test_a_host_is_left_for_a_spare_of_less_than_half_its_risk(spares: tuple[float, float], leaves: bool) -> None:
    job = launch(SAFE)
    job.handle(events.RisksRead(now_s=20.0, per_day=SAFE | {"n2": 0.5, "n3": spares[0], "n4": spares[1]}))
    assert bool(job.handle(events.Saved(now_s=30.0, step=20))) is leaves


def test_without_a_limit_or_while_the_run_ends_no_host_is_left_for_its_risk() -> None:
    calm = JobState(config=SuperviseConfig(hosts=replace(FLEET, most_risk_per_day=0.0)))
    calm.handle(events.Tick(now_s=0.0))
    calm.handle(events.RisksRead(now_s=20.0, per_day=SAFE | {"n2": 0.5}))
    assert calm.handle(events.Saved(now_s=30.0, step=20)) == []
    ending = launch(SAFE)
    ending.handle(events.RisksRead(now_s=20.0, per_day=SAFE | {"n2": 0.5}))
    ending.handle(events.StopAsked(now_s=25.0))
    assert ending.handle(events.Saved(now_s=30.0, step=20)) == [] and not ending.book.cordoned()


def test_a_restart_that_comes_anyway_leaves_risky_hosts_behind() -> None:
    risks = Risks(per_day=SAFE | {"n2": 0.09})
    assert HostBook().choose(("n1", "n2"), FLEET, risks) == ("n1", "n3")
    assert HostBook().choose(("n1", "n2"), FLEET) == ("n1", "n2")


def test_risks_survive_the_supervisors_death(tmp_path: Path) -> None:
    job = launch(SAFE | {"n1": 0.5})
    journal = Journal(tmp_path)
    mark = ClockMark(run_s=1.0, wall_s=1.0, boot_id="x", boot_s=1.0)
    journal.commit(Snapshot(state=job, pending=[], clock=mark, read_bytes=0))
    found = journal.load(SuperviseConfig(hosts=FLEET))
    journal.close()
    assert found is not None and found.state.per_day == SAFE | {"n1": 0.5}


def test_the_trainers_interval_follows_the_risk_of_its_nodes(monkeypatch: pytest.MonkeyPatch) -> None:
    config = IntervalConfig(num_nodes=4)
    plain = estimate_mtbf_s(config, 0, 0.0)
    monkeypatch.setenv(NODE_MTBF, "86400")
    assert estimate_mtbf_s(config, 0, 0.0) == 86_400 / 4 < plain
    clock = SaveClock(config)
    clock.save_done(10.0)
    risky = clock.interval_s
    monkeypatch.setenv(NODE_MTBF, "nonsense")
    assert estimate_mtbf_s(config, 0, 0.0) == plain
    clock = SaveClock(config)
    clock.save_done(10.0)
    assert risky is not None and clock.interval_s is not None and risky < clock.interval_s


def test_the_host_test_suspects_the_likeliest_first() -> None:
    hosts = [f"n{i}" for i in range(16)]
    config = with_risks(SearchConfig(), hosts, Risks(per_day=dict.fromkeys(hosts, 0.01) | {"n7": 1.0}))
    # One failed pair and nothing else: the one that was expected to fail is believed to have.
    beliefs = find_beliefs(np.zeros(16, np.int64), [(6, 7)], config.model)
    assert beliefs[7] > 10 * beliefs[6]
    even = find_beliefs(np.zeros(16, np.int64), [(6, 7)], SearchConfig().model)
    assert even[7] == pytest.approx(even[6])
    assert with_risks(SearchConfig(), hosts, Risks()) == SearchConfig()


def test_among_few_hosts_the_likeliest_meets_the_safest_in_the_first_round() -> None:
    hosts = ["a", "b", "c", "d", "e"]
    per_day = {"a": 0.01, "b": 0.2, "c": 0.001, "d": 0.01, "e": 0.01}
    search = start_search(5, with_risks(SearchConfig(), hosts, Risks(per_day=per_day)))
    tests = search.next_round()
    assert tests is not None and {1, 2} in [set(pair) for pair in tests.tolist()]


def test_a_replay_loses_what_arithmetic_says() -> None:
    config = ReplayConfig(hosts=("a", "b", "c"), num_hosts=2, end_s=100_000.0, save_s=60.0, restart_s=600.0)
    calm = replay([], [], config, ReplayPolicy(name="fixed", interval_s=3_540.0))
    # One save an hour after the start of 600 s, on 16 GPUs.
    saves = (100_000 - 600) // 3_600
    assert calm.lost_gpu_h == pytest.approx((600 + 60 * saves) * 16 / 3_600)
    hurt = replay([Fault(at_s=50_000.0, host="a")], [], config, ReplayPolicy(name="fixed", interval_s=3_540.0))
    rework_s = (50_000 - 600) % 3_600
    assert hurt.failures == 1 and hurt.rework_gpu_h == pytest.approx(rework_s * 16 / 3_600)
    idle = replay([Fault(at_s=50_000.0, host="c")], [], config, ReplayPolicy(name="fixed", interval_s=3_540.0))
    assert idle.failures == 0 and idle.lost_gpu_h == pytest.approx(calm.lost_gpu_h)


def test_in_a_replay_a_risky_host_is_swapped_once_and_a_false_swap_is_counted_as_lost() -> None:
    config = ReplayConfig(hosts=("a", "b", "c"), num_hosts=2, end_s=100_000.0)
    policy = ReplayPolicy(name="swap", interval_s=3_540.0, place=True, most_risk_per_day=0.1)
    beliefs = [
        Forecasted(at_s=0.0, per_day={"a": 0.01, "b": 0.01, "c": 0.02}, mean_per_day=0.01),
        Forecasted(at_s=20_000.0, per_day={"a": 0.9, "b": 0.01, "c": 0.02}, mean_per_day=0.01),
    ]
    right = replay([Fault(at_s=26_000.0, host="a")], beliefs, config, policy)
    assert (right.swaps, right.false_swaps, right.failures) == (1, 0, 0)
    wrong = replay([], beliefs, config, policy)
    assert wrong.swaps >= 1 and wrong.false_swaps == wrong.swaps and wrong.drained_gpu_h > 0
    assert json.dumps(wrong.to_json())

"""The scheduler alone: events in, decisions out, with run times that are given."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from prism.datacenter.place import (
    POLICIES,
    Cluster,
    ClusterBack,
    ClusterLost,
    Finished,
    Job,
    Move,
    Scheduler,
    Submitted,
)
from prism.datacenter.place.events import Decision, Start, Tick
from prism.datacenter.place.policies import Policy
from prism.datacenter.place.run_times import Expected
from prism.datacenter.place.scheduler import explain_misfit
from prism.errors import BadConfigError

HOUR = 3600.0
A, B = Cluster(name="a", gpus=8), Cluster(name="b", gpus=8)


class GivenTimes:
    """Run times that are known, and what was learned."""

    def __init__(self, hours: dict[str, float]) -> None:
        self.hours = hours
        self.learned: list[tuple[str, float]] = []

    def expect(self, job: Job) -> Expected:
        return Expected(HOUR * self.hours.get(job.id, 1.0), ())

    def learn(self, job: Job, expected: Expected, seconds: float) -> None:
        self.learned.append((job.id, seconds))


def open_scheduler(policy: str | Policy, *clusters: Cluster, hours: dict[str, float] | None = None) -> Scheduler:
    """A scheduler that expects an hour of every job, but for those that are named."""
    found = Scheduler(clusters or (A, B), POLICIES[policy] if isinstance(policy, str) else policy)
    found.times = GivenTimes(hours or {})  # type: ignore[assignment]
    return found


def job(name: str, gpus: int = 8, home: str = "a", **more: Any) -> Job:
    return Job(id=name, submit_s=0.0, gpus=gpus, home=home, **more)


def submit(scheduler: Scheduler, *jobs: Job, at_s: float = 0.0) -> list[Decision]:
    return [decision for one in jobs for decision in scheduler.handle(Submitted(one, at_s))]


def told(decisions: Sequence[Decision]) -> list[tuple[str, str]]:
    return [(d.job.id, d.cluster) for d in decisions]


def test_a_job_stays_at_home_where_clusters_do_not_share() -> None:
    scheduler = open_scheduler("static")
    assert told(submit(scheduler, job("1"), job("2"))) == [("1", "a")]
    assert (scheduler.free_gpus, scheduler.num_waiting, scheduler.waiting_sizes) == (8, 1, {8: 1})
    assert told(scheduler.handle(Finished("1", HOUR))) == [("2", "a")]
    assert (scheduler.num_waiting, scheduler.waiting_sizes) == (0, {})
    assert scheduler.handle(Finished("1", HOUR)) == [], "told twice"


def test_a_pool_is_one_cluster_of_all_gpus() -> None:
    assert told(submit(open_scheduler("pooled"), job("1", 16))) == [("1", "pool")]


@pytest.mark.parametrize(
    ("hours", "gpus", "passes"), [(1.0, 4, True), (1.1, 4, False), (9.0, 2, True), (9.0, 3, False)]
)
def test_a_later_job_passes_one_that_waits_if_it_ends_before_or_fits_beside_it(
    hours: float, gpus: int, passes: bool
) -> None:
    # Four GPUs are free for an hour, until the six that wait can start; then two are free beside them.
    scheduler = open_scheduler("static-easy", A, hours={"late": hours})
    submit(scheduler, job("first", 4), job("waits", 6))
    assert told(submit(scheduler, job("late", gpus))) == ([("late", "a")] if passes else [])
    strict = open_scheduler("static", A, hours={"late": hours})
    submit(strict, job("first", 4), job("waits", 6))
    assert submit(strict, job("late", gpus)) == []


def test_priority_goes_before_time_and_a_deadline_before_those_who_came_earlier() -> None:
    scheduler = open_scheduler("static", A)
    submit(scheduler, job("runs"), job("1"), job("2", priority=1), at_s=0.0)
    submit(scheduler, job("3", deadline_s=1800.0), at_s=60.0)
    order = []
    for name in ("runs", "2", "3", "1"):
        order += told(scheduler.handle(Finished(name, HOUR)))
    assert [name for name, _ in order] == ["2", "3", "1"]


def test_guests_start_where_there_is_room_and_are_told_why() -> None:
    scheduler = open_scheduler("multikueue-all")
    found = submit(scheduler, job("1"), job("2"))
    assert told(found) == [("1", "a"), ("2", "b")]
    assert [d.reason for d in found] == ["its own cluster has room", "'a' is full, 'b' has 8 GPUs free"]


def test_rounds_ask_more_clusters_as_time_goes_by() -> None:
    policy = Policy(name="x", reach="rounds", round_size=1, round_s=300.0)
    scheduler = open_scheduler(policy)
    assert told(submit(scheduler, job("1"), job("2"))) == [("1", "a")]
    assert scheduler.handle(Tick(299.0)) == []
    assert told(scheduler.handle(Tick(300.0))) == [("2", "b")]


def test_a_cluster_keeps_gpus_for_its_own_users() -> None:
    keeps = Cluster(name="b", gpus=8, keep_gpus=4)
    scheduler = open_scheduler("multikueue-all", A, keeps)
    assert told(submit(scheduler, job("1"), job("guest", 5))) == [("1", "a")]
    assert told(submit(scheduler, job("small", 4), job("own", 4, "b"))) == [("small", "b"), ("own", "b")]


def test_a_cluster_that_is_lost_starts_nothing_until_it_is_back() -> None:
    scheduler = open_scheduler("static")
    assert scheduler.handle(ClusterLost("a", 0.0)) == []
    assert submit(scheduler, job("1")) == []
    assert told(scheduler.handle(ClusterBack("a", 9.0))) == [("1", "a")]


def test_the_queue_with_least_to_do_for_its_size_is_chosen() -> None:
    large = Cluster(name="b", gpus=16)
    scheduler = open_scheduler("shortest-queue", A, large)
    assert told(submit(scheduler, job("1", 8), job("2", 8))) == [("1", "a"), ("2", "b")]
    submit(scheduler, job("3", 8), job("4", 8), job("5", 8))
    waiting = {name: site.waiting_gpu_s for name, site in scheduler.sites.items()}
    assert waiting == {"a": 8 * HOUR, "b": 8 * HOUR}  # the larger one would have had less for its size


def test_fair_share_lets_go_first_who_has_used_least_for_its_weight() -> None:
    scheduler = open_scheduler("fair-share", A, Cluster(name="b", gpus=8, weight=4.0))
    submit(scheduler, job("a1"), job("b1", home="b"))
    submit(scheduler, job("a2"), job("b2", home="b"))
    assert told(scheduler.handle(Finished("a1", HOUR))) == [("b2", "a")]


def test_a_guest_waits_while_owners_have_waited_for_long() -> None:
    policy = Policy(name="x", reach="lend", patience_s=600.0)
    for at_s, lent in ((500.0, True), (700.0, False)):
        scheduler = open_scheduler(policy)
        submit(scheduler, job("a1", 8), job("b1", 4, "b"), job("owner", 8, "b"))
        assert told(submit(scheduler, job("guest", 4), at_s=at_s)) == ([("guest", "b")] if lent else [])


def test_a_guest_goes_only_where_it_ends_earlier_with_its_data_on_the_way() -> None:
    far = Cluster(name="b", gpus=8, bytes_per_s=1.0)
    near = Cluster(name="a", gpus=8, bytes_per_s=1.0)
    for size, lent in ((1800, True), (7200, False)):
        scheduler = open_scheduler("prism", near, far, hours={"1": 1.0})
        submit(scheduler, job("1"))
        found = submit(scheduler, job("2", data_bytes=size, data_at="a"))
        assert told(found) == ([("2", "b")] if lent else [])


def test_the_next_best_cluster_is_named_where_another_has_room() -> None:
    (found,) = submit(open_scheduler("prism"), job("1", 4))
    assert isinstance(found, Start) and found.second == "b"
    (found,) = submit(open_scheduler("prism", A, Cluster(name="b", gpus=2)), job("1", 4))
    assert isinstance(found, Start) and found.second == ""


@pytest.mark.parametrize(("restart_s", "moved"), [(60.0, True), (HOUR, False)])
def test_a_guest_is_moved_for_an_owner_where_that_saves_more_than_it_loses(restart_s: float, moved: bool) -> None:
    third = Cluster(name="c", gpus=8)
    scheduler = open_scheduler("prism", A, B, third)
    submit(scheduler, job("a1"), job("c1", home="c"))
    assert told(submit(scheduler, job("guest", preemptible=True, restart_s=restart_s))) == [("guest", "b")]
    scheduler.handle(Finished("c1", 10.0))
    found = submit(scheduler, job("owner", home="b"), at_s=10.0)
    if not moved:
        assert told(found) == [("owner", "c")]
        return
    move, start = found
    assert isinstance(move, Move) and (move.job.id, move.source, move.cluster) == ("guest", "b", "c")
    assert told([start]) == [("owner", "b")] and start.reason == "guests were moved for it"


def test_jobs_that_run_and_wait_already_are_taken_in() -> None:
    scheduler = open_scheduler("static", A)
    scheduler.adopt(job("1", 6), "a", 100.0, elapsed_s=50.0, left_s=None)
    scheduler.adopt(job("2", 4), "a", 100.0, elapsed_s=0.0, left_s=5.0)  # more than is free: not believed
    scheduler.adopt_waiting(job("3", 8), "a", 100.0)
    site = scheduler.sites["a"]
    assert (site.free, site.own, scheduler.free_gpus) == (2, 1, 2)
    assert site.ends == [(100.0 + HOUR - 50.0, 6)]
    late = scheduler.expected_start_s(site, job("4", 8), 100.0)
    assert late == pytest.approx(100.0 + HOUR - 50.0 + 8 * HOUR / 8)
    empty = open_scheduler("static", A)
    assert empty.expected_start_s(empty.sites["a"], job("4", 8), 7.0) == 7.0


def test_a_job_that_outlives_what_was_expected_is_learned_from_when_it_does() -> None:
    scheduler = open_scheduler("static", A)
    learned = scheduler.times.learned  # type: ignore[attr-defined]
    submit(scheduler, job("1"))
    scheduler.handle(Tick(HOUR))
    assert learned == []
    scheduler.handle(Tick(HOUR + 1))
    assert learned == [("1", pytest.approx(HOUR * 1.001))]
    scheduler.handle(Finished("1", 2 * HOUR))
    assert len(learned) == 1, "it was counted already"
    submit(scheduler, job("2"), at_s=2 * HOUR)
    scheduler.handle(Finished("2", 2.5 * HOUR))
    assert learned[1] == ("2", 0.5 * HOUR)


@pytest.mark.parametrize(
    ("wanted", "clusters", "words"),
    [
        (job("1", 4, kind="h200"), (Cluster(name="a", gpus=8, kind="a100"),), "which no cluster has (a100)"),
        (job("1", 4, kind="h200"), (A,), "no kind is named"),
        (job("1", 9), (A, B), "it fits with 8 GPUs, or in a cluster of 9"),
        (job("1", 8, one_leaf=True), (Cluster(name="a", gpus=8, leaf_gpus=4),), "the largest leaf has 4"),
        (job("1", 8, user="eve"), (Cluster(name="a", gpus=8, quotas=(("eve", 4),)),), "a quota of 'eve' is below that"),
    ],
)
def test_a_job_that_fits_nowhere_is_refused_with_the_reason(
    wanted: Job, clusters: tuple[Cluster, ...], words: str
) -> None:
    assert words in explain_misfit(wanted, clusters)
    with pytest.raises(BadConfigError, match="job 1 wants"):
        submit(open_scheduler("multikueue-all", *clusters), wanted)
    assert not open_scheduler("static").fits(job("1", home="nowhere"))

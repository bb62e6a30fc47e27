"""The scheduler's rules at their borders: what is still allowed, what is counted, and what is expected of nothing."""

from __future__ import annotations

from dataclasses import replace

import pytest
from test_planner import make_planner
from test_schedule_parts import MODEL, PRIOR, make_desk, make_pool, make_work, memories, part
from test_scheduler import MODEL as STEP_1
from test_scheduler import make_dataset, make_priors, of, start

from prism.errors import PrismError
from prism.evaluate.schedule import events
from prism.evaluate.schedule.actions import Finish, LoadCheckpoint, ReportFailure, StartInference
from prism.evaluate.schedule.bound import Supply, _fits, _needed_s, lower_bound_s
from prism.evaluate.schedule.cluster import RunningTrial
from prism.evaluate.schedule.cutting import CuttingConfig, Outlook, cut_trial
from prism.evaluate.schedule.hardware import Hardware
from prism.evaluate.schedule.ledger import Ledger
from prism.evaluate.schedule.packing import Slot, _urgency, pack
from prism.evaluate.schedule.priors import Prior, Priors, Record
from prism.evaluate.schedule.scheduler import Scheduler, SchedulerConfig
from prism.evaluate.schedule.score_queue import ScoreQueue, Scoring
from prism.evaluate.schedule.standing import measure_progress
from prism.evaluate.schedule.transfers import TransferPolicy, choose_transfers
from prism.evaluate.schedule.trials import Checkpoint, Dataset, Kept, Worker

LARGE = Checkpoint(name="large", path="", bytes=10 * 10**9, parameters=7 * 10**9)
TASK = Dataset(name="task", adapter="builtin", task="task", samples=100, tokens=1000)


def run_of(scheduler: Scheduler, worker: str) -> RunningTrial:
    """What a worker runs now."""
    running = scheduler._cluster.states[worker].running
    assert running is not None
    return running


def fail(scheduler: Scheduler, worker: str, now_s: float) -> None:
    """Let a worker's trial break."""
    trial = run_of(scheduler, worker).trial.id
    scheduler.handle(events.InferenceFailed(now_s=now_s, trial=trial, failure=events.Failure.OTHER, text="broken"))


# -- workers


def test_a_worker_that_joins_again_has_lost_its_trial() -> None:
    scheduler = Scheduler([STEP_1], [make_dataset("d", 1000)], make_priors(1.0, "d"))
    start(scheduler)
    again = scheduler.handle(events.WorkerJoined(now_s=5, worker=Worker(id="n0g0", node="n0", gpus=(0,))))
    (started,) = of(StartInference, again)
    assert started.trial.parts[0].first == 0 and scheduler.progress(5).trials_running == 1


@pytest.mark.parametrize(
    ("event", "blamed"),
    [
        (events.WorkerLost(now_s=5, worker="n0g0"), True),
        (events.NodeLost(now_s=5, node="n0"), False),
        (events.Preempted(now_s=5, workers=("n0g0",)), False),
    ],
    ids=["died", "lost with its node", "taken away"],
)
def test_a_dataset_is_blamed_for_workers_that_died_and_for_no_others(event: events.Event, blamed: bool) -> None:
    config = SchedulerConfig(max_losses=0)
    scheduler = Scheduler([STEP_1], [make_dataset("d", 1)], make_priors(1.0, "d"), config)
    start(scheduler)
    assert bool(of(ReportFailure, scheduler.handle(event))) is blamed is scheduler.over


def test_a_worker_is_suspended_after_failures_in_a_row_and_only_where_there_is_another() -> None:
    config = SchedulerConfig(max_strikes=2, max_attempts=9)
    scheduler = Scheduler([STEP_1], [make_dataset("d", 1000)], make_priors(1.0, "d"), config)
    start(scheduler, gpus=2)
    state = scheduler._cluster.states["n0g0"]
    fail(scheduler, "n0g0", 5)
    running = run_of(scheduler, "n0g0")
    done = events.PartInferred(now_s=6, trial=running.trial.id, part=running.left[0], seconds=1)
    scheduler.handle(done)  # it works again, so that the next failure is the first
    scheduler.handle(events.InferenceFinished(now_s=6, trial=running.trial.id))
    fail(scheduler, "n0g0", 7)
    assert state.suspended == ""
    fail(scheduler, "n0g0", 8)
    assert state.suspended == "broken"
    alone = Scheduler([STEP_1], [make_dataset("d", 1000)], make_priors(1.0, "d"), config)
    start(alone)
    for now_s in (5, 6, 7):
        fail(alone, "n0g0", now_s)
    assert alone._cluster.states["n0g0"].suspended == ""


def test_what_a_suspended_worker_had_to_do_goes_to_the_others() -> None:
    models = [replace(STEP_1, name=name) for name in ("one", "two")]
    scheduler = Scheduler(models, [make_dataset("d", 1000)], make_priors(1.0, "d"), SchedulerConfig(max_strikes=1))
    start(scheduler, nodes=3)
    groups = [state.group for state in scheduler._cluster.states.values()]
    alone = next(
        name for name, group in zip(scheduler._cluster.states, groups, strict=True) if groups.count(group) == 1
    )
    fail(scheduler, alone, 5)
    assert scheduler._cluster.states[alone].suspended == "broken"
    running = run_of(scheduler, scheduler._cluster.usable[0].worker.id)
    scheduler.handle(events.InferenceFinished(now_s=6, trial=running.trial.id))
    assert {state.group for state in scheduler._cluster.usable} == {"one", "two"}


@pytest.mark.parametrize("lost", [True, False], ids=["the worker is gone", "the worker is still there"])
def test_a_failed_part_waits_for_a_worker_without_loading_its_model_again(lost: bool) -> None:
    scheduler = Scheduler([STEP_1], [make_dataset("d", 1, splittable=False)], make_priors(1.0, "d"))
    start(scheduler, nodes=2)
    (busy,) = (state.worker.id for state in scheduler._cluster.states.values() if state.running)
    scheduler._cluster.memories["n1" if busy == "n0g0" else "n0"].loaded["step-1"] = 1000
    gone = [events.WorkerLost(now_s=5, worker=f"n{n}g0") for n in (0, 1)] if lost else []
    trial = run_of(scheduler, busy).trial.id
    failed = events.InferenceFailed(now_s=5, trial=trial, failure=events.Failure.OTHER, text="broken")
    answers = scheduler.handle(failed, *gone)
    assert not of(LoadCheckpoint, answers)
    pool = scheduler._ledger.pools["step-1"]["d"]
    assert (len(pool.retrying), len(pool.running), len(of(StartInference, answers))) == (lost, not lost, not lost)


def test_a_load_that_is_over_began_at_no_time() -> None:
    scheduler = Scheduler([STEP_1], [make_dataset("d", 10)], make_priors(1.0, "d"))
    start(scheduler, load=False)
    memory = scheduler._cluster.memories["n0"]
    assert memory.began_s == {"step-1": 0}
    scheduler.handle(events.CheckpointLoaded(now_s=4, node="n0", checkpoint="step-1", seconds=4.0))
    assert memory.began_s == {}


def test_the_end_is_announced_once() -> None:
    scheduler = Scheduler([STEP_1], [make_dataset("d", 1)], make_priors(1.0, "d"))
    start(scheduler)
    running = run_of(scheduler, "n0g0")
    (one,) = running.left
    answers = scheduler.handle(events.PartInferred(now_s=5, trial=running.trial.id, part=one, seconds=1))
    assert not of(Finish, answers)
    finished = events.ScoreFinished(now_s=6, part=one, seconds=1)
    assert len(of(Finish, scheduler.handle(finished))) == 1
    assert not of(Finish, scheduler.handle(events.Tick(now_s=7)))


def test_a_worker_keeps_the_datasets_that_it_used_last() -> None:
    config = SchedulerConfig(kept_datasets=2)
    datasets = [make_dataset(name, 1) for name in "abc"]
    scheduler = Scheduler([STEP_1], datasets, make_priors(0.01, *"abc"), config)
    start(scheduler)
    running = run_of(scheduler, "n0g0")
    names = [one.dataset for one in running.trial.parts]
    assert len(names) == 3
    for one in list(running.left):
        scheduler.handle(events.PartInferred(now_s=5, trial=running.trial.id, part=one, seconds=0.01))
    assert scheduler._cluster.states["n0g0"].held == names[1:]


def test_a_trial_is_served_from_its_start_to_its_end() -> None:
    scheduler = Scheduler([STEP_1], [make_dataset("d", 1000)], make_priors(1.0, "d"))
    start(scheduler)
    began_s = run_of(scheduler, "n0g0").began_s
    scheduler.handle(events.InferenceFinished(now_s=began_s + 8, trial=run_of(scheduler, "n0g0").trial.id))
    assert scheduler._planner.served_s == {"step-1": 8}


def test_a_part_that_is_tried_again_needs_start_set_up_and_all_of_its_samples() -> None:
    scheduler = Scheduler([STEP_1], [make_dataset("d", 4, splittable=False)], make_priors(2.0, "d"))
    start(scheduler)
    fail(scheduler, "n0g0", 5)
    assert run_of(scheduler, "n0g0").trial.expected_s == pytest.approx(1 + 1 + 4 * 2)


def test_a_score_is_expected_to_take_as_long_as_its_samples_do() -> None:
    scheduler = Scheduler([STEP_1], [make_dataset("d", 1000)], make_priors(1.0, "d"))
    start(scheduler, cpus=0)  # nobody scores, so that all scores wait
    running = run_of(scheduler, "n0g0")
    (one,) = running.left
    scheduler.handle(events.PartInferred(now_s=5, trial=running.trial.id, part=one, seconds=1))
    assert scheduler._scores.waiting == {one: pytest.approx(one.samples * 0.1)}


def test_the_speed_of_storage_is_that_of_the_last_load_from_it() -> None:
    config = SchedulerConfig(storage_bytes_per_s=100.0)
    scheduler = Scheduler([STEP_1], [make_dataset("d", 10)], make_priors(1.0, "d"), config)
    start(scheduler, load=False)
    assert scheduler._load_s(STEP_1) == 10.0
    scheduler.handle(events.CheckpointLoaded(now_s=4, node="n0", checkpoint="step-1", seconds=4.0))
    assert scheduler._load_s(STEP_1) == 4.0


@pytest.mark.parametrize(
    ("hardware", "readers", "gbps"),
    [
        (Hardware(storage_total_gbps=50), 1, 50),
        (Hardware(storage_gbps=100, storage_total_gbps=50), 1, 50),
        (Hardware(storage_gbps=20, storage_total_gbps=50), 2, 20),
        (Hardware(storage_gbps=20), 0, 20),
    ],
)
def test_as_many_nodes_read_at_once_as_storage_can_serve(hardware: Hardware, readers: int, gbps: float) -> None:
    config = SchedulerConfig.from_hardware(hardware)
    assert config.transfers == TransferPolicy(storage_readers=readers)
    assert config.storage_bytes_per_s == pytest.approx(gbps * 1e9 / 8)


def test_a_node_without_failed_loads_may_try_once() -> None:
    planner = make_planner()
    planner.max_load_attempts = 1
    state = planner.cluster.states["w0"]
    assert planner.can_run(state, planner.ledger.checkpoints["m"])
    assert not planner.cluster.is_near(state, "m")
    planner.cluster.memories["n0"].loaded["m"] = 10
    assert planner.cluster.is_near(state, "m")


@pytest.mark.parametrize(("loading", "allowed"), [(1, True), (2, False)])
def test_readers_of_storage_are_counted(loading: int, allowed: bool) -> None:
    nodes = memories(a={}, b={}, c={})
    for name in list(nodes)[:loading]:
        nodes[name].loading["m"] = None
    found = choose_transfers([("c", "m")], nodes, {"m": 10}, TransferPolicy(storage_readers=2))
    assert bool(found) is allowed


# -- what is counted


def test_outputs_of_an_earlier_run_are_kept_for_its_checkpoint() -> None:
    ledger = Ledger(datasets=[Dataset(name="d", adapter="builtin", task="", samples=10)], priors=Priors())
    (pool,) = ledger.add(MODEL, Kept(inferred=(part(0, 4),)))
    assert pool.outputs == {part(0, 4)} and pool.waiting == [part(4, 10)]


def test_scores_that_wait_and_scores_that_run_are_not_done() -> None:
    planner = make_planner()
    scores = ScoreQueue(waiting={part(0, 1): 1.0, part(1, 2): 1.0})
    scores.running[part(2, 3)] = Scoring(node="n0", attempt=1)
    seen = measure_progress(planner.ledger, planner.cluster, scores, trials_done=0, left_s=1.0)
    assert seen.scores_waiting == 3


def test_scores_wait_for_the_cpus_there_are() -> None:
    for cpus, expected_s in ((0, 6.0), (1, 6.0), (3, 2.0)):
        assert ScoreQueue(waiting={part(0, 1): 6.0}, cpus={"a": cpus}).expected_s == expected_s


def test_a_score_goes_to_the_node_with_most_free_cpus() -> None:
    queue = ScoreQueue(cpus={"a": 3, "b": 2}, busy={"a": 2})
    queue.add(part(0, 1), 1.0, None)
    assert queue.start()[0][1].node == "b"
    assert [scoring.node for scoring in queue.running.values()] == ["b"] and queue.busy == {"a": 2, "b": 1}


# -- cutting and packing


def test_datasets_of_ten_seconds_together_share_a_trial_unless_told_otherwise() -> None:
    prior = replace(PRIOR, setup_s=0.0)
    for samples, together in ((5, True), (6, False)):  # the second one would end at 10 s, or at 11 s
        pools = {"a": make_pool(5, prior, name="a", splittable=False)}
        pools["b"] = make_pool(samples, prior, name="b", splittable=False)
        trial = cut_trial(make_desk(("a", 5), ("b", samples)), pools, "t", CuttingConfig(), Outlook())
        assert trial is not None and (len(trial.parts) == 2) is together


def test_a_worker_goes_on_with_what_it_holds_as_long_as_the_last_score_allows() -> None:
    work = make_work("a", 20, score_s=3.0)
    slots = [Slot(worker="w0", ready_s=0.0, held=(work.key,))]
    assert pack(slots, [work], 1.0).end_s == pytest.approx(20 + 3, rel=0.02)


@pytest.mark.parametrize(
    ("prior", "outlook", "count"),
    [
        (replace(PRIOR, infer_s=0.5, score_s=0.0), Outlook(left_s=10.0), 20),  # what infers within the 10 s left
        (replace(PRIOR, infer_s=0.5, score_s=2.0, measured=False), Outlook(), 1),  # unproven: as little as possible
    ],
    ids=["until the end", "a part whose score alone is long enough"],
)
def test_a_part_is_as_long_as_its_run_time_and_score_ask_for(prior: Prior, outlook: Outlook, count: int) -> None:
    config = CuttingConfig(min_part_s=1.0)
    trial = cut_trial(make_desk(("d", 100)), {"d": make_pool(prior=prior)}, "t", config, outlook)
    assert trial is not None and trial.parts == (part(0, count),)


def test_the_longest_is_placed_first_and_cut_where_it_would_end_after_all_others() -> None:
    slots = [Slot(worker=f"w{i}", ready_s=0.0) for i in range(3)]
    done = pack(slots, [make_work("long", 90), make_work("short", 20), make_work("tiny", 4)], 1.0)
    takers = [{share.key[1] for share in done.queues[slot.worker]} for slot in slots]
    assert sum("long" in names for names in takers) == 3 and sum("short" in names for names in takers) == 1
    assert done.end_s <= 1.05 * (90 + 20 + 4) / 3


def test_what_cannot_be_split_is_placed_first_then_guesses_then_what_takes_long() -> None:
    works = [
        make_work("short", 10),
        make_work("long", 20, score_s=9.0),
        make_work("guess", 1, trusted=False),
        make_work("whole", 10, infer_s=3.0, splittable=False),
        make_work("judged", 10, score_s=5.0, splittable=False),
    ]
    found = sorted(works, key=_urgency)
    assert [work.key[1] for work in found] == ["judged", "whole", "guess", "long", "short"]


# -- the bound


def test_a_share_that_leaves_no_room_for_another_has_its_worker_for_itself() -> None:
    supply = Supply(ready_s=(0.0, 0.0, 6.0), start_s=0.0, cpus=1)  # the third worker has no room before 6 s
    large = [make_work(name, 1, setup_s=1.0, infer_s=4.7, splittable=False) for name in "ab"]
    small = make_work("c", 1, setup_s=0.4, infer_s=0.1, splittable=False)
    assert _fits(large, supply, 6.0) and not _fits([*large, small], supply, 6.0)


@pytest.mark.parametrize(
    ("samples", "shared_s", "smallest_s", "needed_s"),
    [
        (10, 4.0, 6.0, 12.0),  # two workers of 1 + 5 s
        (13, 4.0, 6.0, 16.0),  # and a share of 1 + 3 s beside others
        (13, 1.0, 6.0, 18.0),  # no share fits beside others, so that a third worker is taken
        (13, 1.0, 1.0, 16.0),  # which needs to be no larger than the share
    ],
)
def test_a_dataset_is_made_ready_as_often_as_it_is_shared(
    samples: int, shared_s: float, smallest_s: float, needed_s: float
) -> None:
    work = make_work("a", samples, setup_s=1.0)
    assert _needed_s(work, 6.0, smallest_s, shared_s) == pytest.approx(needed_s)


@pytest.mark.parametrize(("splittable", "bound_s"), [(True, 3.0), (False, 21.0)])
def test_nothing_ends_before_its_smallest_piece_is_inferred_and_scored(splittable: bool, bound_s: float) -> None:
    supply = Supply(ready_s=(0.0,) * 1000, start_s=0.0, cpus=1000)
    work = make_work("a", 10, setup_s=1.0, score_s=1.0, splittable=splittable)
    assert lower_bound_s([work], supply) == pytest.approx(bound_s, rel=1e-3)
    assert lower_bound_s([make_work("b", 1), work], supply) == pytest.approx(bound_s, rel=1e-3)


def test_the_bound_of_a_run_counts_its_shortest_start() -> None:
    records = [
        Record(dataset=name, parameters=10, infer_s=1.0, setup_s=0.0, start_s=start_s, score_s=0.0)
        for name, start_s in (("a", 2.0), ("b", 50.0))
    ]
    scheduler = Scheduler([STEP_1], [make_dataset("a", 10), make_dataset("b", 10)], Priors(records))
    start(scheduler, load=False)
    assert scheduler.lower_bound_s() == pytest.approx(2.0 + 20.0, abs=0.01)


# -- run times


def test_a_record_of_half_a_second_is_a_record_and_one_of_less_than_nothing_is_none() -> None:
    for name in ("infer_s", "score_s", "setup_s", "start_s"):
        assert getattr(Record(dataset="d", parameters=1, **{name: 0.5}), name) == 0.5
        with pytest.raises(PrismError, match=name):
            Record(dataset="d", parameters=1, **{name: -0.5})


def test_nothing_known_is_a_billion_parameters_and_512_tokens() -> None:
    priors = Priors()
    sizes = [replace(LARGE, parameters=parameters) for parameters in (0, 10**9)]
    assert len({priors.prior(TASK, size).infer_s for size in sizes}) == 1
    assert priors.prior(replace(TASK, tokens=0), LARGE).infer_s == pytest.approx(2 * 7e9 * 512 / 1e14)
    least = priors.prior(replace(TASK, tokens=1), replace(LARGE, parameters=1))
    assert (least.infer_s, least.setup_s, least.score_s, least.start_s) == (1e-3, 2.0, 1e-3, 5.0 + 10 / 5)


def test_a_record_of_unknown_size_is_further_than_one_of_a_known_size() -> None:
    records = [Record(dataset="task", parameters=n, setup_s=float(n or 7)) for n in (0, 10**8)]
    assert Priors(records).prior(TASK, LARGE).setup_s == 1e8


def test_a_checkpoint_that_was_never_served_has_had_nothing() -> None:
    planner = make_planner()
    assert planner._demand(planner.ledger.checkpoints["m"]).served_s == 0.0

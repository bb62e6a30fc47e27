"""What the scheduler answers to single events."""

from __future__ import annotations

import pytest
from hazards import Hazards

from prism.errors import BadConfigError
from prism.evaluate.schedule import events
from prism.evaluate.schedule.actions import (
    Action,
    LoadCheckpoint,
    ReleaseCheckpoint,
    ReportFailure,
    StartInference,
    StartScore,
)
from prism.evaluate.schedule.hardware import Hardware
from prism.evaluate.schedule.priors import Priors, Record
from prism.evaluate.schedule.scheduler import Scheduler, SchedulerConfig
from prism.evaluate.schedule.transfers import TransferPolicy
from prism.evaluate.schedule.trials import Checkpoint, Dataset, Node, Part, Worker

MODEL = Checkpoint(name="step-1", path="", bytes=1_000, parameters=10, step=1)


def make_dataset(name: str, samples: int, **fields: bool) -> Dataset:
    return Dataset(name=name, adapter="builtin", task=name, samples=samples, **fields)  # type: ignore[arg-type]


def make_priors(infer_s: float, *names: str) -> Priors:
    return Priors(
        [Record(dataset=name, parameters=10, infer_s=infer_s, setup_s=1.0, start_s=1.0, score_s=0.1) for name in names]
    )


def start(scheduler: Scheduler, *, nodes: int = 1, gpus: int = 1, load: bool = True, cpus: int = 4) -> list[Action]:
    """Bring up nodes with workers, and load what is asked for; returns the last answers."""
    answers: list[Action] = []
    for n in range(nodes):
        answers += scheduler.handle(events.NodeJoined(now_s=0, node=Node(id=f"n{n}", cpus=cpus)))
        for g in range(gpus):
            worker = Worker(id=f"n{n}g{g}", node=f"n{n}", gpus=(g,))
            answers += scheduler.handle(events.WorkerJoined(now_s=0, worker=worker))
    for action in answers if load else []:  # grows while it is gone through
        if isinstance(action, LoadCheckpoint):
            loaded = events.CheckpointLoaded(now_s=1, node=action.node, checkpoint=action.checkpoint, seconds=1)
            answers += scheduler.handle(loaded)
    return answers


def of(kind: type, answers: list[Action]) -> list:  # type: ignore[type-arg]
    return [action for action in answers if isinstance(action, kind)]


def test_a_checkpoint_is_loaded_once_per_node_however_many_workers_wait() -> None:
    scheduler = Scheduler([MODEL], [make_dataset("d", 100)], make_priors(1.0, "d"))
    answers = start(scheduler, gpus=8, load=False)
    assert of(LoadCheckpoint, answers) == [LoadCheckpoint(node="n0", checkpoint="step-1")]
    assert not of(StartInference, answers)


def test_a_loaded_checkpoint_starts_every_worker() -> None:
    scheduler = Scheduler([MODEL], [make_dataset("d", 1000)], make_priors(1.0, "d"))
    started = of(StartInference, start(scheduler, gpus=4))
    assert {action.worker for action in started} == {"n0g0", "n0g1", "n0g2", "n0g3"}


def test_a_model_that_was_there_at_once_is_taken_as_loaded() -> None:
    scheduler = Scheduler([MODEL], [make_dataset("d", 1000)], make_priors(1.0, "d"))
    start(scheduler, load=False)
    loaded = events.CheckpointLoaded(now_s=1, node="n0", checkpoint="step-1", seconds=0.0)
    assert of(StartInference, scheduler.handle(loaded))


def test_small_datasets_share_a_trial() -> None:
    names = [f"d{i}" for i in range(5)]
    scheduler = Scheduler([MODEL], [make_dataset(name, 10) for name in names], make_priors(0.01, *names))
    (started,) = of(StartInference, start(scheduler))
    assert len(started.trial.parts) > 1


def test_a_dataset_that_cannot_be_split_stays_whole() -> None:
    scheduler = Scheduler([MODEL], [make_dataset("d", 1000, splittable=False)], make_priors(1.0, "d"))
    (started,) = of(StartInference, start(scheduler, gpus=4))
    assert started.trial.parts == (Part(checkpoint="step-1", dataset="d", first=0, last=1000),)


def test_long_scores_of_whole_datasets_are_inferred_first() -> None:
    datasets = [make_dataset("quick", 10, splittable=False), make_dataset("judged", 10, splittable=False)]
    records = [
        Record(dataset="quick", parameters=10, infer_s=3.0, score_s=0.0, setup_s=1, start_s=1),
        Record(dataset="judged", parameters=10, infer_s=2.0, score_s=100.0, setup_s=1, start_s=1),
    ]
    (started,) = of(StartInference, start(Scheduler([MODEL], datasets, Priors(records))))
    assert started.trial.parts[0].dataset == "judged"


def test_outputs_are_scored_where_they_were_written_while_the_worker_goes_on() -> None:
    scheduler = Scheduler([MODEL], [make_dataset("d", 1000)], make_priors(1.0, "d"))
    (started,) = of(StartInference, start(scheduler))
    (part,) = started.trial.parts
    answers = scheduler.handle(events.PartInferred(now_s=9, trial=started.trial.id, part=part, seconds=5))
    assert of(StartScore, answers) == [StartScore(part=part, node="n0")]
    answers = scheduler.handle(events.InferenceFinished(now_s=9, trial=started.trial.id))
    assert of(StartInference, answers)[0].worker == "n0g0"


def test_a_failed_score_is_tried_again_on_kept_outputs_then_reported() -> None:
    hazards = Hazards(scheduler=Scheduler([MODEL], [make_dataset("d", 1)], make_priors(1.0, "d")), choose=lambda n: 0)
    hazards.join("a", 0)
    hazards.step()
    hazards.step()
    (part,) = hazards.scores
    for _ in range(3):
        assert not hazards.running, "a metric's failure must not cost an inference"
        hazards.fail_score(part)
    assert hazards.given_up == {("step-1", "d", 0)}
    assert hazards.scheduler.over


def test_a_trial_out_of_memory_is_tried_with_half_the_batch_then_reported() -> None:
    scheduler = Scheduler([MODEL], [make_dataset("d", 1)], make_priors(1.0, "d"))
    (started,) = of(StartInference, start(scheduler))
    shrinks = []
    while True:
        shrinks.append(started.trial.shrink)
        failed = events.InferenceFailed(
            now_s=5, trial=started.trial.id, failure=events.Failure.MEMORY, text="out of memory"
        )
        answers = scheduler.handle(failed)
        if not of(StartInference, answers):
            break
        (started,) = of(StartInference, answers)
    assert shrinks == [0, 1, 2]
    assert scheduler.over
    assert scheduler.progress(6).failed == 1


def test_a_failed_part_is_tried_on_another_worker() -> None:
    scheduler = Scheduler([MODEL], [make_dataset("d", 1)], make_priors(1.0, "d"))
    (started,) = of(StartInference, start(scheduler, gpus=2))
    failed = events.InferenceFailed(now_s=5, trial=started.trial.id, failure=events.Failure.OTHER, text="broken")
    (again,) = of(StartInference, scheduler.handle(failed))
    assert again.worker != started.worker
    assert again.trial.attempt == 2


def test_a_worker_with_a_full_disk_gets_no_more_trials() -> None:
    scheduler = Scheduler([MODEL], [make_dataset("d", 100)], make_priors(1.0, "d"))
    started = of(StartInference, start(scheduler, gpus=2))
    full = started[0]
    scheduler.handle(
        events.InferenceFailed(now_s=5, trial=full.trial.id, failure=events.Failure.DISK, text="no space left")
    )
    hazards_left = [action for action in scheduler.handle(events.Tick(now_s=6)) if isinstance(action, StartInference)]
    assert all(action.worker != full.worker for action in hazards_left)
    assert not scheduler.over


def test_a_batch_that_ran_out_of_memory_is_halved_from_the_start_in_the_next_run() -> None:
    priors = make_priors(1.0, "d")
    scheduler = Scheduler([MODEL], [make_dataset("d", 100)], priors)
    (started,) = of(StartInference, start(scheduler))
    scheduler.handle(
        events.InferenceFailed(now_s=3, trial=started.trial.id, failure=events.Failure.MEMORY, text="out of memory")
    )
    assert priors.halvings(make_dataset("d", 100), MODEL) == 1


def test_a_dataset_of_which_nothing_ever_worked_is_given_up_whole_and_others_go_on() -> None:
    config = SchedulerConfig(max_attempts=1, max_failed_parts=9)
    scheduler = Scheduler([MODEL], [make_dataset(name, 100) for name in "de"], make_priors(1.0, "d", "e"), config)
    (started,) = of(StartInference, start(scheduler))
    broken = started.trial.parts[0].dataset
    failed = events.InferenceFailed(now_s=3, trial=started.trial.id, failure=events.Failure.OTHER, text="no prompt")
    answers = scheduler.handle(failed)
    assert {report.text for report in of(ReportFailure, answers)} == {"no prompt"}
    assert scheduler.progress(3).failed == 100
    assert {part.dataset for part in of(StartInference, answers)[0].trial.parts} == {*"de"} - {broken}


def test_a_dataset_of_which_something_worked_loses_the_failed_part_alone() -> None:
    config = SchedulerConfig(max_attempts=1, max_failed_parts=9)
    scheduler = Scheduler([MODEL], [make_dataset("d", 100)], make_priors(1.0, "d"), config)
    (started,) = of(StartInference, start(scheduler))
    (part,) = started.trial.parts
    scheduler.handle(events.PartInferred(now_s=5, trial=started.trial.id, part=part, seconds=5))
    (second,) = of(StartInference, scheduler.handle(events.InferenceFinished(now_s=5, trial=started.trial.id)))
    failed = events.InferenceFailed(now_s=9, trial=second.trial.id, failure=events.Failure.OTHER, text="broken")
    assert of(StartInference, scheduler.handle(failed))
    assert scheduler.progress(9).failed == sum(lost.samples for lost in second.trial.parts) < 100 - part.samples


def test_scores_of_a_lost_node_are_made_elsewhere_and_its_model_is_forgotten() -> None:
    scheduler = Scheduler([MODEL], [make_dataset("d", 1000)], make_priors(1.0, "d"))
    first, _ = of(StartInference, start(scheduler, nodes=2))
    (part,) = first.trial.parts
    home = first.worker[:2]
    told = scheduler.handle(events.PartInferred(now_s=9, trial=first.trial.id, part=part, seconds=5))
    assert of(StartScore, told) == [StartScore(part=part, node=home)]
    answers = scheduler.handle(events.NodeLost(now_s=10, node=home))
    assert of(StartScore, answers) == [StartScore(part=part, node="n1" if home == "n0" else "n0")]
    assert scheduler.progress(10).workers == 1
    scheduler.handle(events.NodeJoined(now_s=11, node=Node(id=home)))
    answers = scheduler.handle(events.WorkerJoined(now_s=11, worker=Worker(id="new", node=home, gpus=(0,))))
    assert of(LoadCheckpoint, answers) == [LoadCheckpoint(node=home, checkpoint="step-1")]


def test_when_every_disk_is_full_what_waits_is_reported() -> None:
    scheduler = Scheduler([MODEL], [make_dataset("d", 100)], make_priors(1.0, "d"))
    (started,) = of(StartInference, start(scheduler))
    scheduler.handle(
        events.InferenceFailed(now_s=5, trial=started.trial.id, failure=events.Failure.DISK, text="no space left")
    )
    assert scheduler.over
    assert scheduler.progress(5).failed == 100


def test_a_lost_workers_trial_runs_again() -> None:
    scheduler = Scheduler([MODEL], [make_dataset("d", 1)], make_priors(1.0, "d"))
    (started,) = of(StartInference, start(scheduler, gpus=2))
    (again,) = of(StartInference, scheduler.handle(events.WorkerLost(now_s=5, worker=started.worker)))
    assert again.trial.parts == started.trial.parts
    assert again.worker != started.worker


def test_a_part_that_kills_worker_after_worker_is_given_up() -> None:
    hazards = Hazards(scheduler=Scheduler([MODEL], [make_dataset("d", 1)], make_priors(1.0, "d")), choose=lambda n: 0)
    deaths = 0
    while not hazards.scheduler.over:
        hazards.join("a", 0)
        while not hazards.running:
            assert hazards.step()
        hazards.lose_worker("a.0")
        deaths += 1
    assert deaths == hazards.scheduler.config.max_losses + 1
    assert hazards.given_up


def test_what_a_preempted_worker_had_not_written_waits_for_it_to_come_back() -> None:
    scheduler = Scheduler([MODEL], [make_dataset("d", 100)], make_priors(1.0, "d"))
    (started,) = of(StartInference, start(scheduler))
    assert scheduler.handle(events.Preempted(now_s=3, workers=(started.worker,))) == []
    back = events.WorkerJoined(now_s=9, worker=Worker(id="n0g0", node="n0", gpus=(0,)))
    (again,) = of(StartInference, scheduler.handle(back))
    assert again.trial.parts[0].first == 0


def test_two_workers_with_one_gpu_are_not_both_taken() -> None:
    scheduler = Scheduler([MODEL], [make_dataset("d", 100)], make_priors(1.0, "d"))
    start(scheduler)
    scheduler.handle(events.WorkerJoined(now_s=2, worker=Worker(id="other", node="n0", gpus=(0, 1))))
    assert scheduler.progress(2).workers == 1


def test_a_wrong_prior_moves_workers_to_where_they_are_needed() -> None:
    """Two datasets that look alike, one ten times as long: its second half must not be left to one worker."""
    datasets = [make_dataset("short", 100), make_dataset("long", 100)]
    scheduler = Scheduler([MODEL], datasets, make_priors(1.0, "short", "long"))
    hazards = Hazards(
        scheduler=scheduler,
        choose=lambda n: 0,
        seconds=lambda part: part.samples * (10.0 if part.dataset == "long" else 1.0),
    )
    for gpu in range(2):
        hazards.join("a", gpu)
    helpers: set[str] = set()
    while not scheduler.over:
        helpers |= {w for w, (trial, _) in hazards.running.items() if any(p.dataset == "long" for p in trial.parts)}
        if not hazards.step():
            hazards.send(events.Tick)
    assert helpers == {"a.0", "a.1"}


def test_hardware_that_joins_late_gets_work() -> None:
    scheduler = Scheduler([MODEL], [make_dataset("d", 1000)], make_priors(1.0, "d"))
    start(scheduler)
    scheduler.handle(events.NodeJoined(now_s=5, node=Node(id="n9")))
    answers = scheduler.handle(events.WorkerJoined(now_s=5, worker=Worker(id="n9g0", node="n9", gpus=(0,))))
    assert of(LoadCheckpoint, answers) == [LoadCheckpoint(node="n9", checkpoint="step-1")]
    loaded = events.CheckpointLoaded(now_s=6, node="n9", checkpoint="step-1", seconds=1)
    assert of(StartInference, scheduler.handle(loaded))[0].worker == "n9g0"


def test_on_a_narrow_link_nodes_take_turns_and_pass_the_model_on() -> None:
    config = SchedulerConfig(transfers=TransferPolicy(storage_readers=1, pass_on=True))
    scheduler = Scheduler([MODEL], [make_dataset("d", 1000)], make_priors(1.0, "d"), config)
    answers = start(scheduler, nodes=3, load=False)
    (first,) = of(LoadCheckpoint, answers)
    assert first.source is None
    loaded = events.CheckpointLoaded(now_s=1, node=first.node, checkpoint="step-1", seconds=1)
    answers = of(LoadCheckpoint, scheduler.handle(loaded))
    # One of the two that wait fetches from the first node, the other takes the free link to storage.
    assert {action.source for action in answers} == {first.node, None}


def test_a_load_that_fails_everywhere_is_reported_and_others_go_on() -> None:
    good = Checkpoint(name="good", path="", bytes=1, parameters=10, step=2)
    scheduler = Scheduler([MODEL, good], [make_dataset("d", 2)], make_priors(1.0, "d"))
    hazards = Hazards(scheduler=scheduler, choose=lambda n: 0)
    hazards.join("a", 0)
    for _ in range(50):
        bad = [i for i, (_, name) in enumerate(hazards.loads) if name == "step-1"]
        if bad:
            node, name = hazards.loads.pop(bad[0])
            hazards.send(events.LoadFailed, node=node, checkpoint=name, text="404")
        elif not hazards.step():
            break
    assert scheduler.over
    assert {name for name, _, _ in hazards.given_up} == {"step-1"}
    assert {name for name, _, _ in hazards.scored} == {"good"}


def test_a_node_that_cannot_load_one_checkpoint_works_on_another() -> None:
    datasets = [make_dataset("d", 400)]
    other = Checkpoint(name="other", path="", bytes=1, parameters=10, step=2)
    scheduler = Scheduler([MODEL, other], datasets, make_priors(1.0, "d"))
    hazards = Hazards(scheduler=scheduler, choose=lambda n: 0)
    hazards.join("sick", 0)
    for _ in range(3):
        index = next(i for i, (_, name) in enumerate(hazards.loads) if name == "step-1")
        node, name = hazards.loads.pop(index)
        hazards.send(events.LoadFailed, node=node, checkpoint=name, text="no route")
        hazards.join("good", 0)
    while not hazards.running:
        assert hazards.step()
    assert {trial.checkpoint for worker, (trial, _) in hazards.running.items() if worker == "sick.0"} <= {"other"}
    hazards.drain()
    assert not hazards.given_up


def test_a_checkpoint_of_higher_priority_goes_first_at_the_next_trial() -> None:
    scheduler = Scheduler([MODEL], [make_dataset("d", 1000)], make_priors(1.0, "d"))
    hazards = Hazards(scheduler=scheduler, choose=lambda n: 0)
    hazards.join("a", 0)
    hazards.step()
    hazards.add(Checkpoint(name="urgent", path="", bytes=1, parameters=10, step=2, priority=5))
    hazards.finish_part("a.0")
    hazards.finish_load(0)
    assert hazards.running["a.0"][0].checkpoint == "urgent"


def test_workers_are_shared_between_checkpoints_by_weight() -> None:
    light = Checkpoint(name="light", path="", bytes=1, parameters=10, weight=1.0)
    heavy = Checkpoint(name="heavy", path="", bytes=1, parameters=10, weight=3.0)
    scheduler = Scheduler([light, heavy], [make_dataset("d", 5000)], make_priors(1.0, "d"))
    started = of(StartInference, start(scheduler, gpus=8))
    names = [action.trial.checkpoint for action in started]
    assert names.count("heavy") == 6
    assert names.count("light") == 2


def test_a_checkpoint_nobody_needs_is_cleared_from_memory() -> None:
    scheduler = Scheduler([MODEL], [make_dataset("d", 1)], make_priors(1.0, "d"))
    (started,) = of(StartInference, start(scheduler))
    (part,) = started.trial.parts
    scheduler.handle(events.PartInferred(now_s=2, trial=started.trial.id, part=part, seconds=1))
    answers = scheduler.handle(events.InferenceFinished(now_s=2, trial=started.trial.id))
    assert of(ReleaseCheckpoint, answers) == [ReleaseCheckpoint(node="n0", checkpoint="step-1")]


def test_memory_for_one_checkpoint_holds_one_at_a_time() -> None:
    scheduler = Scheduler(
        [MODEL, Checkpoint(name="step-2", path="", bytes=1_000, parameters=10)],
        [make_dataset("d", 50)],
        make_priors(1.0, "d"),
    )
    scheduler.handle(events.NodeJoined(now_s=0, node=Node(id="a", memory_bytes=1_500)))
    hazards = Hazards(scheduler=scheduler, choose=lambda n: 0, nodes={"a": Node(id="a", cpus=8)})
    hazards.join("a", 0)
    hazards.join("a", 1)
    while not scheduler.over:
        assert len(hazards.held) + len(hazards.loads) <= 1
        if not hazards.step():
            hazards.send(events.Tick)


def test_a_node_of_unlimited_memory_keeps_a_model_that_is_needed_again() -> None:
    urgent = Checkpoint(name="step-2", path="", bytes=1_000, parameters=10, priority=1)
    scheduler = Scheduler([MODEL], [make_dataset("d", 1000)], make_priors(1.0, "d"))
    (started,) = of(StartInference, start(scheduler))
    answers = scheduler.handle(events.CheckpointAdded(now_s=2, checkpoint=urgent))
    answers += scheduler.handle(events.InferenceFinished(now_s=3, trial=started.trial.id))
    assert of(LoadCheckpoint, answers) == [LoadCheckpoint(node="n0", checkpoint="step-2")]
    assert not of(ReleaseCheckpoint, answers)


def test_the_bound_at_the_end_is_made_of_what_was_measured() -> None:
    scheduler = Scheduler([MODEL], [make_dataset("d", 100)], make_priors(1.0, "d"))
    start(scheduler, load=False)
    assert scheduler.lower_bound_s() > 100, "by the recorded second per sample"
    hazards = Hazards(scheduler=scheduler, choose=lambda n: 0, nodes={"n0": Node(id="n0", cpus=4)})
    hazards.loads = [("n0", "step-1")]
    hazards.workers = {"n0g0": Worker(id="n0g0", node="n0", gpus=(0,))}
    hazards.drain()
    # Hazards reports 0.01 s per sample, 0.5 s of set-up, a load of 1 s, no start, and scores of 0.1 s.
    assert 2.4 <= scheduler.lower_bound_s() <= 2.7


def test_late_reports_of_lost_workers_are_ignored() -> None:
    scheduler = Scheduler([MODEL], [make_dataset("d", 10)], make_priors(1.0, "d"))
    (started,) = of(StartInference, start(scheduler))
    scheduler.handle(events.WorkerLost(now_s=2, worker=started.worker))
    late = events.PartInferred(now_s=3, trial=started.trial.id, part=started.trial.parts[0], seconds=1)
    assert scheduler.handle(late) == []
    assert scheduler.progress(3).inferred == 0


def test_a_dataset_without_samples_is_refused() -> None:
    with pytest.raises(BadConfigError, match="'d' has no samples"):
        Scheduler([MODEL], [make_dataset("d", 0)], Priors())


def test_hardware_decides_how_nodes_load() -> None:
    config = SchedulerConfig.from_hardware(Hardware(storage_gbps=25, storage_total_gbps=50, peer_gbps=100))
    assert config.transfers == TransferPolicy(storage_readers=2, pass_on=True)
    assert config.storage_bytes_per_s == pytest.approx(25e9 / 8)
    assert SchedulerConfig.from_hardware(Hardware()).transfers == TransferPolicy()


def _fail_scores(scheduler: Scheduler, *, hung: bool, limit: int = 200) -> tuple[int, list[Action]]:
    """Let every score fail until nothing is left; how many were started, and all answers."""
    answers = start(scheduler, load=False)
    num_scores, now_s = 0, 10.0
    for action in answers:  # grows while it is gone through
        now_s += 1
        if isinstance(action, LoadCheckpoint):
            loaded = events.CheckpointLoaded(now_s=now_s, node=action.node, checkpoint=action.checkpoint, seconds=1)
            answers += scheduler.handle(loaded)
        elif isinstance(action, StartInference):
            for part in action.trial.parts:
                answers += scheduler.handle(
                    events.PartInferred(now_s=now_s, trial=action.trial.id, part=part, seconds=1)
                )
            answers += scheduler.handle(events.InferenceFinished(now_s=now_s, trial=action.trial.id))
        elif isinstance(action, StartScore):
            num_scores += 1
            assert num_scores < limit
            answers += scheduler.handle(events.ScoreFailed(now_s=now_s, part=action.part, text="no end", hung=hung))
    return num_scores, answers


def test_a_metric_that_hangs_stops_its_dataset_for_all_checkpoints() -> None:
    models = [Checkpoint(name=f"step-{i}", path="", bytes=1_000, parameters=10, step=i) for i in range(6)]
    datasets = [make_dataset("d", 1000)]
    scheduler = Scheduler(models, datasets, make_priors(1.0, "d"))
    num_scores, answers = _fail_scores(scheduler, hung=True)
    # Scores that were under way when it was stopped (4 CPUs) end as they do; nothing else is tried.
    assert num_scores <= 2 + 4
    told = of(ReportFailure, answers)
    assert {f.part.checkpoint for f in told} == {model.name for model in models}
    assert any("dataset stopped: its metric hung 2 times" in f.text for f in told) and scheduler.over
    later = Checkpoint(name="step-99", path="", bytes=1_000, parameters=10, step=99)
    more = scheduler.handle(events.CheckpointAdded(now_s=999, checkpoint=later))
    assert not of(StartInference, more) and [f.part.checkpoint for f in of(ReportFailure, more)] == ["step-99"]


def test_outputs_that_come_after_their_dataset_was_stopped_are_reported_and_not_scored() -> None:
    config = SchedulerConfig(max_hangs=1)
    scheduler = Scheduler([MODEL], [make_dataset("d", 1000)], make_priors(1.0, "d"), config)
    first, second = of(StartInference, start(scheduler, gpus=2))
    (part,), (late,) = first.trial.parts, second.trial.parts
    scheduler.handle(events.PartInferred(now_s=9, trial=first.trial.id, part=part, seconds=5))
    stopped = scheduler.handle(events.ScoreFailed(now_s=10, part=part, text="no end", hung=True))
    assert {report.part.dataset for report in of(ReportFailure, stopped)} == {part.dataset}
    told = scheduler.handle(events.PartInferred(now_s=11, trial=second.trial.id, part=late, seconds=5))
    assert not of(StartScore, told) and [report.part for report in of(ReportFailure, told)] == [late]


def test_a_dataset_whose_parts_fail_in_a_row_is_stopped_and_others_are_not() -> None:
    models = [Checkpoint(name=f"step-{i}", path="", bytes=1_000, parameters=10, step=i) for i in range(12)]
    scheduler = Scheduler(models, [make_dataset("d", 10)], make_priors(0.1, "d"), SchedulerConfig(max_failed_parts=3))
    num_scores, answers = _fail_scores(scheduler, hung=False)
    assert num_scores <= 3 * 3 + 4 * 3
    assert any("3 of its parts failed in a row" in f.text for f in of(ReportFailure, answers)) and scheduler.over


def test_what_is_planned_is_never_less_than_what_is_best() -> None:
    """Scores that take longer than all inference are part of both."""
    slow = Priors([Record(dataset="d", parameters=10, infer_s=0.001, setup_s=0.1, start_s=0.1, score_s=5.0)])
    scheduler = Scheduler([MODEL], [make_dataset("d", 100)], slow)
    start(scheduler, cpus=1)
    assert scheduler.progress(1.0).time_left_s + 1.0 >= scheduler.lower_bound_s() * 0.99

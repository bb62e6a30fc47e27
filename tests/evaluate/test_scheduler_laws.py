"""Laws of the scheduler that hold whatever happens, in whatever order."""

from __future__ import annotations

from hazards import Hazards
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from prism.evaluate.schedule import events
from prism.evaluate.schedule.cutting import CuttingConfig
from prism.evaluate.schedule.priors import Priors, Record
from prism.evaluate.schedule.scheduler import Scheduler, SchedulerConfig
from prism.evaluate.schedule.transfers import TransferPolicy
from prism.evaluate.schedule.trials import Checkpoint, Dataset, Kept

NODES = ("a", "b", "c")


def make_scheduler(draw: st.DrawFn) -> tuple[Scheduler, list[Checkpoint], list[Dataset]]:
    """A small evaluation with drawn sizes, guesses and rules of loading; it never gives up."""
    datasets = [
        Dataset(name=f"d{i}", adapter="builtin", task="t", samples=n, splittable=split)
        for i, (n, split) in enumerate(
            draw(st.lists(st.tuples(st.integers(1, 60), st.booleans()), min_size=1, max_size=4))
        )
    ]
    checkpoints = [
        Checkpoint(name=f"c{i}", path="", bytes=1000, parameters=10, step=i, priority=draw(st.integers(0, 1)))
        for i in range(draw(st.integers(1, 3)))
    ]
    records = [
        Record(dataset=d.name, parameters=10, infer_s=draw(st.sampled_from((0.01, 0.1, 1.0))), setup_s=0.5, start_s=1.0)
        for d in datasets
    ]
    policy = TransferPolicy(storage_readers=draw(st.integers(0, 2)), pass_on=draw(st.booleans()))
    config = SchedulerConfig(
        cutting=CuttingConfig(min_part_s=draw(st.sampled_from((0.05, 0.5, 2.0)))),
        transfers=policy,
        max_attempts=10_000,
        max_score_attempts=10_000,
        max_losses=10_000,
        max_strikes=10_000,
    )
    return Scheduler(checkpoints, datasets, Priors(records), config), checkpoints, datasets


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large])
@given(st.data())
def test_every_sample_is_inferred_and_scored_once_whatever_happens(data: st.DataObject) -> None:
    scheduler, checkpoints, datasets = make_scheduler(data.draw)
    hazards = Hazards(scheduler=scheduler, choose=lambda n: data.draw(st.integers(0, n - 1)))
    late = Checkpoint(name="late", path="", bytes=1000, parameters=10, step=99, priority=2)
    for _ in range(data.draw(st.integers(0, 40))):
        happening = data.draw(st.sampled_from(HAPPENINGS))
        happening(hazards, data.draw)
        if data.draw(st.integers(0, 30)) == 0:
            hazards.add(late)
    hazards.join("z", 0)  # one worker that stays
    hazards.drain()
    names = [*(c.name for c in checkpoints), *(["late"] if "CheckpointAdded" in hazards.happened else [])]
    everything = {(name, d.name, i) for name in names for d in datasets for i in range(d.samples)}
    assert hazards.scored == everything == hazards.inferred
    assert not hazards.given_up
    assert hazards.combined == {(name, d.name) for name in names for d in datasets}
    assert hazards.finishes >= 1


def _join(hazards: Hazards, draw: st.DrawFn) -> None:
    hazards.join(draw(st.sampled_from(NODES)), draw(st.integers(0, 2)))


def _work(hazards: Hazards, draw: st.DrawFn) -> None:
    hazards.step()


def _lose_worker(hazards: Hazards, draw: st.DrawFn) -> None:
    if hazards.workers:
        hazards.lose_worker(draw(st.sampled_from(sorted(hazards.workers))))


def _lose_node(hazards: Hazards, draw: st.DrawFn) -> None:
    if hazards.nodes:
        hazards.lose_node(draw(st.sampled_from(sorted(hazards.nodes))))


def _preempt(hazards: Hazards, draw: st.DrawFn) -> None:
    if hazards.workers:
        hazards.preempt(draw(st.sampled_from(sorted(hazards.workers))))


def _fail_trial(hazards: Hazards, draw: st.DrawFn) -> None:
    if hazards.running:
        failure = draw(st.sampled_from((events.Failure.OTHER, events.Failure.MEMORY, events.Failure.LOAD)))
        hazards.fail_trial(draw(st.sampled_from(sorted(hazards.running))), failure)


def _fail_score(hazards: Hazards, draw: st.DrawFn) -> None:
    if hazards.scores:
        hazards.fail_score(draw(st.sampled_from(sorted(hazards.scores))))


def _fail_load(hazards: Hazards, draw: st.DrawFn) -> None:
    if hazards.loads:
        node, name = hazards.loads.pop(draw(st.integers(0, len(hazards.loads) - 1)))
        hazards.send(events.LoadFailed, node=node, checkpoint=name, text="it broke")


def _tick(hazards: Hazards, draw: st.DrawFn) -> None:
    hazards.send(events.Tick)


HAPPENINGS = (_join, _join, _work, _work, _work, _work, _lose_worker, _lose_node, _preempt, _fail_trial, _fail_score,
              _fail_load, _tick)  # fmt: skip


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.data())
def test_a_run_that_is_stopped_anywhere_continues_without_doing_anything_twice(data: st.DataObject) -> None:
    scheduler, checkpoints, datasets = make_scheduler(data.draw)
    first = Hazards(scheduler=scheduler, choose=lambda n: data.draw(st.integers(0, n - 1)))
    for gpu in range(data.draw(st.integers(1, 3))):
        first.join("a", gpu)
    for _ in range(data.draw(st.integers(0, 30))):
        first.step()
    kept = {
        checkpoint: Kept(
            inferred=tuple(part for pool in pools.values() for part in pool.outputs),
            scored=tuple(part for pool in pools.values() for part in pool.scored),
        )
        for checkpoint, pools in scheduler._ledger.pools.items()
    }
    again = Scheduler(checkpoints, datasets, Priors(), scheduler.config, kept=kept)
    second = Hazards(scheduler=again, choose=first.choose, inferred=set(first.inferred), scored=set(first.scored))
    for gpu in range(data.draw(st.integers(1, 5))):
        second.join("b", gpu)
    second.drain()
    everything = {(c.name, d.name, i) for c in checkpoints for d in datasets for i in range(d.samples)}
    assert second.inferred == second.scored == everything

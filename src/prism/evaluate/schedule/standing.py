"""Where an evaluation stands: what is done, what is left, and how short it could have been."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from prism.evaluate.schedule.bound import Supply, lower_bound_s
from prism.evaluate.schedule.cluster import Cluster
from prism.evaluate.schedule.ledger import Ledger
from prism.evaluate.schedule.planner import Planner
from prism.evaluate.schedule.score_queue import ScoreQueue
from prism.evaluate.schedule.transfers import TransferPolicy


@dataclass(frozen=True, slots=True, kw_only=True)
class Progress:
    """Where the evaluation stands; samples are counted per checkpoint and dataset."""

    samples: int
    inferred: int
    scored: int
    failed: int
    trials_done: int
    trials_running: int
    scores_waiting: int
    workers: int
    gpus: int
    gpus_busy: int
    time_left_s: float


def measure_progress(
    ledger: Ledger, cluster: Cluster, scores: ScoreQueue, *, trials_done: int, left_s: float
) -> Progress:
    """Count what the books say; `left_s` is until all should be inferred."""
    states = cluster.states.values()
    pools = list(ledger)
    unscored_s = sum(
        part.samples * pool.prior.score_s for pool in pools for part in (*pool.waiting, *pool.running, *pool.retrying)
    )
    scoring_s = scores.expected_s + unscored_s / max(1, sum(scores.cpus.values()))
    return Progress(
        samples=sum(pool.dataset.samples for pool in pools),
        inferred=sum(part.samples for pool in pools for part in pool.outputs | pool.scored),
        scored=sum(part.samples for pool in pools for part in pool.scored),
        failed=sum(part.samples for pool in pools for part in pool.failed),
        trials_done=trials_done,
        trials_running=len(cluster.trials),
        scores_waiting=len(scores.waiting) + len(scores.running),
        workers=len(states),
        gpus=sum(len(state.worker.gpus) for state in states),
        gpus_busy=sum(len(state.worker.gpus) for state in states if state.running is not None),
        time_left_s=max(left_s, scoring_s) if ledger.num_open else 0.0,
    )


def find_bound_s(planner: Planner, policy: TransferPolicy, measured_loads_s: Iterable[float]) -> float:
    """No schedule of this run on its hardware could end earlier.

    By what is expected before anything has run; then by what was measured alone, and nothing where nothing was.
    """
    ledger, nodes = planner.ledger, planner.cluster.most_nodes
    measured = planner.priors.has_measured
    loads_s = measured_loads_s if measured else map(planner.load_s, ledger.checkpoints.values())
    load_s = min(loads_s, default=0.0)
    # Nodes that pass a model on while they receive it may all have it at once; without, they take turns.
    in_turns = policy.storage_readers and not policy.pass_on
    turns = {node: i // policy.storage_readers + 1 if in_turns else 1 for i, node in enumerate(nodes)}
    find = planner.priors.measured if measured else planner.priors.prior
    starts_s = [find(pool.dataset, pool.checkpoint).start_s for pool in ledger]
    supply = Supply(
        ready_s=tuple(turns[worker.node] * load_s for worker in planner.cluster.most_workers.values()),
        start_s=min(starts_s, default=0.0),
        cpus=sum(node.cpus for node in nodes.values()),
    )
    return lower_bound_s(planner.all_works(measured=measured), supply)

"""The first page: GPU-hours bought, used and lost, the causes of losses, and what to do first."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from prism.datacenter.characterize.checkpoints import CheckpointAdvice
from prism.datacenter.characterize.failures import MID_RUN_S, NOT_RECORDED
from prism.datacenter.characterize.faults import FaultStudy
from prism.datacenter.characterize.study import Study

_TOP_CAUSES = 6
_MOST_NODES = 5  # that one action names


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """GPU-hours of one kind."""

    name: str
    gpu_hours: float
    bought_pct: float | None  # None: the amount bought is unknown


@dataclass(frozen=True, slots=True, kw_only=True)
class Action:
    """A recommended action, with the most that it can save over a time as long as the trace."""

    what: str
    worth_gpu_hours: float
    basis: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Overview:
    """The cluster in GPU-hours."""

    span_hours: float | None
    bought_gpu_hours: float | None
    bought_known: bool  # False: the cluster's size is the most that was ever in use
    used_gpu_hours: float
    uses: tuple[Part, ...]  # adds up to the amount bought, if that is known
    losses: tuple[Part, ...]  # largest first; cancelled jobs are not included, because it is unknown what they achieved
    actions: tuple[Action, ...]


def write_overview(
    found: Study, faults: FaultStudy | None, gpus_per_node: int, advice: tuple[CheckpointAdvice, ...]
) -> Overview:
    """Compute the first page's numbers from a study."""
    capacity, summary = found.capacity, found.summary
    bought = capacity.gpus * capacity.span_hours if capacity else None

    def part(name: str, hours: float) -> Part:
        return Part(name=name, gpu_hours=hours, bought_pct=100 * hours / bought if bought else None)

    uses = [part(name, hours) for name, hours in _split_use(found).items() if hours > 0]
    if capacity and bought:
        uses.append(part("idle", max(bought - summary.gpu_hours, 0.0)))
    losses = [part(name, hours) for name, hours in _list_losses(found, faults, bought)]
    return Overview(
        span_hours=capacity.span_hours if capacity else None,
        bought_gpu_hours=bought,
        bought_known=bool(capacity and capacity.gpus_known),
        used_gpu_hours=summary.gpu_hours,
        uses=tuple(uses),
        losses=tuple(sorted(losses, key=lambda loss: -loss.gpu_hours)[:_TOP_CAUSES]),
        actions=_choose_actions(found, gpus_per_node, advice),
    )


def _split_use(found: Study) -> dict[str, float]:
    """GPU-hours by how their jobs ended."""
    words = {
        "completed": "jobs that completed",
        "failed": "jobs that failed",
        "cancelled": "jobs that people cancelled",
    }
    uses = dict.fromkeys(
        (*words.values(), "jobs that were preempted", "jobs still running", "jobs of unknown end"), 0.0
    )
    for state, final, gpu_time in found.states.filter(kind="gpu").select("state", "final", "gpu_time_s").iter_rows():
        own = {"preempted": "jobs that were preempted", "running": "jobs still running"}.get(state)
        uses[own or words.get(final, "jobs of unknown end")] += (gpu_time or 0.0) / 3600
    return uses


def name_failure(reason: str, state: str) -> str:
    """The text for a failure: its reason, or the scheduler's word for its end."""
    return f"{state} (reason not recorded)" if reason == NOT_RECORDED else reason


def _list_losses(found: Study, faults: FaultStudy | None, bought: float | None) -> list[tuple[str, float]]:
    rows = found.failures.select("reason", "state", "gpu_time_s").iter_rows()
    losses = [(f"failed jobs: {name_failure(reason, state)}", gpu_time / 3600) for reason, state, gpu_time in rows]
    losses.append(("preempted jobs", _split_use(found)["jobs that were preempted"]))
    if found.capacity:
        losses.append(("idle while jobs waited for as many GPUs", found.capacity.idle_while_waiting_gpu_hours))
    if faults and bought:
        losses.append(("nodes that were down", faults.down_pct / 100 * bought))
    return [(name, hours) for name, hours in losses if hours > 0]


def _choose_actions(found: Study, gpus_per_node: int, advice: tuple[CheckpointAdvice, ...]) -> tuple[Action, ...]:
    """The three actions that save most; savings overlap if they concern the same jobs."""
    actions = [
        *_mend_reason(found),
        *_look_at_nodes(found),
        *_fill_idle(found),
        *_save_often(found, gpus_per_node, advice),
    ]
    return tuple(sorted(actions, key=lambda action: -action.worth_gpu_hours)[:3])


_BY_STATE = {
    "timeout": "Have jobs save before their time limit, or give the longest a longer one",
    "out_of_memory": "Try the largest jobs for one step before they queue: prism estimate tells their memory",
    "node_fail": "Let jobs that lose a node restart from their last checkpoint: prism supervise",
}
_BY_CATEGORY = {
    "infrastructure": "Restart jobs that {reason} ends from their last checkpoint, without the node: prism supervise",
    "framework": "Try jobs on two nodes before they queue for many: {reason} ends them {when}",
    "script": "Check scripts before they queue (prism check): {reason} ends them {when}",
}


def _mend_reason(found: Study) -> list[Action]:
    """What a person can do about each kind of failure; it saves at most what these jobs used."""
    actions = []
    for row in found.failures.iter_rows(named=True):
        hours = row["gpu_time_s"] / 3600
        after = f"after {row['ttf_median_s'] / 60:.0f} min at the median" if row["ttf_median_s"] is not None else ""
        basis = f"{row['count']:,} jobs, {row['mean_gpus'] or 0:.1f} GPUs each on average, failed {after}".rstrip()
        actions.append(Action(what=_say_remedy(row), worth_gpu_hours=hours, basis=basis))
    return [action for action in actions if action.worth_gpu_hours > 0]


def _say_remedy(row: dict[str, Any]) -> str:
    if row["reason"] == NOT_RECORDED:
        unknown = "Find out why jobs fail: no reason is recorded (prism explain reads their logs)"
        return _BY_STATE.get(row["state"], unknown)
    early = row["ttf_median_s"] is not None and row["ttf_median_s"] < MID_RUN_S
    when = "within minutes" if early else "after hours of work"
    told: str = _BY_CATEGORY.get(row["category"], "Read the logs of jobs that ended with {reason}: prism explain")
    return told.format(reason=row["reason"], when=when)


def _look_at_nodes(found: Study) -> list[Action]:
    """Nodes on which the infrastructure failed more often than the jobs and the GPU-hours there explain."""
    named = found.bad_nodes.head(_MOST_NODES)
    if named.is_empty():
        return []
    counts = ", ".join(f"{n} where {e:.1f} is expected" for n, e in named.select("failures", "expected").iter_rows())
    return [
        Action(
            what=f"Drain and test {', '.join(named['node'])}: prism isolate",
            worth_gpu_hours=float(named["cost_s"].sum()) / 3600,
            basis=f"failures by the infrastructure: {counts}; chance at most {max(named['chance'].to_list()):.1g}",
        )
    ]


def _fill_idle(found: Study) -> list[Action]:
    capacity = found.capacity
    if capacity is None or capacity.idle_while_waiting_gpu_hours <= 0:
        return []
    return [
        Action(
            what="Let waiting jobs onto idle GPUs: packing, backfill, quotas",
            worth_gpu_hours=capacity.idle_while_waiting_gpu_hours,
            basis=f"GPUs idle while jobs waited for as many, {capacity.part_node_gpu_time_pct:.0f} % of GPU time is of "
            "jobs that leave a node part filled",
        )
    ]


def _save_often(found: Study, gpus_per_node: int, advice: tuple[CheckpointAdvice, ...]) -> list[Action]:
    """How much of the work lost by multi-node jobs checkpoints at the best interval would save."""
    known = found.reliability
    if not advice or known.mid_run_failures == 0:
        return []
    size = known.multi_node_failed_gpus / known.mid_run_failures
    fitting = min(advice, key=lambda one: abs(one.gpus - size))
    # Half an interval is still lost each time; counting jobs that failed at once makes the estimate too low.
    kept = known.multi_node_failed_gpus * fitting.interval_s / 2 / 3600
    worth = known.multi_node_lost_gpu_hours - kept
    if worth <= 0:
        return []
    return [
        Action(
            what=f"Save checkpoints every {fitting.interval_s / 60:.0f} min in jobs of more than {gpus_per_node} GPUs, "
            "where they do not yet",
            worth_gpu_hours=worth,
            basis=f"{known.mid_run_failures:,} such jobs failed after {MID_RUN_S / 60:.0f} min or more; those used "
            f"{known.multi_node_lost_gpu_hours:,.0f} GPU-hours",
        )
    ]

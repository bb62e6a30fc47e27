"""The true effect of a planted fault: the same steps solved again without it."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from prism.lab.scenarios.planted import Planted
from prism.lab.scenarios.timeline import Disturbance, JobRun, solve_stretch
from prism.simulate.cluster import Cluster

_FIRED_RATIO = 1.005  # a slowdown below half a percent is not one
_MOST_STRETCHES = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class Effect:
    """One fault's effect on one job."""

    job: str
    num_steps: int  # that began during the fault
    step_ns_with: float  # mean of the steps compared
    step_ns_without: float
    silent_ns: int  # longest time without any flow of the job during the fault
    lost_gpu_seconds: float

    @property
    def fired(self) -> bool:
        """Whether steps became longer, or stopped."""
        return self.step_ns_with > _FIRED_RATIO * self.step_ns_without > 0 or self.num_steps == 0


def measure_effect(
    planted: Planted, run: JobRun, cluster: Cluster, everything: Disturbance, rest: Disturbance, seed: int
) -> Effect:
    """Compare the steps within the fault's window with the same steps under all but this fault."""
    begin, end = planted.start_ns, planted.end_ns
    held = (run.step_end_ns > begin) & (run.step_start_ns < end)
    with_fault, without = [], []
    touching = [s for s in run.stretches if s.now < end]
    late = [s for s, after in zip(touching, [*touching[1:], None], strict=True) if after is None or after.now > begin]
    for stretch in late[:_MOST_STRETCHES]:
        slow, _ = solve_stretch(run.plan, cluster, everything, stretch, seed, note_ops=False)
        clean, _ = solve_stretch(run.plan, cluster, rest, stretch, seed, note_ops=False)
        ends = stretch.now + np.maximum.accumulate(slow.step_end_ns)
        begins = np.r_[stretch.now, ends[:-1]]
        inside = (ends > begin) & (begins < end) & (ends <= stretch.stop)
        with_fault.append(slow.step_ns[inside])
        without.append(clean.step_ns[: len(inside)][inside])
    slow_ns = float(np.concatenate(with_fault).mean()) if any(map(len, with_fault)) else 0.0
    clean_ns = float(np.concatenate(without).mean()) if any(map(len, without)) else 0.0
    silent = _longest_silence(run, begin, end)
    lost = (slow_ns - clean_ns) * int(held.sum()) if planted.finding != "hang" else silent
    return Effect(
        job=run.plan.job.id,
        num_steps=int(held.sum()),
        step_ns_with=slow_ns,
        step_ns_without=clean_ns,
        silent_ns=silent,
        lost_gpu_seconds=max(0.0, lost / 1e9 * run.plan.job.num_gpus),
    )


def _longest_silence(run: JobRun, begin: int, end: int) -> int:
    """The longest time from `begin` to `end` in which no flow of the job ended."""
    seen = np.sort(run.end_ns[(run.end_ns >= begin) & (run.end_ns <= end)])
    return int(np.diff(np.r_[begin, seen, end]).max(initial=0))

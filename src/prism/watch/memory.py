"""What looks at a stream remember of jobs, so that only steps and findings are found anew each time."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from zlib import crc32

import numpy as np
from numpy.typing import NDArray

from prism.observe.diagnose import study_job
from prism.observe.diagnosis import Diagnosis, JobDiagnosis
from prism.observe.jobs.grouping import ObservedJob, measure_period
from prism.observe.parallelism.known_jobs import Known, remember
from prism.observe.traffic.period import Times
from prism.observe.traffic.table import Traffic
from prism.observe.traffic.threads import do_each

_ENOUGH_STEPS = 8  # of a job, to be known by
_MOST_LOOKS = 24  # after which a job is studied in full again
_MOST_JOBS = 10_000
_LONGER = 0.005  # than when nothing was found: a finding that costs less is not worth reporting


@dataclass(slots=True)
class Acquaintance:
    """A job that was studied, how long its steps were in the last look, and when it is due again."""

    known: Known
    step_ns: float
    studies: int
    due: int  # look at which it is studied in full again
    calm_ns: float | None = None  # its usual step when nothing was found of it


@dataclass(slots=True)
class JobMemory:
    """Jobs by the addresses of their endpoints; each is studied in full when new, changed, or not for long.

    Nothing depends on it but time: a watch that starts without it studies all jobs in its first look.
    """

    look: int = 0
    until_ns: int = 0
    _jobs: dict[tuple[str, ...], Acquaintance] = field(default_factory=dict)
    _unmeasured: dict[tuple[str, ...], tuple[NDArray[np.int64], Times]] = field(default_factory=dict)  # in this look

    def begin_look(self, until_ns: int) -> None:
        """Another look begins, at what was observed until a moment."""
        self.look += 1
        self.until_ns = until_ns
        self._unmeasured.clear()
        if len(self._jobs) > _MOST_JOBS:
            self._jobs.clear()

    def estimate_period(self, traffic: Traffic, pairs: NDArray[np.int64], pauses: Times) -> float | None:
        """The period of a cluster's pairs: that of its steps in the last look where it is known."""
        ends = np.unique(np.concatenate([traffic.pairs[c].to_numpy()[pairs] for c in ("src", "dst")]))
        name = _name(traffic, ends)
        met = self._jobs.get(name)
        if met is None or self.look >= met.due:
            return measure_period(traffic, pairs, pauses)
        self._unmeasured[name] = pairs, pauses
        return met.step_ns

    def study(self, traffic: Traffic, jobs: Sequence[ObservedJob]) -> list[JobDiagnosis]:
        """Every job of a look: those that are known by what is known of them, the others in full."""
        return do_each(lambda job: self._study(traffic, job), jobs)

    def needs_findings(self, job: JobDiagnosis) -> bool:
        """Whether anything new may be found of a job: not while its steps come as they did when nothing was found.

        What does not make steps longer costs nothing.
        """
        met = self._jobs.get(job.endpoints)
        if met is None or met.calm_ns is None or self.look >= met.due or not job.steps.height:
            return True
        length = (job.steps["end_ns"] - job.steps["start_ns"]).to_numpy()
        silent = self.until_ns - job.observed.last_ns > met.calm_ns
        return bool(silent or length.max() > (1 + _LONGER) * met.calm_ns)

    def end_look(self, found: Diagnosis) -> None:
        """Take in what was found, and let go of the flows of this look."""
        self._unmeasured.clear()
        troubled = {finding.job for finding in found.findings}
        for job in found.jobs:
            met = self._jobs.get(job.endpoints)
            if met is not None and job.id in troubled:
                met.calm_ns = None
            elif met is not None and self.needs_findings(job):
                met.calm_ns = _usual_step(job)

    def _study(self, traffic: Traffic, job: ObservedJob) -> JobDiagnosis:
        name = _name(traffic, job.endpoints)
        met = self._jobs.get(name)
        if met is not None and self.look < met.due:
            found = study_job(traffic, job, known=met.known)
            if found.steps.height >= _ENOUGH_STEPS:
                met.step_ns = _usual_step(found)
                return found
        if name in self._unmeasured:
            job = replace(job, period_ns=measure_period(traffic, *self._unmeasured[name]))
        found = study_job(traffic, job)
        if found.steps.height >= _ENOUGH_STEPS:
            # The first looks may have seen a job begin; later on all jobs take turns.
            studies = met.studies + 1 if met is not None else 1
            wait = min(2 ** (studies + 1), _MOST_LOOKS)
            known = remember(traffic, job, found.streams, found.pairs, found.layout, found.stages, found.clock)
            due = self.look + wait + crc32(" ".join(name).encode()) % wait
            calm_ns = None if met is None else met.calm_ns
            self._jobs[name] = Acquaintance(known, _usual_step(found), studies, due, calm_ns)
        else:
            self._jobs.pop(name, None)
        return found


def _name(traffic: Traffic, endpoints: NDArray[np.int64]) -> tuple[str, ...]:
    return tuple(traffic.endpoints["address"].gather(endpoints).to_list())


def _usual_step(job: JobDiagnosis) -> float:
    return float((job.steps["end_ns"] - job.steps["start_ns"]).median())  # type: ignore[arg-type]

"""What looks at a stream remember of jobs, so that each look only searches for steps and findings."""

from __future__ import annotations

import math
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import count
from threading import Lock

import numpy as np
from numpy.typing import NDArray

from prism.observe.diagnose import list_unstudied, study_job
from prism.observe.diagnosis import Diagnosis, JobDiagnosis
from prism.observe.jobs.grouping import ObservedJob, measure_period
from prism.observe.jobs.tenants import list_ports, share_hosts
from prism.observe.parallelism.known_jobs import Known, remember
from prism.observe.traffic.period import Times
from prism.observe.traffic.table import Traffic
from prism.observe.traffic.threads import do_each

_ENOUGH_STEPS = 8  # of a job, to be known by
_MOST_LOOKS = 24  # after so many looks a job is studied in full again
_MOST_JOBS = 10_000
_LONGER = 0.005  # than when nothing was found: a finding that costs less is not worth reporting


@dataclass(slots=True)
class Acquaintance:
    """A job that was studied in full, the length of its steps in the last look, and when it is due again."""

    known: Known
    step_ns: float
    studies: int
    due: int  # look at which it is studied in full again
    calm_ns: float | None = None  # its usual step in a look that found nothing


@dataclass(slots=True)
class JobMemory:
    """Jobs by name: the addresses of their endpoints, and a port where several jobs use these.

    Each is studied in full when new, changed, or not for long.

    A look studies as many jobs in full as it has time for, those that wait for it longest first, and at least one; the
    others are put off to the next looks. Nothing else depends on the memory: without it all jobs are new.
    """

    look: int = 0
    until_ns: int = 0
    study_s: float = math.inf  # for full studies in one look
    now: Callable[[], float] = time.monotonic
    put_off: dict[tuple[str, ...], int] = field(default_factory=dict)  # by job, the look since which it waits
    _jobs: dict[tuple[str, ...], Acquaintance] = field(default_factory=dict)
    _unmeasured: dict[tuple[str, ...], tuple[NDArray[np.int64], Times]] = field(default_factory=dict)  # in this look
    _names: dict[str, tuple[str, ...]] = field(default_factory=dict)  # by the id that a job has in this look
    _turns: Iterator[int] = field(default_factory=count)  # of full studies in this look
    _study_until: float = 0.0
    _lock: Lock = field(default_factory=Lock, repr=False)

    def begin_look(self, until_ns: int) -> None:
        """Begin a look at what was observed until a moment."""
        self.look += 1
        self.until_ns = until_ns
        self._unmeasured.clear()
        if len(self._jobs) > _MOST_JOBS:
            self._jobs.clear()

    def estimate_period(self, traffic: Traffic, pairs: NDArray[np.int64], pauses: Times) -> float | None:
        """The period of a cluster's pairs: if known, that of its steps in the last look."""
        ends = np.unique(np.concatenate([traffic.pairs[c].to_numpy()[pairs] for c in ("src", "dst")]))
        name = _name(traffic, ends, pairs)
        met = self._jobs.get(name)
        if met is None or self.look >= met.due:
            return measure_period(traffic, pairs, pauses)
        self._unmeasured[name] = pairs, pauses
        return met.step_ns

    @property
    def note(self) -> str | None:
        """A line about the jobs that were not studied in this look."""
        if not self.put_off:
            return None
        return f"{len(self.put_off):,} jobs are not studied yet, so that findings of others come in time; they are next"

    def is_put_off(self, job: str) -> bool:
        """Whether there was no time for a job, by its id in this look."""
        return self._names[job] in self.put_off

    def study(self, traffic: Traffic, jobs: Sequence[ObservedJob]) -> list[JobDiagnosis]:
        """Every job of a look: known jobs from memory, the others studied in full while there is time.

        A job that is put off has its endpoints and no steps.
        """
        named = [(_name(traffic, job.endpoints, job.pairs), job) for job in jobs]
        self._names = {job.id: name for name, job in named}
        waited, self.put_off = self.put_off, {}
        order = sorted(
            range(len(jobs)), key=lambda i: (self._is_known(named[i][0]), waited.get(named[i][0], self.look))
        )
        self._turns, self._study_until = count(), self.now() + self.study_s
        found = do_each(lambda i: self._study(traffic, *named[i], waited.get(named[i][0], self.look)), order)
        return [job for _, job in sorted(zip(order, found, strict=True), key=lambda pair: pair[0])]

    def needs_findings(self, job: JobDiagnosis) -> bool:
        """Whether a job may have new findings: not while its steps are as long as when nothing was found.

        A fault that does not make steps longer costs nothing.
        """
        met = self._jobs.get(self._names[job.id])
        if met is None or met.calm_ns is None or self.look >= met.due or not job.steps.height:
            return True
        length = (job.steps["end_ns"] - job.steps["start_ns"]).to_numpy()
        silent = self.until_ns - job.observed.last_ns > met.calm_ns
        return bool(silent or length.max() > (1 + _LONGER) * met.calm_ns)

    def end_look(self, found: Diagnosis) -> None:
        """Remember what was found, and release the flows of this look."""
        self._unmeasured.clear()
        troubled = {finding.job for finding in found.findings}
        for job in found.jobs:
            met = self._jobs.get(self._names[job.id])
            if met is not None and job.id in troubled:
                met.calm_ns = None
            elif met is not None and self.needs_findings(job):
                met.calm_ns = _usual_step(job)

    def _is_known(self, name: tuple[str, ...]) -> bool:
        met = self._jobs.get(name)
        return met is not None and self.look < met.due

    def _is_late(self) -> bool:
        """Whether there is no time for another full study; there is for the first of every look."""
        return next(self._turns) > 0 and self.now() > self._study_until

    def _study(self, traffic: Traffic, name: tuple[str, ...], job: ObservedJob, since: int) -> JobDiagnosis:
        met, known = self._jobs.get(name), self._is_known(name)
        late = not known and self._is_late()
        if met is not None and (known or late):
            found = study_job(traffic, job, known=met.known)
            if found.steps.height >= _ENOUGH_STEPS:
                met.step_ns = _usual_step(found)
                return found
        if late or (known and self._is_late()):
            self.put_off[name] = since
            return list_unstudied(traffic, job)
        if name in self._unmeasured:
            job = replace(job, period_ns=measure_period(traffic, *self._unmeasured[name]))
        found = study_job(traffic, job)
        if found.steps.height >= _ENOUGH_STEPS:
            # The first looks may include the start of a job; later all jobs take turns.
            studies = met.studies + 1 if met is not None else 1
            wait = min(2 ** (studies + 1), _MOST_LOOKS)
            learned = remember(traffic, job, found.streams, found.pairs, found.layout, found.stages, found.clock)
            calm_ns = None if met is None else met.calm_ns
            with self._lock:
                due = self._choose_look(self.look + wait, self.look + 2 * wait)
                self._jobs[name] = Acquaintance(learned, _usual_step(found), studies, due, calm_ns)
        else:
            self._jobs.pop(name, None)
        return found

    def _choose_look(self, first: int, end: int) -> int:
        """Of these looks the one at which fewest jobs are due: studying many jobs in one look takes too long."""
        due = Counter(met.due for met in self._jobs.values())
        return min(range(first, end), key=lambda look: due[look])


def _name(traffic: Traffic, endpoints: NDArray[np.int64], pairs: NDArray[np.int64]) -> tuple[str, ...]:
    ports = list_ports(traffic, endpoints, pairs)[:1] if share_hosts(traffic, endpoints) else ()
    return (*traffic.endpoints["address"].gather(endpoints).to_list(), *ports)


def _usual_step(job: JobDiagnosis) -> float:
    return float((job.steps["end_ns"] - job.steps["start_ns"]).median())  # type: ignore[arg-type]

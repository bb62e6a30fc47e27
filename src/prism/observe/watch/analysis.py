"""One look: a diagnosis of the window, in this process or in a process of its own, so that receiving never waits."""

from __future__ import annotations

import multiprocessing
import signal
import time
from collections.abc import Sequence
from concurrent.futures import Future, ProcessPoolExecutor
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Protocol

import numpy as np
import polars as pl

from prism.collect.tables.samples import put_together
from prism.observe.diagnose import diagnose
from prism.observe.diagnosis import Diagnosis, JobDiagnosis
from prism.observe.sampled import keep_certain
from prism.observe.watch.memory import JobMemory
from prism.observe.watch.state import SeenJob, WindowReport
from prism.records.scheduled import ScheduledJob

_STUDY_S = 3.0  # share of a look; known jobs and findings take as long again, and findings are due within 15 s
_RECENT = 5  # steps that show how long steps are now
_LOOKS_PER_PROCESS = 500  # The process is replaced from time to time, so that memory that libraries keep does not grow.


def look_at(
    flows: pl.DataFrame, topology: pl.DataFrame | None, until_ns: int, memory: JobMemory | None = None,
    given: Sequence[ScheduledJob] = (),
) -> WindowReport:  # fmt: skip
    """Diagnose the flows of a window that was observed until a moment, even if nothing was sent at its end.

    `memory` is what earlier looks found; this look adds to it. `given` is what a scheduler says of jobs.
    """
    begin = time.perf_counter()
    if not flows.height:
        return WindowReport(until_ns=until_ns)
    flows, said = put_together(flows)
    memory = memory or JobMemory()
    memory.begin_look(until_ns)
    found = diagnose(
        flows,
        topology,
        study=memory.study,
        estimate_period=memory.estimate_period,
        needs_findings=memory.needs_findings,
        given=given,
        until_ns=until_ns,
    )
    memory.end_look(found)
    found = keep_certain(found, flows, said)
    return WindowReport(
        until_ns=until_ns,
        num_flows=flows.height,
        jobs=tuple(_see(found, j, not memory.is_put_off(j.id)) for j in found.jobs),
        findings=found.findings,
        notes=(*said, *found.notes, *((memory.note,) if memory.note else ())),
        seconds=time.perf_counter() - begin,
    )


def _see(found: Diagnosis, job: JobDiagnosis, studied: bool) -> SeenJob:
    host = dict(found.traffic.endpoints.select("address", "host").iter_rows())
    lengths = (job.steps["end_ns"] - job.steps["start_ns"]).to_numpy() / 1e9 if job.steps.height else np.zeros(0)
    return SeenJob(
        id=job.id, endpoints=job.endpoints, num_steps=job.steps.height, studied=studied, ports=job.ports,
        host_of={address: host[address] for address in job.endpoints if address in host},
        step_s=float(np.median(lengths)) if len(lengths) else None,
        recent_s=float(np.median(lengths[-_RECENT:])) if len(lengths) else None,
        stepped_ns=int(job.steps["end_ns"].max()) if job.steps.height else 0,  # type: ignore[arg-type]
        pause_s=_longest_pause(found, job), over=job.life.state == "ended" and job.observed.given is not None,
    )  # fmt: skip


def _longest_pause(found: Diagnosis, job: JobDiagnosis) -> float:
    """Seconds of the longest silence of a job after which it went on."""
    own = job.messages_in(found.traffic).select("start_ns", "end_ns").sort("start_ns")
    start, end = (own[c].to_numpy() for c in own.columns)
    return float((start[1:] - np.maximum.accumulate(end)[:-1]).max(initial=0)) / 1e9 if len(start) else 0.0


class Analyst(Protocol):
    """Runs looks at windows."""

    def submit(
        self, flows: pl.DataFrame, topology: pl.DataFrame | None, until_ns: int, given: Sequence[ScheduledJob] = ()
    ) -> Future[WindowReport]:
        """Begin a look."""
        ...

    def close(self) -> None:
        """No more looks."""
        ...


class InlineAnalyst:
    """Runs a look at once, in this process: for files, which can wait."""

    def __init__(self) -> None:
        self._memory = JobMemory()

    def submit(
        self, flows: pl.DataFrame, topology: pl.DataFrame | None, until_ns: int, given: Sequence[ScheduledJob] = ()
    ) -> Future[WindowReport]:
        """Run a look to its end."""
        done: Future[WindowReport] = Future()
        try:
            done.set_result(look_at(flows, topology, until_ns, self._memory, given))
        except Exception as error:  # Raised again where the result is read.
            done.set_exception(error)
        return done

    def close(self) -> None:
        """Nothing to release."""


class ProcessAnalyst:
    """Runs looks in a process of its own; a process that dies is replaced at the next look."""

    def __init__(self) -> None:
        self._pool: ProcessPoolExecutor | None = None
        self._folder = TemporaryDirectory(prefix="prism-watch-")
        self._num_looks = 0

    def submit(
        self, flows: pl.DataFrame, topology: pl.DataFrame | None, until_ns: int, given: Sequence[ScheduledJob] = ()
    ) -> Future[WindowReport]:
        """Begin a look."""
        if self._pool is None or getattr(self._pool, "_broken", False):
            self._pool = ProcessPoolExecutor(
                1, multiprocessing.get_context("spawn"), _ignore_interrupts, max_tasks_per_child=_LOOKS_PER_PROCESS
            )
        # Pickling millions of flows for a pipe would block the interpreter and the listener; writing a file does not.
        self._num_looks += 1
        path = Path(self._folder.name) / f"{self._num_looks}.arrow"
        try:
            flows.write_ipc(path, compression="uncompressed")
        except (OSError, pl.exceptions.PolarsError) as error:  # The disk is full: counted as a failed look.
            failed: Future[WindowReport] = Future()
            failed.set_exception(error)
            return failed
        return self._pool.submit(_look_at_file, path, topology, until_ns, given)

    def close(self) -> None:
        """Stop the process after its current look."""
        if self._pool is not None:
            self._pool.shutdown(wait=True, cancel_futures=True)
        self._folder.cleanup()


def _look_at_file(
    path: Path, topology: pl.DataFrame | None, until_ns: int, given: Sequence[ScheduledJob]
) -> WindowReport:
    """A look at the flows of a file, which is removed once it is read."""
    flows = pl.read_ipc(path)
    path.unlink()
    return look_at(flows, topology, until_ns, _memory_of_process(), given)


@cache
def _memory_of_process() -> JobMemory:
    """The memory of the looks of this process; a new process studies all jobs again."""
    return JobMemory(study_s=_STUDY_S)


def _ignore_interrupts() -> None:
    """Ignore Ctrl-C, which reaches the whole process group; the watch decides when this process stops."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)

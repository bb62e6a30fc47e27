"""One look: a diagnosis of the window, in this process or in a process of its own, so that receiving never waits."""

from __future__ import annotations

import multiprocessing
import signal
import time
from concurrent.futures import Future, ProcessPoolExecutor
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Protocol

import polars as pl

from prism.collect.tables.samples import put_together
from prism.observe.diagnose import diagnose, open_case
from prism.observe.diagnosis import Diagnosis
from prism.observe.findings.silence import find_hang
from prism.observe.sampled import keep_certain
from prism.observe.watch.memory import JobMemory
from prism.observe.watch.state import SeenJob, WindowReport
from prism.records import Finding

_STUDY_S = 3.0  # share of a look; known jobs and findings take as long again, and findings are due within 15 s
_LOOKS_PER_PROCESS = 500  # The process is replaced from time to time, so that memory that libraries keep does not grow.


def look_at(
    flows: pl.DataFrame, topology: pl.DataFrame | None, until_ns: int, memory: JobMemory | None = None
) -> WindowReport:
    """Diagnose the flows of a window that was observed until a moment, even if nothing was sent at its end.

    `memory` is what earlier looks found; this look adds to it.
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
    )
    memory.end_look(found)
    found = keep_certain(found, flows, said)
    told = found.findings + _hangs_of_silence(found, until_ns)
    return WindowReport(
        until_ns=until_ns,
        num_flows=flows.height,
        jobs=tuple(
            SeenJob(
                id=j.id,
                endpoints=j.endpoints,
                step_s=_usual_step(j.steps),
                num_steps=j.steps.height,
                studied=not memory.is_put_off(j.id),
                ports=j.ports,
            )
            for j in found.jobs
        ),
        findings=told,
        notes=(*said, *found.notes, *((memory.note,) if memory.note else ())),
        seconds=time.perf_counter() - begin,
    )


def _usual_step(steps: pl.DataFrame) -> float | None:
    lengths = steps.select((pl.col("end_ns") - pl.col("start_ns")).median() / 1e9).item() if steps.height else None
    return None if lengths is None else float(lengths)


def _hangs_of_silence(found: Diagnosis, until_ns: int) -> tuple[Finding, ...]:
    """Hangs that only the silence after the last flow shows: `diagnose` does not look beyond that flow."""
    hung = {f.job for f in found.findings if f.kind == "hang"}
    last = found.traffic.messages["end_ns"].max()
    if not isinstance(last, int) or until_ns <= last:
        return ()
    silent = [open_case(found.traffic, job, until_ns) for job in found.jobs if job.studied and job.id not in hung]
    return tuple(finding for case in silent for finding in find_hang(case))


class Analyst(Protocol):
    """Runs looks at windows."""

    def submit(self, flows: pl.DataFrame, topology: pl.DataFrame | None, until_ns: int) -> Future[WindowReport]:
        """Begin a look."""
        ...

    def close(self) -> None:
        """No more looks."""
        ...


class InlineAnalyst:
    """Runs a look at once, in this process: for files, which can wait."""

    def __init__(self) -> None:
        self._memory = JobMemory()

    def submit(self, flows: pl.DataFrame, topology: pl.DataFrame | None, until_ns: int) -> Future[WindowReport]:
        """Run a look to its end."""
        done: Future[WindowReport] = Future()
        try:
            done.set_result(look_at(flows, topology, until_ns, self._memory))
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

    def submit(self, flows: pl.DataFrame, topology: pl.DataFrame | None, until_ns: int) -> Future[WindowReport]:
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
        return self._pool.submit(_look_at_file, path, topology, until_ns)

    def close(self) -> None:
        """Stop the process after its current look."""
        if self._pool is not None:
            self._pool.shutdown(wait=True, cancel_futures=True)
        self._folder.cleanup()


def _look_at_file(path: Path, topology: pl.DataFrame | None, until_ns: int) -> WindowReport:
    """A look at the flows of a file, which is removed once it is read."""
    flows = pl.read_ipc(path)
    path.unlink()
    return look_at(flows, topology, until_ns, _memory_of_process())


@cache
def _memory_of_process() -> JobMemory:
    """The memory of the looks of this process; a new process studies all jobs again."""
    return JobMemory(study_s=_STUDY_S)


def _ignore_interrupts() -> None:
    """Ignore Ctrl-C, which reaches the whole process group; the watch decides when this process stops."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)

"""The interface of an engine: it starts worker processes on nodes, and runs one job at a time on each."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from prism.errors import BadFileError, InputError, PrismError
from prism.evaluate.run.failures import first_line, is_disk_full
from prism.evaluate.run.worker_context import WorkerContext
from prism.evaluate.schedule.events import Failure


class Job(Protocol):
    """Something to do in a worker process; it must survive pickling."""

    def run(self, place: WorkerContext) -> Any:
        """Do it."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineNode:
    """A machine that an engine can start workers on."""

    id: str
    cpus: int
    gpus: int
    address: str = "127.0.0.1"


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerSpec:
    """A process to start."""

    id: str
    node: str
    gpus: tuple[int, ...] = ()
    cpus: float = 1.0  # that it keeps busy, where an engine counts them


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """How a job ended: a value, or why there is none."""

    value: Any = None
    failure: Failure | None = None
    text: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Returned:
    """A worker has done its job and waits for the next."""

    worker: str
    outcome: Outcome


@dataclass(frozen=True, slots=True, kw_only=True)
class Gone:
    """A worker's process ended by itself."""

    worker: str
    text: str


Report = Returned | Gone


class Engine(Protocol):
    """A cluster, or this machine."""

    name: str

    def nodes(self) -> Sequence[EngineNode]:
        """The machines that are alive now."""
        ...

    def start(self, spec: WorkerSpec) -> None:
        """Start a worker process."""
        ...

    def submit(self, worker: str, job: Job) -> None:
        """Hand a worker its next job; it must be idle. One that is gone by now is reported by `wait`."""
        ...

    def wait(self, timeout_s: float) -> list[Report]:
        """What has happened, at the latest after `timeout_s`."""
        ...

    def stop(self, worker: str) -> None:
        """End a worker process and whatever it does; nothing more is reported of it."""
        ...

    def close(self) -> None:
        """End all workers."""
        ...


def run_job(job: Job, place: WorkerContext) -> Outcome:
    """Run a job in this process; whatever it raises becomes an outcome."""
    try:
        return Outcome(value=job.run(place))
    except MemoryError as error:
        place.cache.clear()
        return Outcome(failure=Failure.MEMORY, text=f"out of memory: {error}")
    except BadFileError as error:
        return Outcome(failure=Failure.LOAD, text=str(error))
    except (InputError, PrismError) as error:
        return Outcome(failure=Failure.OTHER, text=str(error))
    except OSError as error:
        failure = Failure.DISK if is_disk_full(error) else Failure.OTHER
        return Outcome(failure=failure, text=f"{error.strerror}: {error.filename or ''}")
    except Exception as error:  # the outermost loop of a worker: the scheduler reports, counts and retries it
        if type(error).__name__ == "OutOfMemoryError":  # torch's, which must not be imported here
            place.cache.clear()
            return Outcome(failure=Failure.MEMORY, text=first_line(error))
        if os.environ.get("PRISM_DEBUG"):
            raise
        return Outcome(failure=Failure.OTHER, text=f"{type(error).__name__}: {first_line(error)}")

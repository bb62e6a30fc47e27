"""Workers as actors of a Ray cluster, embedded or running already. The only file that knows Ray."""

from __future__ import annotations

import contextlib
import logging
import socket
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import ray
from ray.exceptions import RayError, RayTaskError
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from prism.errors import PrismError
from prism.evaluate.run.engines.engine import EngineNode, Gone, Job, Outcome, Report, Returned, WorkerSpec, run_job
from prism.evaluate.run.engines.local import count_gpus
from prism.evaluate.run.failures import first_line
from prism.evaluate.run.worker_context import WorkerContext
from prism.evaluate.schedule.events import Failure

_ATTEMPTS = 3  # to start an embedded Ray
_ANSWER_S = 10.0  # that a cluster may take to accept a connection
_STORE_BYTES = 80 << 20  # only jobs and small results pass through Ray
# A dead node is found after a few seconds instead of Ray's half minute.
_SYSTEM = {"health_check_period_ms": 1000, "health_check_timeout_ms": 3000, "health_check_failure_threshold": 3}


class _WorkerActor:
    """The actor: runs jobs in a process of its own."""

    def __init__(self) -> None:
        self._place = WorkerContext()

    def run(self, job: Job) -> Outcome:
        """Run one job."""
        return run_job(job, self._place)

    def leave(self) -> None:
        """Give back what is held, before the process ends."""
        self._place.close()


class RayEngine:
    """A Ray cluster; an embedded one whose node process died is started anew."""

    name = "ray"

    def __init__(self, address: str | None, num_slots: int) -> None:
        self._address = address
        self._num_slots = num_slots
        self._actors: dict[str, Any] = {}
        self._counted: dict[str, WorkerSpec] = {}  # workers whose CPUs Ray counts
        self._num_cpus: dict[str, int] = {}  # by node
        self._running: dict[Any, str] = {}
        self._lost: list[str] = []  # given a job after they were gone with a node
        self._connect()

    def nodes(self) -> Sequence[EngineNode]:
        """Nodes that Ray counts as alive; none where Ray cannot be asked."""
        try:
            alive = _list_alive()
        except Exception:  # Ray's client raises whatever its transport does
            alive = []
        if not alive and self._address is None:
            self._restart()
            alive = _list_alive()
        self._num_cpus = {node.id: node.cpus for node in alive}
        return alive

    def start(self, spec: WorkerSpec) -> None:
        """Make an actor on a node; one that the node has no CPUs left for is not counted, or it would never begin."""
        taken = sum(other.cpus for other in self._counted.values() if other.node == spec.node)
        counts = taken + spec.cpus <= self._num_cpus.get(spec.node, 0)
        if counts:
            self._counted[spec.id] = spec
        actor = ray.remote(_WorkerActor).options(
            num_cpus=spec.cpus if counts else 0,
            num_gpus=len(spec.gpus),
            max_restarts=0,
            max_task_retries=0,
            scheduling_strategy=NodeAffinitySchedulingStrategy(spec.node, soft=False),
        )
        self._actors[spec.id] = actor.remote()

    def submit(self, worker: str, job: Job) -> None:
        """Call the actor; one that is gone is found by `wait`."""
        if (actor := self._actors.get(worker)) is None:
            self._lost.append(worker)
        else:
            self._running[actor.run.remote(job)] = worker

    def wait(self, timeout_s: float) -> list[Report]:
        """Collect calls that have returned, at the latest after `timeout_s`."""
        if self._lost:
            lost, self._lost = self._lost, []
            return [Gone(worker=worker, text="before its job") for worker in lost]
        if not self._running:
            time.sleep(timeout_s)
            return []
        waiting = list(self._running)
        ready, rest = ray.wait(waiting, num_returns=1, timeout=timeout_s)
        if ready and rest:
            ready += ray.wait(rest, num_returns=len(rest), timeout=0)[0]
        return [self._report(ref) for ref in ready]

    def stop(self, worker: str) -> None:
        """Kill an actor."""
        self._running = {ref: name for ref, name in self._running.items() if name != worker}
        self._lost = [name for name in self._lost if name != worker]
        if (actor := self._forget(worker)) is not None:
            with contextlib.suppress(RayError, ValueError):
                ray.kill(actor)

    def close(self) -> None:
        """Let idle actors give back what they hold, then end all."""
        busy = set(self._running.values())
        leaving = [actor.leave.remote() for name, actor in self._actors.items() if name not in busy]
        with contextlib.suppress(Exception):  # a node that died cannot answer
            ray.wait(leaving, num_returns=len(leaving), timeout=5)
        for worker in list(self._actors):
            self.stop(worker)
        ray.shutdown()

    def _report(self, ref: Any) -> Report:
        worker = self._running.pop(ref)
        try:
            return Returned(worker=worker, outcome=ray.get(ref))
        except RayTaskError as error:  # the job could not be read there: another version, a module missing
            cause = f"the worker cannot read its job: {error.cause}"
            return Returned(worker=worker, outcome=Outcome(failure=Failure.OTHER, text=cause))
        except RayError as error:
            self._forget(worker)
            return Gone(worker=worker, text=type(error).__name__)

    def _forget(self, worker: str) -> Any:
        self._counted.pop(worker, None)
        return self._actors.pop(worker, None)

    def _connect(self) -> None:
        for attempt in range(1, _ATTEMPTS + 1):
            before = _list_ray_children()
            try:
                self._initialise()
                return
            except Exception as error:  # Ray raises plain exceptions too
                with contextlib.suppress(Exception):
                    ray.shutdown()
                _end(_list_ray_children() - before)
                # On a busy machine an embedded Ray may miss its own time limit.
                if self._address is not None or attempt == _ATTEMPTS:
                    raise PrismError(_explain(error, self._address)) from None

    def _initialise(self) -> None:
        quiet = {"log_to_driver": False, "logging_level": "ERROR", "namespace": "prism-evaluate"}
        if self._address is not None:
            _check_reachable(self._address)
            _show_token()
            ray.init(address=self._address, **quiet)
            return
        ray.init(
            address="local",
            num_cpus=self._num_slots,
            num_gpus=count_gpus(),
            include_dashboard=False,
            object_store_memory=_STORE_BYTES,
            _system_config=_SYSTEM,
            **quiet,
        )

    def _restart(self) -> None:
        self._actors.clear()
        self._counted.clear()
        self._running.clear()
        with contextlib.suppress(Exception):
            ray.shutdown()
        self._connect()


def _list_ray_children() -> set[Any]:
    """Processes of Ray that this process started, with theirs."""
    import psutil  # Ray brings it along

    folder = str(Path(ray.__file__).parent)
    found = set()
    for process in psutil.Process().children(recursive=True):
        with contextlib.suppress(psutil.Error):
            if any(folder in word for word in process.cmdline()):
                found.add(process)
    return found


def _end(processes: set[Any]) -> None:
    """End what a start that failed left running: Ray itself does so when we exit, and the next start would meet it."""
    for process in processes:
        with contextlib.suppress(Exception):  # it ended by itself
            process.kill()
    for process in processes:
        with contextlib.suppress(Exception):
            process.wait(_ANSWER_S)


def _check_reachable(address: str) -> None:
    """Raise at once where nothing listens: Ray itself would try for minutes and print every attempt."""
    host, colon, port = address.rpartition(":")
    if colon and port.isdecimal() and "/" not in host:
        socket.create_connection((host.strip("[]"), int(port)), timeout=_ANSWER_S).close()


def _show_token() -> None:
    """Let Ray show this machine's token, if there is one: a cluster that `ray start` began beside a token asks for it.

    Ray does so by itself only for the address "auto"; a cluster that asks for none does not mind.
    """
    try:
        from ray._private.authentication import authentication_token_setup as tokens

        show = tokens.maybe_enable_token_auth_if_token_available
    except (ImportError, AttributeError):  # before Ray 2.60, tokens are shown where RAY_AUTH_MODE says so
        return
    logging.getLogger("ray").setLevel(logging.ERROR)  # it would explain tokens at length
    show(warn_if_disabled=False)


def _explain(error: Exception, address: str | None) -> str:
    """Why there is no Ray, and what to do."""
    if address is None:
        return f"an embedded Ray cannot be started ({first_line(error)}); use --engine local"
    if "InvalidAuthToken" in f"{error} {error.__cause__}":
        return f"Ray at {address} asks for its token: set RAY_AUTH_TOKEN, or copy ~/.ray/auth_token from its head node"
    return f"Ray at {address} cannot be used ({first_line(error)}); check the address, or use --engine local"


def _list_alive() -> list[EngineNode]:
    return [_describe(node) for node in ray.nodes() if node["Alive"]]


def _describe(node: dict[str, Any]) -> EngineNode:
    resources = node["Resources"]
    return EngineNode(
        id=node["NodeID"],
        cpus=int(resources.get("CPU", 0)),
        gpus=int(resources.get("GPU", 0)),
        address=node["NodeManagerAddress"],
    )

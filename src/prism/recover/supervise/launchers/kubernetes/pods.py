"""The status of an attempt from its pods: which rank runs on which node, and how each ended. No requests."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from prism.recover.supervise.launchers import Look
from prism.recover.supervise.launchers.kubernetes.credentials import parse_time

COMPLETION_INDEX = "batch.kubernetes.io/job-completion-index"
JOB_INDEX = "jobset.sigs.k8s.io/job-index"
REPLICATED_JOB = "jobset.sigs.k8s.io/replicatedjob-name"
TRAINERS = ("trainer", "node", "pytorch")  # names of the container that trains: ours, Kubeflow Trainer's, v1's
_TOLD = 128 + 15
# Status reasons of pods that the cluster ended: they did not fail.
_TOLD_REASONS = {"Evicted", "Preempted", "Preempting", "NodeShutdown", "Shutdown", "Terminated"}
_LOST_REASONS = {"NodeLost"}
_BY_POD_GC = {"DeletionByPodGC"}  # its node is gone from the cluster
_STARTING = {"ContainerCreating", "PodInitializing"}  # no trouble yet


@dataclass(frozen=True, slots=True, kw_only=True)
class PodState:
    """One pod as far as the attempt is concerned."""

    name: str
    uid: str
    node: str = ""  # empty: not placed yet
    place: tuple[str, int, int] = ("", 0, 0)  # replicated job, job in it, pod in that: the order of the ranks
    container: str = ""
    started: bool = False
    over: bool = False  # will not run again
    code: int | None = None
    reason: str = ""  # OOMKilled, Evicted, ...
    disrupted: bool = False  # evicted, preempted or drained: the cluster says so
    deleted: bool = False  # by a person, or by a controller after another pod failed
    lost: bool = False  # its node is gone
    ended_s: float = 0.0
    restarts: int = 0  # of the container, in place
    waits_for: str = ""  # why it does not start

    @property
    def told_to_go(self) -> bool:
        """Whether it ends because it was asked to."""
        return self.disrupted or self.deleted

    @property
    def failed(self) -> bool:
        """Whether it ended without having finished its work."""
        return self.over and (self.code != 0 or self.told_to_go)

    @property
    def exit_code(self) -> int | None:
        """Its exit code; that of SIGTERM if it was asked to end, even if it saved and exited with 0."""
        return _TOLD if self.told_to_go and not self.lost else self.code


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkloadState:
    """The JobSet, TrainJob or Job itself."""

    name: str
    exists: bool = True
    complete: bool = False
    failed: str = ""  # why, where it did
    num_pods: int | None = None  # None: the cluster decides


@dataclass(frozen=True, slots=True, kw_only=True)
class Judging:
    """What else is needed to judge the pods."""

    replaced: bool = False  # Kubernetes replaces failed pods: only the workload's own end counts
    lost_nodes: frozenset[str] = field(default_factory=frozenset)


def read_pod(pod: Mapping[str, Any], container: str = "", gone: bool = False) -> PodState:
    """A pod of the API; `gone`: it was deleted since, and this is how it was seen last."""
    meta, spec, status = (pod.get(part) or {} for part in ("metadata", "spec", "status"))
    marks = {**(meta.get("labels") or {}), **(meta.get("annotations") or {})}
    name = container or trainer_of(spec)
    own = pick(status.get("containerStatuses"), "name", name)
    state = own.get("state") or {}
    ended = state.get("terminated") or {}
    phase, reason = str(status.get("phase", "")), str(status.get("reason", ""))
    target = pick(status.get("conditions"), "type", "DisruptionTarget")
    disrupted = target.get("status") == "True"
    again = spec.get("restartPolicy") == "Always" or (
        spec.get("restartPolicy") == "OnFailure" and ended.get("exitCode") != 0
    )
    over = gone or phase in ("Succeeded", "Failed") or (bool(ended) and not again)
    code = ended.get("exitCode", 0 if phase == "Succeeded" else None)
    finished = str(ended.get("finishedAt") or target.get("lastTransitionTime") or meta.get("deletionTimestamp") or "")
    return PodState(
        name=str(meta.get("name", "")),
        uid=str(meta.get("uid") or meta.get("name", "")),
        node=str(spec.get("nodeName") or ""),
        place=(str(marks.get(REPLICATED_JOB, "")), _number(marks.get(JOB_INDEX)), _number(marks.get(COMPLETION_INDEX))),
        container=name,
        started=bool(state.get("running") or ended) or phase in ("Running", "Succeeded", "Failed"),
        over=over,
        code=None if code is None else int(code),
        reason=str(target.get("reason") or "") if disrupted else reason or str(ended.get("reason") or ""),
        disrupted=disrupted or reason in _TOLD_REASONS,
        deleted=gone or bool(meta.get("deletionTimestamp")),
        lost=reason in _LOST_REASONS or phase == "Unknown" or target.get("reason") in _BY_POD_GC,
        ended_s=parse_time(finished),
        restarts=int(own.get("restartCount") or 0),
        waits_for=_waits_for(status, state),
    )


def trainer_of(spec: Mapping[str, Any]) -> str:
    """The container that trains: one with a known name, or the first."""
    names = [str(c.get("name", "")) for c in spec.get("containers") or ()]
    return next((name for name in TRAINERS if name in names), names[0] if names else "")


def read_workload(item: Mapping[str, Any] | None, name: str, num_pods: int | None) -> WorkloadState:
    """The end of the workload, from its own conditions."""
    if item is None:
        return WorkloadState(name=name, exists=False, num_pods=num_pods)
    conditions = (item.get("status") or {}).get("conditions") or ()
    true = {str(c.get("type")): c for c in conditions if c.get("status") == "True"}
    failed = true.get("Failed")
    why = "" if failed is None else f"{failed.get('reason', '')}: {failed.get('message', '')}".strip(": ") or "Failed"
    complete = "Complete" in true or "Completed" in true  # the second is a JobSet's word
    return WorkloadState(name=name, complete=complete, failed=why, num_pods=num_pods)


def judge(pods: list[PodState], workload: WorkloadState, judging: Judging) -> Look:
    """The status of the attempt."""
    ordered = sorted(pods, key=lambda pod: pod.place)
    hosts = tuple(dict.fromkeys(pod.node for pod in ordered if pod.node))
    lost = next((pod.node for pod in ordered if _is_lost(pod, judging)), None)
    if lost is not None:
        return Look(running=False, codes={lost: None}, first_failed=lost, lost=True, hosts=hosts)
    codes = _codes(ordered)
    if workload.complete or (not judging.replaced and _all_succeeded(ordered, workload)):
        return Look(running=False, codes=codes or {workload.name: 0}, hosts=hosts)
    failed = [pod for pod in ordered if pod.failed]
    ended = bool(workload.failed) or not workload.exists
    if failed and (not judging.replaced or ended):
        first = min(failed, key=_order_of_failure)
        codes[first.node or first.name] = first.exit_code
        return Look(running=False, codes=codes, first_failed=first.node or first.name, hosts=hosts)
    if ended:
        return Look(running=False, codes={workload.name: None}, first_failed=workload.name, hosts=hosts)
    placed = [pod for pod in ordered if pod.started]
    waiting = len(placed) < (workload.num_pods or max(1, len(ordered)))
    living = tuple(dict.fromkeys(pod.node for pod in ordered if pod.node and not pod.failed))  # without replaced ones
    return Look(running=True, queued=waiting, hosts=() if waiting else living)


def _codes(pods: list[PodState]) -> dict[str, int | None]:
    """Exit codes per node; of several pods on one, a failure wins."""
    codes: dict[str, int | None] = {}
    for pod in sorted((p for p in pods if p.over), key=lambda p: p.failed):
        codes[pod.node or pod.name] = pod.exit_code
    return codes


def _all_succeeded(pods: list[PodState], workload: WorkloadState) -> bool:
    done = [pod for pod in pods if pod.over and not pod.failed]
    return workload.num_pods is not None and len(done) >= workload.num_pods and not any(p.failed for p in pods)


def _is_lost(pod: PodState, judging: Judging) -> bool:
    # A pod that ended by itself before its node was lost has its own exit code.
    return pod.lost or (pod.node in judging.lost_nodes and not (pod.over and pod.code is not None))


def _order_of_failure(pod: PodState) -> tuple[bool, float, int]:
    """Who failed first. A pod that was only deleted comes last: controllers delete the others after a failure. Times
    are whole seconds: within one, a kill comes before an exit code, which may be the consequence of a peer's loss."""
    kind = 0 if pod.disrupted else 1 if pod.code is None or pod.code > 128 else 2
    return (pod.deleted and not pod.disrupted, pod.ended_s or float("inf"), kind)


def _waits_for(status: Mapping[str, Any], state: Mapping[str, Any]) -> str:
    """Why a pod does not start, unless it is about to."""
    waiting = state.get("waiting") or {}
    if waiting.get("reason") and waiting["reason"] not in _STARTING:
        return f"{waiting['reason']}: {waiting.get('message', '')}".strip(": ")[:200]
    placed = pick(status.get("conditions"), "type", "PodScheduled")
    if placed.get("status") == "False":
        return f"{placed.get('reason', '')}: {placed.get('message', '')}".strip(": ")[:200]
    return ""


def pick(entries: Iterable[Mapping[str, Any]] | None, key: str, value: str) -> Mapping[str, Any]:
    """The entry of a list that has this value; empty where none has."""
    return next((entry for entry in entries or () if entry.get(key) == value), {})


def _number(text: object) -> int:
    try:
        return int(str(text))
    except ValueError:
        return 0

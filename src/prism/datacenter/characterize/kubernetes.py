"""Kubernetes objects as job tables: pods, jobs and Kueue workloads, from `kubectl -o json` or a watch."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import polars as pl

from prism.datacenter.characterize.fields import mig_share
from prism.errors import BadFileError

COLUMNS = (
    "name", "user", "state", "gpus", "creationTimestamp", "startTime", "completionTime", "node_list", "reason", "kind",
)  # fmt: skip
_WHOLE_GPUS = ("nvidia.com/gpu", "amd.com/gpu", "gpu.intel.com/i915", "gpu.intel.com/xe", "habana.ai/gaudi")
_LASTING = ("Deployment", "ReplicaSet", "StatefulSet", "DaemonSet", "CronJob", "Workload")
_COUNTS = ("replicas", "parallelism", "numNodes", "count")
_OWNERS = ("kueue.x-k8s.io/queue-name", "user", "owner", "app.kubernetes.io/created-by")
Object = Mapping[str, Any]


def is_kubernetes(document: Any) -> bool:
    """Whether JSON is a Kubernetes object, a list of them, or an event of a watch."""
    if not isinstance(document, dict):
        return False
    return ("apiVersion" in document and "kind" in document) or ("object" in document and "type" in document)


def read_objects(documents: Iterable[Object], where: str) -> pl.DataFrame:
    """One row per pod, job or workload; of a watch, the last state of each. Pods of a listed job are left out."""
    try:
        latest = _keep_latest(documents)
        rows = [_flatten(item, deleted) for item, deleted in _choose(latest)]
    except (TypeError, AttributeError, KeyError, ValueError, OverflowError):
        raise BadFileError(
            f"{where}: an object without the fields of a pod, job or workload; export again with -o json"
        ) from None
    if not rows:
        kinds = sorted({repr(item.get("kind"))[:40] for item, _ in latest.values()})
        held = f"it holds {', '.join(kinds[:8])}" if kinds else "it holds none"
        raise BadFileError(f"{where}: no pods, jobs or workloads ({held}); give kubectl get pods,jobs -A -o json")
    return pl.DataFrame(rows, schema=dict.fromkeys(COLUMNS, pl.String), orient="row")


def _keep_latest(documents: Iterable[Object]) -> dict[str, tuple[Object, bool]]:
    """The last state of each object, and whether it was deleted."""
    latest: dict[str, tuple[Object, bool]] = {}
    for document in documents:
        for item, deleted in _unwrap(document):
            metadata = item.get("metadata") or {}
            key = str(metadata.get("uid") or f"{item.get('kind')}/{metadata.get('namespace')}/{metadata.get('name')}")
            latest[key] = (item, deleted)
    return latest


def _unwrap(document: Object) -> list[tuple[Object, bool]]:
    """The objects in a list, an event of a watch, or an object itself; with whether it was deleted."""
    if "object" in document and "type" in document and isinstance(document["object"], dict):
        return (
            [] if document["type"] in ("BOOKMARK", "ERROR") else [(document["object"], document["type"] == "DELETED")]
        )
    if isinstance(document.get("items"), list):
        kind = str(document.get("kind", "List")).removesuffix("List")  # items of a PodList do not repeat their kind
        items = [item for item in document["items"] if isinstance(item, dict)]
        return [({"kind": kind, **item} if kind else item, False) for item in items]
    return [(document, False)]


def _choose(latest: Mapping[str, tuple[Object, bool]]) -> list[tuple[Object, bool]]:
    """Workloads if there are any, else jobs and those pods that belong to none of them."""
    kept = [pair for pair in latest.values() if pair[0].get("kind") == "Workload"]
    if kept:
        return kept
    jobs = [pair for pair in latest.values() if _is_job(pair[0])]
    own = {(item.get("metadata") or {}).get("uid") for item, _ in jobs}
    pods = [pair for pair in latest.values() if pair[0].get("kind") == "Pod"]
    return jobs + [pair for pair in pods if not own & {owner.get("uid") for owner in _owners(pair[0])}]


def _is_job(item: Object) -> bool:
    """A job of any operator: its specification has templates of pods, and it is none of what runs for ever."""
    kind = str(item.get("kind"))
    return kind not in (*_LASTING, "Pod") and any(True for _ in _find_templates(item.get("spec") or {}))


def _find_templates(spec: Any, count: float = 1.0) -> Iterator[tuple[float, Object]]:
    """Every pod template below a specification, with how many pods are made of it."""
    if not isinstance(spec, dict | list):
        return
    if isinstance(spec, list):
        for part in spec:
            yield from _find_templates(part, count)
        return
    pods = next((spec[name] for name in _COUNTS if isinstance(spec.get(name), int | float)), 1)
    for name, value in spec.items():
        inner = value.get("spec") if isinstance(value, dict) else None
        if name == "template" and isinstance(inner, dict) and "containers" in inner:
            yield count * float(pods), inner
        else:
            yield from _find_templates(value, count * float(pods))


def _owners(item: Object) -> Sequence[Object]:
    return (item.get("metadata") or {}).get("ownerReferences") or []


def _flatten(item: Object, deleted: bool) -> tuple[str | None, ...]:
    metadata = item["metadata"]
    status = item.get("status") or {}
    read = {"Pod": _read_pod, "Workload": _read_workload}.get(str(item["kind"]), _read_job)
    state, gpus, start, end, nodes, reason = read(item["spec"], status)
    if deleted and end is None:
        end, state = metadata.get("deletionTimestamp"), "deleted"
    labels = {**(metadata.get("annotations") or {}), **(metadata.get("labels") or {})}
    user = next((str(labels[name]) for name in _OWNERS if labels.get(name)), metadata.get("namespace"))
    name = "/".join(str(part) for part in (metadata.get("namespace"), metadata["name"]) if part)
    values = (
        name,
        user,
        state,
        f"{gpus:.9g}",
        metadata.get("creationTimestamp"),
        start,
        end,
        nodes,
        reason,
        item["kind"],
    )
    return tuple(None if value is None else str(value) for value in values)


Read = tuple[str | None, float, Any, Any, Any, Any]


def _read_pod(spec: Object, status: Object) -> Read:
    # Pods start when the scheduler binds them, because their GPUs are in use from then on.
    bound = _condition(status, "PodScheduled")
    start = (bound or {}).get("lastTransitionTime") or status.get("startTime")
    ended = [
        part["state"]["terminated"]
        for part in status.get("containerStatuses") or []
        if (part.get("state") or {}).get("terminated")
    ]
    over = status.get("phase") in ("Succeeded", "Failed")
    end = max((str(part["finishedAt"]) for part in ended if part.get("finishedAt")), default=None) if over else None
    why = status.get("reason") or next((part.get("reason") for part in ended if part.get("exitCode")), None)
    state = {"Evicted": "evicted", "OOMKilled": "oomkilled", "NodeLost": "nodelost", "Preempting": "preempted"}.get(
        str(why), status.get("phase")
    )
    return state, count_pod_gpus(spec), start, end, spec.get("nodeName"), why if over else None


def _read_job(spec: Object, status: Object) -> Read:
    """A Job, or one of PyTorchJob, MPIJob, RayJob, TrainJob, JobSet, Volcano's Job and the like."""
    failed = _condition(status, "Failed")
    complete = _condition(status, "Complete") or _condition(status, "Succeeded") or _condition(status, "Completed")
    phase = next((status[key] for key in ("phase", "jobStatus", "jobDeploymentStatus") if status.get(key)), None)
    phase = (status.get("state") or {}).get("phase", phase) if isinstance(status.get("state"), dict) else phase
    over = str(phase).lower() in ("completed", "succeeded", "failed", "aborted", "terminated", "stopped")
    moved = (status.get("state") or {}).get("lastTransitionTime") if isinstance(status.get("state"), dict) else None
    begun = _condition(status, "Running") or {}
    start = status.get("startTime") or status.get("minStartTime") or begun.get("lastTransitionTime")
    end = status.get("completionTime") or status.get("endTime")
    end = end or (failed or complete or {}).get("lastTransitionTime") or (moved if over else None)
    why = str(failed.get("reason")) if failed else None
    active = "Running" if status.get("active") or (begun and not end) else "Pending"
    state = (
        "deadlineexceeded" if why == "DeadlineExceeded" else "Failed" if failed else "Complete" if complete else None
    )
    gpus = sum(count * count_pod_gpus(pod) for count, pod in _find_templates(spec))
    if isinstance(status.get("state"), dict) and start is None:
        held = (c for c in status.get("conditions") or [] if c.get("status") == "Running")  # Volcano's own form
        start = dict(next(held, {"lastTransitionTime": None}))["lastTransitionTime"]
    return state or phase or active, gpus, start, end, None, why


def _read_workload(spec: Object, status: Object) -> Read:
    """Kueue: a workload starts when it is admitted, because its quota is in use from then on."""
    admission = status.get("admission") or {}
    lent = [_count(assigned.get("resourceUsage") or {}) for assigned in admission.get("podSetAssignments") or []]
    asked = sum(int(part.get("count", 1)) * count_pod_gpus(part["template"]["spec"]) for part in spec["podSets"])
    admitted, finished = _condition(status, "Admitted"), _condition(status, "Finished")
    start = (admitted or _condition(status, "QuotaReserved") or {}).get("lastTransitionTime")
    if finished:
        words = f"{finished.get('reason', '')} {finished.get('message', '')}".lower()
        state = "Failed" if "fail" in words or "deadline" in words else "Succeeded"
        return state, sum(lent) or asked, start, finished.get("lastTransitionTime"), None, None
    evicted = _condition(status, "Evicted")
    state = "Running" if admitted else "preempted" if evicted and start else "Pending"
    return state, sum(lent) or asked, start if admitted else None, None, None, None


def _condition(status: Object, name: str) -> Object | None:
    """A condition that holds."""
    held = (c for c in status.get("conditions") or [] if c.get("type") == name and c.get("status") == "True")
    return next(held, None)


def count_pod_gpus(spec: Object) -> float:
    """GPUs of a pod; its init containers run before the others, so the larger of both counts."""

    def needs(container: Object) -> float:
        resources = container.get("resources") or {}
        return _count(resources.get("limits") or resources.get("requests") or {})

    main = sum(needs(container) for container in spec.get("containers") or [])
    return max([main, *(needs(container) for container in spec.get("initContainers") or [])])


def _count(resources: Mapping[str, Any]) -> float:
    """GPUs among resources; a MIG device is its share of one."""
    whole = sum(float(resources[name]) for name in _WHOLE_GPUS if name in resources)
    sliced = (
        (mig_share(name) or 0.0) * float(count)
        for name, count in resources.items()
        if name.startswith("nvidia.com/mig-")
    )
    return whole + sum(sliced)

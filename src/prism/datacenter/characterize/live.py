"""Job tables from running systems: Slurm's accounting, and a Kubernetes watch that also keeps deleted pods."""

from __future__ import annotations

import json
import os
import subprocess
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from prism.datacenter.characterize.formats import SACCT_FORMAT
from prism.errors import BadConfigError, BadFileError

KUEUE = "/apis/kueue.x-k8s.io"
SOURCES = ("sacct", "kubernetes", "kueue")
DEFAULT_SINCE = "now-28days"  # four weeks: two to compare, two for the trend

_KEPT_METADATA = ("uid", "name", "namespace", "creationTimestamp", "deletionTimestamp", "labels", "ownerReferences")
_KEPT_STATUS = (
    "phase", "reason", "startTime", "completionTime", "active", "conditions", "containerStatuses", "admission",
)  # fmt: skip


def fetch_sacct(since: str, target: Path) -> None:
    """Write Slurm's accounting since a time (in sacct's format) as its parsable table."""
    command = ["sacct", "--allusers", "--parsable2", f"--starttime={since}", f"--format={SACCT_FORMAT}"]
    # Times as seconds of the epoch need no zone, and no clock change shifts them.
    environment = {**os.environ, "SLURM_TIME_FORMAT": "%s"}
    with target.open("wb") as file:
        _run(command, file, environment)


def list_objects(source: str, store: Path) -> str:
    """Add the cluster's present objects to a store; returns the version from which a watch continues."""
    path = _find_path(source)
    answer = _get(path)
    try:
        listed = json.loads(answer)
        version = str(listed["metadata"]["resourceVersion"])
        kind = str(listed["kind"]).removesuffix("List")
        fresh = [{"type": "ADDED", "object": _slim({"kind": kind, **item})} for item in listed["items"]]
    except (ValueError, TypeError, KeyError, AttributeError):
        raise BadFileError(f"kubectl get --raw {path}: did not give a list of objects; check the API server") from None
    present = {_name(event) for event in fresh}
    # Missing objects were deleted while no watch ran, at an unknown time.
    past = [event if _name(event) in present else {**event, "type": "DELETED"} for event in _read_store(store)]
    known = {_name(event): event for event in (*past, *fresh)}
    temporary = store.with_name(store.name + ".new")
    try:
        temporary.write_text("".join(json.dumps(event) + "\n" for event in known.values()), encoding="utf-8")
        temporary.replace(store)
    except OSError as error:
        raise BadFileError(f"{store}: cannot be written ({error.strerror}); choose another --store") from None
    return version


def watch_objects(source: str, store: Path, version: str, seconds: int) -> int:
    """Add the events of a cluster to a store for this many seconds; returns their number."""
    query = f"watch=1&resourceVersion={version}&timeoutSeconds={max(seconds, 1)}"
    command = ["kubectl", "get", "--raw", f"{_find_path(source)}?{query}"]
    count, deadline = 0, time.monotonic() + seconds + 30
    with store.open("a", encoding="utf-8") as file, _start(command) as watch:
        assert watch.stdout is not None
        for line in watch.stdout:
            try:
                event = json.loads(line)
                kept = {"type": str(event["type"]), "object": _slim(event["object"])}
            except (ValueError, TypeError, KeyError, AttributeError):
                continue  # A line that was cut off when the server closed the watch.
            if kept["type"] in ("ADDED", "MODIFIED", "DELETED"):
                file.write(json.dumps(kept) + "\n")
                file.flush()
                count += 1
            if time.monotonic() > deadline:
                watch.terminate()
                break
    return count


def _find_path(source: str) -> str:
    """Where the API server lists the objects; Kueue's version is the one that this cluster prefers."""
    if source == "kubernetes":
        return "/api/v1/pods"
    try:
        version = str(json.loads(_get(KUEUE))["preferredVersion"]["version"])
    except (ValueError, TypeError, KeyError):
        raise BadFileError(
            f"kubectl get --raw {KUEUE}: names no version; is Kueue installed in this cluster?"
        ) from None
    return f"{KUEUE}/{version}/workloads"


def _get(path: str) -> bytes:
    return _run(["kubectl", "get", "--raw", path], subprocess.PIPE, dict(os.environ))


def _read_store(store: Path) -> Iterator[dict[str, Any]]:
    if not store.exists():
        return
    with store.open(encoding="utf-8", errors="replace") as file:
        for number, line in enumerate(file, 1):
            try:
                event = json.loads(line)
                _name(event)
            except (ValueError, TypeError, KeyError, AttributeError):
                if line.endswith("\n"):
                    raise BadFileError(
                        f"{store} line {number}: is no event of a watch; give --store a new file"
                    ) from None
                continue  # The last line was cut off when the watch was stopped.
            yield event


def _name(event: Mapping[str, Any]) -> str:
    metadata = event["object"]["metadata"]
    return str(metadata.get("uid") or f"{metadata.get('namespace')}/{metadata['name']}")


def _slim(item: Mapping[str, Any]) -> dict[str, Any]:
    """The parts of an object that a report needs: a pod's environment, volumes and mounts may hold secrets."""
    metadata, status = item["metadata"], item.get("status") or {}
    spec = item.get("spec") or {}
    return {
        "apiVersion": item.get("apiVersion", "v1"),
        "kind": item["kind"],
        "metadata": {name: metadata[name] for name in _KEPT_METADATA if metadata.get(name)},
        "spec": _slim_spec(spec),
        "status": {name: status[name] for name in _KEPT_STATUS if status.get(name)},
    }


def _slim_spec(spec: Mapping[str, Any]) -> dict[str, Any]:
    kept: dict[str, Any] = {
        name: spec[name] for name in ("nodeName", "parallelism", "count", "queueName") if name in spec
    }
    for name in ("containers", "initContainers"):
        if name in spec:
            kept[name] = [{"resources": part.get("resources") or {}} for part in spec[name] or []]
    if "template" in spec:
        kept["template"] = {"spec": _slim_spec((spec["template"] or {}).get("spec") or {})}
    if "podSets" in spec:
        kept["podSets"] = [_slim_spec(part) for part in spec["podSets"] or []]
    return kept


def _start(command: list[str]) -> subprocess.Popen[str]:
    try:
        return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
    except OSError:
        raise BadConfigError(_explain_missing(command[0])) from None


def _run(command: list[str], out: Any, environment: Mapping[str, str]) -> bytes:
    try:
        done = subprocess.run(command, stdout=out, stderr=subprocess.PIPE, env=environment, check=False)
    except OSError:
        raise BadConfigError(_explain_missing(command[0])) from None
    if done.returncode != 0:
        said = " ".join(done.stderr.decode(errors="replace").split())[-300:]
        raise BadFileError(f"{command[0]} ended with {done.returncode} ({said}); run it by hand: {' '.join(command)}")
    return done.stdout or b""


def _explain_missing(program: str) -> str:
    where = "on a login node of the cluster" if program == "sacct" else "where kubectl and a kubeconfig are"
    return f"{program} is not installed here; run prism {where}, or export the table there and give the file"

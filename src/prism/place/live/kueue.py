"""Clusters with Kueue: quotas and workloads as the Kubernetes API gives them, through kubectl or from files."""

from __future__ import annotations

import json
import re
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from prism.place.live.snapshot import SeenJob, Snapshot, SubmitError, check

_GPU = ("nvidia.com/gpu", "amd.com/gpu")
_NAME = re.compile(r"[^a-z0-9-]+")


@dataclass(frozen=True, slots=True, kw_only=True)
class KueueCluster:
    """One Kubernetes cluster; `folder` holds recorded clusterqueues.json and workloads.json instead of a live one."""

    name: str
    context: str = ""
    folder: str = ""
    timeout_s: float = 20.0
    settle_s: float = 0.0  # a second object of the same name is refused, so nothing has to be waited for
    arrival_s: float = 0.0

    def look(self) -> Snapshot:
        """Quota and workloads of all queues."""
        try:
            queues, workloads = self._get("clusterqueues"), self._get("workloads")
            gpus, used = 0, 0
            for queue in queues["items"]:
                gpus += _quota(queue)
                used += _usage(queue)
            jobs = tuple(job for item in workloads["items"] if (job := _read_workload(item)) is not None)
            return check(Snapshot(cluster=self.name, gpus=gpus, free=gpus - used, jobs=jobs))
        except SubmitError as error:
            return Snapshot(cluster=self.name, error=str(error))
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            return Snapshot(cluster=self.name, error=f"its answers are not those of Kueue ({error!r:.60})")

    def submit(self, script: str, mark: str) -> str:
        """Create the manifest under a name that follows from the mark: a second one of that name is refused."""
        name = object_name(mark)
        try:
            manifest = json.loads(self._kubectl("create", "-f", script, "--dry-run=client", "-o", "json"))
            manifest["metadata"]["name"] = name
            manifest["metadata"].setdefault("annotations", {})["prism.dev/mark"] = mark
        except (ValueError, KeyError, TypeError) as error:
            raise SubmitError(f"{script}: not one Kubernetes object ({error!r:.60})", refused=True) from None
        self._kubectl("create", "-f", "-", given=json.dumps(manifest))
        return name

    def find(self, mark: str) -> str | None:
        """The workload of the job with this mark, if the API knows one."""
        name = object_name(mark)
        for item in self._get("workloads")["items"]:
            owners = [owner.get("name") for owner in item["metadata"].get("ownerReferences", [])]
            if name in owners:
                return name
        return None

    def _get(self, kind: str) -> dict[str, Any]:
        try:
            if self.folder:
                text = (Path(self.folder) / f"{kind}.json").read_text()
            else:
                text = self._kubectl("get", f"{kind}.kueue.x-k8s.io", "--all-namespaces", "-o", "json")
            document: dict[str, Any] = json.loads(text)
            return document
        except (OSError, ValueError) as error:
            raise SubmitError(f"{kind} cannot be read ({error!r:.80})") from None

    def _kubectl(self, *words: str, given: str | None = None) -> str:
        if self.folder:
            raise SubmitError("a recorded cluster takes no jobs", refused=True)
        command = ["kubectl", *(("--context", self.context) if self.context else ()), *words]
        try:
            done = subprocess.run(command, capture_output=True, text=True, timeout=self.timeout_s, input=given)
        except (OSError, subprocess.TimeoutExpired) as error:
            raise SubmitError(f"kubectl does not answer ({error!r:.60})") from None
        if done.returncode != 0:
            said = done.stderr.strip()[:120]
            raise SubmitError(f"kubectl: {said}", refused="Unable to connect" not in said and "timeout" not in said)
        return done.stdout


def object_name(mark: str) -> str:
    """A name that Kubernetes allows, the same for the same mark."""
    return _NAME.sub("-", mark.lower()).strip("-")[:60]


def _amount(value: object) -> int:
    return int(str(value))


def _quota(queue: Mapping[str, Any]) -> int:
    groups = queue["spec"].get("resourceGroups", [])
    found = [
        _amount(resource["nominalQuota"])
        for group in groups
        for flavor in group["flavors"]
        for resource in flavor["resources"]
        if resource["name"] in _GPU
    ]
    return sum(found)


def _usage(queue: Mapping[str, Any]) -> int:
    flavors = queue.get("status", {}).get("flavorsUsage", [])
    return sum(
        _amount(resource.get("total", 0))
        for flavor in flavors
        for resource in flavor["resources"]
        if resource["name"] in _GPU
    )


def _read_workload(item: Mapping[str, Any]) -> SeenJob | None:
    """A workload that waits or runs; one that has finished is none."""
    conditions = {c["type"]: c for c in item.get("status", {}).get("conditions", []) if c.get("status") == "True"}
    if "Finished" in conditions:
        return None
    gpus = 0
    for pods in item["spec"]["podSets"]:
        containers = pods["template"]["spec"]["containers"]
        wanted = [c.get("resources", {}).get("requests", {}) for c in containers]
        gpus += int(pods.get("count", 1)) * sum(_amount(w[name]) for w in wanted for name in _GPU if name in w)
    if not gpus:
        return None
    admitted = conditions.get("Admitted")
    elapsed_s = 0.0
    if admitted is not None:
        began = datetime.fromisoformat(admitted["lastTransitionTime"])
        elapsed_s = max(0.0, (datetime.now(UTC) - began).total_seconds())
    return SeenJob(
        id=item["metadata"]["name"],
        user=item["metadata"].get("namespace", ""),
        gpus=gpus,
        running=admitted is not None,
        elapsed_s=elapsed_s,
    )

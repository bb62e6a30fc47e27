"""Clusters with Kueue: quotas and workloads from the Kubernetes API, through kubectl or from files."""

from __future__ import annotations

import json
import re
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from prism.datacenter.place.live.forms import GPU_RESOURCES, load_manifest
from prism.datacenter.place.live.snapshot import Form, SeenJob, Snapshot, SubmitError, check
from prism.errors import InputError

_NAME = re.compile(r"[^a-z0-9-]+")
_MARK = "prism.dev/mark"
_QUEUE = "kueue.x-k8s.io/queue-name"
# Reasons with which the API server refuses a request that it understood.
_NO = ("Invalid", "BadRequest", "Forbidden", "NotFound", "Unauthorized", "MethodNotAllowed", "AlreadyExists")
# Messages of kubectl if its request never left this machine, or if there is no such kind.
_NOT_SENT = ("was refused - did you specify", "no matches for kind", "does not exist", "no such host")


@dataclass(frozen=True, slots=True, kw_only=True)
class KueueCluster:
    """One Kubernetes cluster; `folder` holds recorded clusterqueues.json and workloads.json instead of a live one."""

    name: str
    context: str = ""
    kubeconfig: str = ""
    namespace: str = ""
    queue: str = ""  # the LocalQueue of jobs that name none
    folder: str = ""
    timeout_s: float = 20.0
    settle_s: float = 0.0  # a second object of the same name is refused, so there is no need to wait
    arrival_s: float = 0.0
    repeatable: bool = True

    @property
    def form(self) -> Form:
        """Jobs are objects."""
        return "manifest"

    def look(self) -> Snapshot:
        """Quota and workloads of all queues."""
        try:
            queues, workloads = self._get("clusterqueues"), self._get("workloads")
            gpus, used = 0, 0
            for queue in queues["items"]:
                gpus += _quota(queue)
                used += _usage(queue)
            jobs = tuple(job for item in workloads["items"] if (job := read_workload(item)) is not None)
            return check(Snapshot(cluster=self.name, gpus=gpus, free=gpus - used, jobs=jobs))
        except SubmitError as error:
            return Snapshot(cluster=self.name, error=str(error))
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            return Snapshot(cluster=self.name, error=f"its answers are not those of Kueue ({error!r:.60})")

    def list_workloads(self) -> list[dict[str, Any]]:
        """All workloads as the API gives them."""
        items = self._get("workloads").get("items")
        if not isinstance(items, list):
            raise SubmitError("workloads cannot be read (no list)")
        return items

    def submit(self, script: str, mark: str) -> str:
        """Create the object under a name derived from the mark; an existing one is the same job."""
        manifest = self._prepare(script, mark)
        try:
            self.kubectl("create", "-f", "-", given=json.dumps(manifest), limited=True)
        except SubmitError as error:
            if "(AlreadyExists)" not in str(error):
                raise
            if self.find(script, mark) is None:
                raise SubmitError(f"'{object_name(mark)}' is there and is not of this job", refused=True) from None
        return object_name(mark)

    def find(self, script: str, mark: str) -> str | None:
        """The name of the object with this mark, if the API knows it."""
        given = json.dumps(self._prepare(script, mark))
        text = self.kubectl("get", "-f", "-", "--ignore-not-found", "-o", "json", given=given)
        try:
            found = json.loads(text) if text.strip() else {"items": []}
            # kubectl prints one object as itself or as a list of one, depending on its version and options.
            marks = [item["metadata"].get("annotations", {}).get(_MARK) for item in found.get("items", [found])]
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise SubmitError(f"kubectl said something else ({error!r:.60})") from None
        return object_name(mark) if mark in marks else None

    def _prepare(self, script: str, mark: str) -> dict[str, Any]:
        try:
            manifest = load_manifest(Path(script))
            meta = manifest.setdefault("metadata", {})
            meta.pop("generateName", None)
            meta["name"] = object_name(mark)
            meta.setdefault("annotations", {})[_MARK] = mark
            if self.queue:
                meta.setdefault("labels", {}).setdefault(_QUEUE, self.queue)
            if self.namespace:
                meta.setdefault("namespace", self.namespace)
            json.dumps(manifest)  # YAML has dates, which JSON does not
            return manifest
        except (InputError, AttributeError, TypeError, ValueError) as error:
            raise SubmitError(f"{script}: not one Kubernetes object ({error!s:.80})", refused=True) from None

    def _get(self, kind: str) -> dict[str, Any]:
        try:
            if self.folder:
                text = (Path(self.folder) / f"{kind}.json").read_text()
            else:
                text = self.kubectl("get", f"{kind}.kueue.x-k8s.io", "--all-namespaces", "-o", "json")
            document: dict[str, Any] = json.loads(text)
            return document
        except (OSError, ValueError) as error:
            raise SubmitError(f"{kind} cannot be read ({error!r:.80})") from None

    def kubectl(self, *words: str, given: str | None = None, limited: bool = False) -> str:
        """The output of kubectl; `limited` ends it after the time limit even if this process has died."""
        if self.folder:
            raise SubmitError("a recorded cluster takes no jobs", refused=True)
        where = [("--context", self.context), ("--kubeconfig", self.kubeconfig), ("--namespace", self.namespace)]
        limit = ("timeout", "-s", "KILL", f"{self.timeout_s:g}") if limited else ()
        options = [f"--request-timeout={self.timeout_s:.0f}s", *(w for pair in where if pair[1] for w in pair)]
        command = [*limit, "kubectl", *options, *words]
        try:
            done = subprocess.run(
                command, capture_output=True, text=True, timeout=self.timeout_s + 5.0 * limited, input=given
            )
        except (OSError, subprocess.TimeoutExpired) as error:
            raise SubmitError(f"kubectl does not answer ({error!r:.60})") from None
        if done.returncode != 0:
            said = " ".join(done.stderr.split())
            no = any(f"Error from server ({reason})" in said for reason in _NO)
            raise SubmitError(f"kubectl: {said[:160]}", refused=no or any(word in said for word in _NOT_SENT))
        return done.stdout


def object_name(mark: str) -> str:
    """A name that Kubernetes allows, derived from the mark."""
    return _NAME.sub("-", mark.lower())[:63].strip("-")


def _amount(value: object) -> int:
    return int(str(value))


def _quota(queue: Mapping[str, Any]) -> int:
    groups = queue["spec"].get("resourceGroups", [])
    found = [
        _amount(resource["nominalQuota"])
        for group in groups
        for flavor in group["flavors"]
        for resource in flavor["resources"]
        if resource["name"] in GPU_RESOURCES
    ]
    return sum(found)


def _usage(queue: Mapping[str, Any]) -> int:
    flavors = queue.get("status", {}).get("flavorsUsage", [])
    return sum(
        _amount(resource.get("total", 0))
        for flavor in flavors
        for resource in flavor["resources"]
        if resource["name"] in GPU_RESOURCES
    )


def read_workload(item: Mapping[str, Any]) -> SeenJob | None:
    """A workload that waits or runs; None if it has finished."""
    conditions = {c["type"]: c for c in item.get("status", {}).get("conditions", []) if c.get("status") == "True"}
    if "Finished" in conditions:
        return None
    gpus = 0
    for pods in item["spec"]["podSets"]:
        containers = pods["template"]["spec"]["containers"]
        wanted = [c.get("resources", {}).get("requests", {}) for c in containers]
        gpus += int(pods.get("count", 1)) * sum(_amount(w[name]) for w in wanted for name in GPU_RESOURCES if name in w)
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

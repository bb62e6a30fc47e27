"""A real Kubernetes API server with Kueue's kinds of objects, and a stand-in for Kueue's controllers.

Real: etcd and the API server, so storage, names, conflicts, lists, patches and what kubectl says when it is away.
Ours: the definitions of Kueue's kinds (group, version and names are Kueue's, their schemas are left open), and the
controller: it makes a Workload for every Job with a queue's name, reserves quota in order of arrival, and "runs" a job
by writing one line. Kueue's own controllers were not run.
"""

from __future__ import annotations

import contextlib
import os
import signal
import threading
from pathlib import Path
from typing import Any

from prism.recover.supervise.launchers.kubernetes.api import ApiRefused
from proving.drills.kube_cluster import KubeCluster

Json = dict[str, Any]
KUEUE = "/apis/kueue.x-k8s.io/v1beta1"
QUEUE = "kueue.x-k8s.io/queue-name"
_KINDS = {
    "ClusterQueue": ("clusterqueues", "Cluster"),
    "LocalQueue": ("localqueues", "Namespaced"),
    "Workload": ("workloads", "Namespaced"),
}
_GPU = "nvidia.com/gpu"
_SINCE = "2026-01-01T00:00:00Z"


def definitions() -> list[Json]:
    """Kueue's kinds as custom resources."""
    schema: Json = {"type": "object", "properties": {}}
    for part in ("spec", "status"):
        schema["properties"][part] = {"type": "object", "x-kubernetes-preserve-unknown-fields": True}
    found = []
    for kind, (plural, scope) in _KINDS.items():
        names = {"kind": kind, "plural": plural, "singular": kind.lower(), "listKind": f"{kind}List"}
        version: Json = {"name": "v1beta1", "served": True, "storage": True, "schema": {"openAPIV3Schema": schema}}
        version["subresources"] = {"status": {}}
        spec = {"group": "kueue.x-k8s.io", "names": names, "scope": scope, "versions": [version]}
        meta = {"name": f"{plural}.kueue.x-k8s.io"}
        api = "apiextensions.k8s.io/v1"
        found.append({"apiVersion": api, "kind": "CustomResourceDefinition", "metadata": meta, "spec": spec})
    return found


class KueueBench(KubeCluster):
    """One API server with one ClusterQueue of some GPUs."""

    def __init__(self, folder: Path, gpus: int, ran: Path) -> None:
        super().__init__(folder, nodes=0)
        self.gpus, self.ran = gpus, ran
        self._closed = threading.Event()
        self._controller: threading.Thread | None = None

    def __enter__(self) -> KueueBench:
        try:
            self._boot(definitions())
            self._wait("Kueue's kinds", lambda: all(self.api.get(f"{KUEUE}/{p}") for p, _ in _KINDS.values()))
            resources = [{"name": _GPU, "nominalQuota": str(self.gpus)}]
            group = {"coveredResources": [_GPU], "flavors": [{"name": "gpus", "resources": resources}]}
            body = {"apiVersion": "kueue.x-k8s.io/v1beta1", "kind": "ClusterQueue", "metadata": {"name": "all"}}
            self.api.create(f"{KUEUE}/clusterqueues", {**body, "spec": {"resourceGroups": [group]}})
            self._controller = threading.Thread(target=self._reconcile, daemon=True)
            self._controller.start()
        except BaseException:
            self.__exit__(None, None, None)
            raise
        return self

    def __exit__(self, *error: object) -> None:
        self._closed.set()
        if self._controller is not None:
            self._controller.join(60.0)
        super().__exit__(None, None, None)

    def kill_server(self) -> None:
        """End the API server at once."""
        self._end("kube-apiserver")

    def freeze_server(self, *, frozen: bool) -> None:
        """Let the API server take connections and answer none, as behind a network that is cut; or let it go on."""
        os.killpg(self._processes["kube-apiserver"].pid, signal.SIGSTOP if frozen else signal.SIGCONT)

    def start_server(self) -> None:
        """Start it again, on the same data."""
        self._spawn_server()
        self._wait("the API server", lambda: self.api.get("/api/v1/namespaces/default") is not None)

    def jobs(self) -> list[Json]:
        """All jobs that the server holds."""
        found: list[Json] = self.api.get("/apis/batch/v1/jobs")["items"]
        return found

    def workloads(self) -> list[Json]:
        """All workloads that the server holds."""
        found: list[Json] = self.api.get(f"{KUEUE}/workloads")["items"]
        return found

    # -- the stand-in for Kueue

    def _reconcile(self) -> None:
        while not self._closed.wait(0.2):
            with contextlib.suppress(OSError, ApiRefused):
                self._reconcile_once()

    def _reconcile_once(self) -> None:
        known = {item["metadata"]["name"]: item for item in self.workloads()}
        for job in self.jobs():
            name = f"job-{job['metadata']['name']}"
            if QUEUE in job["metadata"].get("labels", {}) and name not in known:
                self.api.create(f"{KUEUE}/namespaces/{job['metadata']['namespace']}/workloads", _workload(name, job))
        used = sum(_gpus(item) for item in known.values() if _state(item) == "Admitted")
        for item in sorted(known.values(), key=lambda w: str(w["metadata"]["creationTimestamp"])):
            if _state(item) == "Admitted":
                self._set(item, "Finished")  # the job was one line long
                used -= _gpus(item)
            elif _state(item) == "" and used + _gpus(item) <= self.gpus:
                self._set(item, "Admitted")
                used += _gpus(item)
                with self.ran.open("a") as out:
                    out.write(f"{item['metadata']['ownerReferences'][0]['name']}\n")
        usage = [{"name": "gpus", "resources": [{"name": _GPU, "total": str(used)}]}]
        self.api.patch(f"{KUEUE}/clusterqueues/all/status", {"status": {"flavorsUsage": usage}})

    def _set(self, item: Json, condition: str) -> None:
        """Add a condition, unless somebody changed the object meanwhile."""
        held = [*item.get("status", {}).get("conditions", []), _condition(condition)]
        meta = item["metadata"]
        body = {"metadata": {"resourceVersion": meta["resourceVersion"]}, "status": {"conditions": held}}
        self.api.patch(f"{KUEUE}/namespaces/{meta['namespace']}/workloads/{meta['name']}/status", body)


def _workload(name: str, job: Json) -> Json:
    own = {key: job["metadata"][key] for key in ("name", "uid")}
    meta = {"name": name, "ownerReferences": [{"apiVersion": "batch/v1", "kind": "Job", **own}]}
    pods = {"name": "main", "count": job["spec"].get("parallelism", 1), "template": job["spec"]["template"]}
    spec = {"podSets": [pods], "queueName": job["metadata"]["labels"][QUEUE]}
    return {"apiVersion": "kueue.x-k8s.io/v1beta1", "kind": "Workload", "metadata": meta, "spec": spec}


def _gpus(item: Json) -> int:
    total = 0
    for pods in item["spec"]["podSets"]:
        for container in pods["template"]["spec"]["containers"]:
            total += int(pods["count"]) * int(container.get("resources", {}).get("limits", {}).get(_GPU, 0))
    return total


def _state(item: Json) -> str:
    held = [c["type"] for c in item.get("status", {}).get("conditions", [])]
    return "Finished" if "Finished" in held else "Admitted" if "Admitted" in held else ""


def _condition(kind: str) -> Json:
    return {"type": kind, "status": "True", "reason": kind, "message": "", "lastTransitionTime": _SINCE}

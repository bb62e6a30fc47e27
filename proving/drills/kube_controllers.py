"""Bench controllers for Indexed Jobs, JobSets and TrainJobs: the pods, labels and conditions of the real ones.

A Kubernetes of 1.20 has no Indexed Jobs, and JobSet and Kubeflow Trainer are installed by their users. What is done
here follows their public API types: names, labels and annotations of jobs and pods, backoffLimit, conditions.
"""

from __future__ import annotations

import contextlib
import copy
import secrets
import threading
from typing import Any

from prism.recover.supervise.launchers.kubernetes.api import Api, ApiRefused

Json = dict[str, Any]
_POLL_S = 0.3
_INDEX = "batch.kubernetes.io/job-completion-index"
_SET = "jobset.sigs.k8s.io"
JOBS, SETS, TRAINS = "/apis/batch/v1", "/apis/jobset.x-k8s.io/v1alpha2", "/apis/trainer.kubeflow.org/v1alpha1"
GROUPS = {
    "jobset.x-k8s.io": ("JobSet", "jobsets", "v1alpha2"),
    "trainer.kubeflow.org": ("TrainJob", "trainjobs", "v1alpha1"),
}


def definitions() -> list[Json]:
    """The two kinds as custom resources; their schemas are left open."""
    schema: Json = {"type": "object", "properties": {}}
    for part in ("spec", "status"):
        schema["properties"][part] = {"type": "object", "x-kubernetes-preserve-unknown-fields": True}
    found = []
    for group, (kind, plural, version) in GROUPS.items():
        names = {"kind": kind, "plural": plural, "singular": kind.lower(), "listKind": f"{kind}List"}
        one = {"name": version, "served": True, "storage": True, "schema": {"openAPIV3Schema": schema}}
        one["subresources"] = {"status": {}}
        spec = {"group": group, "names": names, "scope": "Namespaced", "versions": [one]}
        meta = {"name": f"{plural}.{group}"}
        found.append(
            {
                "apiVersion": "apiextensions.k8s.io/v1",
                "kind": "CustomResourceDefinition",
                "metadata": meta,
                "spec": spec,
            }
        )
    return found


class Controllers(threading.Thread):
    """Reconciles the cluster with its objects in a loop."""

    def __init__(self, api: Api) -> None:
        super().__init__(name="bench-controllers", daemon=True)
        self.api = api
        self.closed = threading.Event()

    def run(self) -> None:
        """Until closed."""
        while not self.closed.wait(_POLL_S):
            for kind, work in (
                (f"{TRAINS}/trainjobs", self._train),
                (f"{SETS}/jobsets", self._set),
                (f"{JOBS}/jobs", self._job),
            ):
                with contextlib.suppress(OSError, ApiRefused):
                    for item in self.api.get(kind).get("items") or ():
                        if not item["metadata"].get("deletionTimestamp") and not _true(item):
                            with contextlib.suppress(ApiRefused):
                                work(item)

    def _train(self, item: Json) -> None:
        """A JobSet of the same name, from a runtime with one replicated job called node."""
        space, name = item["metadata"]["namespace"], item["metadata"]["name"]
        path = f"{SETS}/namespaces/{space}/jobsets"
        found = self.api.find(f"{path}/{name}")
        if found is not None:
            for kind, own in (("Completed", "Complete"), ("Failed", "Failed")):
                if kind in _true(found):
                    self._conclude(f"{TRAINS}/namespaces/{space}/trainjobs/{name}", own, "JobSet")
            return
        trainer = item["spec"].get("trainer") or {}
        nodes = int(trainer.get("numNodes", 1))
        container = {"name": "node", "image": trainer.get("image", "bench"), "env": list(trainer.get("env") or ())}
        container |= {key: trainer[key] for key in ("command", "args") if key in trainer}
        pod: Json = {"restartPolicy": "Never", "containers": [container]}
        for patch in item["spec"].get("runtimePatches") or ():
            jobs = patch["trainingRuntimeSpec"]["template"]["spec"]["replicatedJobs"]
            pod |= next(j for j in jobs if j["name"] == "node")["template"]["spec"]["template"]["spec"]
        index = {"valueFrom": {"fieldRef": {"fieldPath": f"metadata.annotations['{_INDEX}']"}}}
        container["env"] += [{"name": "PET_NNODES", "value": str(nodes)}, {"name": "PET_NODE_RANK", **index}]
        container["env"] += [{"name": "PRISM_NUM_NODES", "value": str(nodes)}, {"name": "PRISM_NODE_RANK", **index}]
        job: Json = {"completionMode": "Indexed", "parallelism": nodes, "completions": nodes, "backoffLimit": 0}
        job["template"] = {"metadata": {}, "spec": pod}
        spec = {"replicatedJobs": [{"name": "node", "replicas": 1, "template": {"spec": job}}]}
        meta = {"name": name, "namespace": space, "ownerReferences": [_owner(item)]}
        self.api.create(
            path, {"apiVersion": "jobset.x-k8s.io/v1alpha2", "kind": "JobSet", "metadata": meta, "spec": spec}
        )

    def _set(self, item: Json) -> None:
        """Its jobs; complete when all are, failed when one is."""
        space, name = item["metadata"]["namespace"], item["metadata"]["name"]
        path = f"{JOBS}/namespaces/{space}/jobs"
        states = []
        for part in item["spec"]["replicatedJobs"]:
            for number in range(int(part.get("replicas", 1))):
                own = f"{name}-{part['name']}-{number}"
                found = self.api.find(f"{path}/{own}")
                states.append(_true(found) if found is not None else {})
                if found is None:
                    marks = {f"{_SET}/jobset-name": name, f"{_SET}/replicatedjob-name": part["name"]}
                    marks |= {f"{_SET}/job-index": str(number), f"{_SET}/jobset-uid": item["metadata"]["uid"]}
                    body = copy.deepcopy(part["template"])
                    meta = {"name": own, "namespace": space, "labels": marks, "ownerReferences": [_owner(item)]}
                    inner = body["spec"]["template"].setdefault("metadata", {})
                    inner["labels"] = {**(inner.get("labels") or {}), **marks}
                    annotations = {**(inner.get("annotations") or {}), "bench/indexed": "true"}
                    inner["annotations"] = annotations
                    self.api.create(
                        path, {"apiVersion": "batch/v1", "kind": "Job", "metadata": meta, "spec": body["spec"]}
                    )
        whole = f"{SETS}/namespaces/{space}/jobsets/{name}"
        if any("Failed" in state for state in states):
            self._conclude(whole, "Failed", "FailedJobs")
        elif states and all("Complete" in state for state in states):
            self._conclude(whole, "Completed", "AllJobsCompleted")

    def _job(self, item: Json) -> None:
        """One pod per index; replaced while the backoff limit allows."""
        space, meta, spec = item["metadata"]["namespace"], item["metadata"], item["spec"]
        path = f"/api/v1/namespaces/{space}/pods"
        query = {"labelSelector": f"controller-uid={meta['uid']}"}
        pods = self.api.get(path, query).get("items") or []
        phases = [(int(p["metadata"]["annotations"][_INDEX]), (p.get("status") or {}).get("phase"), p) for p in pods]
        done = {index for index, phase, _ in phases if phase == "Succeeded"}
        failed = [pod for _, phase, pod in phases if phase == "Failed"]
        active = {index for index, phase, pod in phases if phase not in ("Succeeded", "Failed")}
        count = int(spec.get("completions") or spec.get("parallelism") or 1)
        whole = f"{JOBS}/namespaces/{space}/jobs/{meta['name']}"
        if len(failed) > int(spec.get("backoffLimit", 6)):
            self._conclude(whole, "Failed", "BackoffLimitExceeded")
            for _, phase, pod in phases:
                if phase not in ("Succeeded", "Failed"):
                    self.api.delete(f"{path}/{pod['metadata']['name']}")
        elif len(done) >= count:
            self._conclude(whole, "Complete", "")
        else:
            for index in sorted(set(range(count)) - done - active):
                self._create_pod(path, item, index)

    def _create_pod(self, path: str, item: Json, index: int) -> None:
        body = copy.deepcopy(item["spec"]["template"])
        meta = body.setdefault("metadata", {})
        own = {"controller-uid": item["metadata"]["uid"], "job-name": item["metadata"]["name"], _INDEX: str(index)}
        meta["labels"] = {**(meta.get("labels") or {}), **own}
        meta["annotations"] = {**(meta.get("annotations") or {}), _INDEX: str(index)}
        meta["name"] = f"{item['metadata']['name']}-{index}-{secrets.token_hex(3)[:5]}"
        meta["ownerReferences"] = [_owner(item)]
        body["spec"]["containers"][0].setdefault("env", []).append(
            {"name": "JOB_COMPLETION_INDEX", "value": str(index)}
        )
        self.api.create(path, {"apiVersion": "v1", "kind": "Pod", **body})

    def _conclude(self, path: str, kind: str, reason: str) -> None:
        now = "2026-01-01T00:00:00Z"
        condition = {"type": kind, "status": "True", "reason": reason, "message": "", "lastTransitionTime": now}
        self.api.patch(f"{path}/status", {"status": {"conditions": [condition]}})


def _true(item: Json) -> dict[str, Json]:
    conditions = (item.get("status") or {}).get("conditions") or ()
    return {str(c["type"]): c for c in conditions if c.get("status") == "True"}


def _owner(item: Json) -> Json:
    meta = item["metadata"]
    found = {"apiVersion": item.get("apiVersion", "batch/v1"), "kind": item.get("kind", "Job"), "name": meta["name"]}
    return {**found, "uid": meta["uid"], "controller": True, "blockOwnerDeletion": True}

"""`python -m proving.drills.kube_record FILE`: what a real API server answers, kept for tests that have none.

Recorded are its refusals, the events of pods that end well, fail, are evicted, and of a node that is lost.
"""

from __future__ import annotations

import json
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import urllib3

from prism.recover.supervise.launchers.kubernetes.api import Api
from prism.recover.supervise.launchers.kubernetes.credentials import read_kubeconfig
from proving.drills.kube_cluster import KubeCluster, why_no_kubernetes
from proving.drills.kube_stage import workload

_JOBS = "/apis/batch/v1/namespaces/default/jobs"
_PODS = "/api/v1/namespaces/default/pods"
_HOOK = "trap 'sleep 1; echo saved; exit 0' TERM; echo up; while :; do sleep 0.1; done"
Json = dict[str, Any]


class Recorder:
    """Asks the server as plainly as can be: what is kept is what it said."""

    def __init__(self, cluster: KubeCluster) -> None:
        self.cluster = cluster
        self._pool = urllib3.PoolManager(ca_certs=str(cluster.folder / "certs" / "apiserver.crt"), retries=False)
        self._server = cluster.api.credentials.server

    def ask(self, method: str, path: str, body: Json | None = None, token: str = "") -> Json:
        """Status and document of an answer."""
        headers = {"Content-Type": "application/json", **self.cluster.api.credentials.headers()}
        if token:
            headers["Authorization"] = f"Bearer {token}"
        data = None if body is None else json.dumps(body).encode()
        found = self._pool.request(method, self._server + path, body=data, headers=headers, timeout=20.0)
        return {"status": found.status, "body": _short(json.loads(found.data))}

    def refusals(self) -> Json:
        """One of each."""
        job = workload("refused", "Job")
        job["spec"]["template"]["spec"]["restartPolicy"] = "Never"
        self.ask("POST", _JOBS, job)
        found = {
            "unauthorized": self.ask("GET", _PODS, token="wrong"),
            "forbidden": self.ask("GET", _PODS, token="bench-nobody"),
            "not-found": self.ask("GET", f"{_PODS}/none"),
            "conflict": self.ask("POST", _JOBS, job),
            "invalid": self.ask("POST", _JOBS, {**job, "metadata": {"name": "invalid"}, "spec": {}}),
        }
        self.cluster.api.delete(f"{_JOBS}/refused", propagation="Background")
        return found

    def gone(self) -> Json:
        """A watch from a version that the server has forgotten, as it does when it starts."""
        self.cluster.restart_server()
        url = f"{self._server}{_PODS}?watch=true&resourceVersion=1&timeoutSeconds=2"
        found = self._pool.request("GET", url, headers=self.cluster.api.credentials.headers(), timeout=20.0)
        return {"status": found.status, "lines": [_short(json.loads(line)) for line in found.data.splitlines()]}

    def life(self, name: str, script: str, hurt: Callable[[Json], None] | None = None) -> list[Json]:
        """Every event of a Job's one pod, from its list on; `hurt` is done to it once it runs."""
        version = self.cluster.api.get(_PODS)["metadata"]["resourceVersion"]
        job = workload(name, "Job", pods=1)
        container = job["spec"]["template"]["spec"]["containers"][0]
        container["command"] = ["sh", "-c", script]
        job["spec"] |= {"backoffLimit": 0}
        job["spec"]["template"]["spec"] |= {"restartPolicy": "Never", "terminationGracePeriodSeconds": 10}
        self.ask("POST", _JOBS, job)
        query = {"watch": "true", "resourceVersion": version, "labelSelector": f"job-name={name}"}
        events: list[Json] = []
        stop_at = time.monotonic() + 60.0
        for line in self.cluster.api.lines(_PODS, {**query, "allowWatchBookmarks": "true", "timeoutSeconds": 20}, 30.0):
            event = json.loads(line)
            events.append(_short(event))
            phase = (event["object"].get("status") or {}).get("phase")
            if phase == "Running" and hurt is not None:
                time.sleep(1.0)
                hurt(event["object"])
                hurt = None
            if phase in ("Succeeded", "Failed") and event["type"] == "MODIFIED" and name != "evicted":
                break
            if event["type"] == "DELETED" or time.monotonic() > stop_at:
                break
        self.cluster.api.delete(f"{_JOBS}/{name}", propagation="Background")
        return events

    def lost_node(self) -> Json:
        """A node before and after its kubelet has stopped reporting."""
        name = self.cluster.nodes[-1]
        before = self.cluster.api.get(f"/api/v1/nodes/{name}")
        self.cluster.lose_node(name)
        deadline = time.monotonic() + 60.0
        while time.monotonic() < deadline:
            after = self.cluster.api.get(f"/api/v1/nodes/{name}")
            if any((c["type"], c["status"]) == ("Ready", "Unknown") for c in after["status"]["conditions"]):
                break
            time.sleep(1.0)
        return {"ready": _short(before), "lost": _short(after)}


def _short(document: Json) -> Json:
    """Without who wrote which field, which is most of an answer, and without this machine's variables."""
    if isinstance(document, dict):
        return {k: _short(v) for k, v in document.items() if k not in ("managedFields", "env")}
    return [_short(v) for v in document] if isinstance(document, list) else document


def main() -> int:
    """Record into a file."""
    reason = why_no_kubernetes()
    if reason is not None:
        print(f"skipped: {reason}")
        return 0
    with tempfile.TemporaryDirectory(prefix="prism-record-") as folder, KubeCluster(Path(folder), 2) as cluster:
        recorder = Recorder(cluster)
        evict = lambda pod: cluster.drain(pod["spec"]["nodeName"])  # noqa: E731
        found = {
            "version": Api(read_kubeconfig(cluster.kubeconfig)).get("/version")["gitVersion"],
            "refusals": recorder.refusals(),
            "succeeded": recorder.life("succeeded", "echo hello"),
            "failed": recorder.life("failed", "exit 7"),
            "evicted": recorder.life("evicted", _HOOK, evict),
            "gone": recorder.gone(),
            "nodes": recorder.lost_node(),
        }
    Path(sys.argv[1]).write_text(json.dumps(found, indent=1) + "\n")
    print({name: len(part) for name, part in found.items()})
    return 0


if __name__ == "__main__":
    sys.exit(main())

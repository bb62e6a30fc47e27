"""A drill's stage on a bench cluster: the job as a JobSet of two pods, supervised through a real API server."""

from __future__ import annotations

import contextlib
import json
import os
import re
import sys
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import yaml

from prism.recover.progress import attempt_dir
from prism.recover.supervise.launchers.node import find_marked, variables_of
from proving.drills.kube_cluster import KubeCluster
from proving.drills.plain_stage import Place, PlainStage
from proving.drills.stage import DrillError, Stage, merge

PODS = 2


@dataclass(slots=True, kw_only=True)
class KubeStage(Stage):
    """The ranks of the job are spread over two pods; the run folder is where the pods see it, too."""

    cluster: KubeCluster
    kind: str = "JobSet"

    def __post_init__(self) -> None:
        self.launcher = "kubernetes"
        own = {"kubernetes": {"run_dir": str(self.run_dir.resolve()), "node_lost_s": 3.0}, "python": sys.executable}
        self.settings = merge({"launch": own}, self.settings)
        Stage.__post_init__(self)
        (self.folder / "manifest.yaml").write_text(yaml.safe_dump(workload(self.folder.name.lower(), self.kind)))

    def command(self) -> list[str]:
        """The training command of one pod."""
        whole, self.job = self.job, replace(self.job, ranks=self.job.ranks // PODS)
        try:
            return Stage.command(self)
        finally:
            self.job = whole

    def options(self) -> list[str]:
        """Where the workload is described."""
        return ["--manifest", str(self.folder / "manifest.yaml")]

    def variables(self) -> dict[str, str]:
        """Where the cluster is."""
        return {"KUBECONFIG": str(self.cluster.kubeconfig)}

    def rank_pid(self, rank: int) -> int:
        """The process of a rank as this machine numbers it; its heartbeat tells the number inside its container."""
        folder = attempt_dir(self.run_dir.resolve(), self.state().attempt)
        beat = json.loads((folder / f"beat-{rank:05d}.json").read_text())
        for pid in find_marked(str(folder)):
            inside = _number_inside(pid)
            if inside == beat["pid"] and variables_of(pid).get(b"PRISM_HOST") == beat["host"].encode():
                return pid
        raise DrillError(f"no process of rank {rank} was found")

    def close(self) -> None:
        """End the supervisor and the workload."""
        Stage.close(self)
        paths = {"JobSet": "/apis/jobset.x-k8s.io/v1alpha2", "Job": "/apis/batch/v1"}
        paths |= {"TrainJob": "/apis/trainer.kubeflow.org/v1alpha1"}
        plural = f"{self.kind.lower()}s"
        name = f"{paths[self.kind]}/namespaces/default/{plural}/{self.folder.name.lower()}"
        with contextlib.suppress(OSError):  # a drill may have left the server away
            self.cluster.api.delete(name, propagation="Background")


def kubernetes_place(cluster: KubeCluster) -> Place:
    """Where scripts as users write them run as the pods of a JobSet, in their own folder."""

    def prepare(stage: PlainStage) -> list[str]:
        name = re.sub(r"[^a-z0-9]+", "-", f"{stage.folder.parent.name}-{stage.folder.name}".lower()).strip("-")
        manifest = workload(name, "JobSet", stage.hosts)
        pod = manifest["spec"]["replicatedJobs"][0]["template"]["spec"]["template"]["spec"]
        pod["containers"][0]["workingDir"] = str(stage.folder.resolve())
        (stage.folder / "manifest.yaml").write_text(yaml.safe_dump(manifest))
        own = {"kubernetes": {"run_dir": str(stage.run_dir.resolve()), "node_lost_s": 3.0}, "python": sys.executable}
        stage.settings = merge(stage.settings, {"launch": own})
        return ["--manifest", str(stage.folder / "manifest.yaml")]

    os.environ["KUBECONFIG"] = str(cluster.kubeconfig)  # of every supervisor that is started from here
    return Place(launcher="kubernetes", settings={"poll_s": 0.5}, prepare=prepare)


def workload(name: str, kind: str, pods: int = PODS) -> dict[str, Any]:
    """A manifest as its users write it; the command comes from the supervisor's command line."""
    path = f"{Path(sys.executable).parent}:/usr/local/bin:/usr/bin:/bin"
    told = {"PATH": path, "PYTHONPATH": os.environ.get("PYTHONPATH", ""), "OMP_NUM_THREADS": "1"}
    told |= {"MASTER_ADDR": "127.0.0.1", "PET_MASTER_ADDR": "127.0.0.1"}
    env = [{"name": key, "value": value} for key, value in told.items()]
    container = {"name": "trainer", "image": "bench", "command": ["true"], "env": env}
    job: dict[str, Any] = {"completionMode": "Indexed", "parallelism": pods, "completions": pods}
    job["template"] = {"spec": {"containers": [container]}}
    meta = {"name": name}
    if kind == "Job":
        return {"apiVersion": "batch/v1", "kind": kind, "metadata": meta, "spec": job}
    if kind == "TrainJob":
        ports = [{"name": "MASTER_PORT", "value": "29511"}]
        trainer = {"numNodes": pods, "image": "bench", "command": ["true"], "env": env + ports}
        spec: dict[str, Any] = {"runtimeRef": {"name": "bench"}, "trainer": trainer}
        return {"apiVersion": "trainer.kubeflow.org/v1alpha1", "kind": kind, "metadata": meta, "spec": spec}
    spec = {"replicatedJobs": [{"name": "workers", "replicas": 1, "template": {"spec": job}}]}
    return {"apiVersion": "jobset.x-k8s.io/v1alpha2", "kind": "JobSet", "metadata": meta, "spec": spec}


def _number_inside(pid: int) -> int:
    try:
        lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    except OSError:
        return -1
    return next((int(line.split()[-1]) for line in lines if line.startswith("NSpid:")), -1)

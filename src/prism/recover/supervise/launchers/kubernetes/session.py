"""Watches one attempt: its workload, its pods and their logs, kept up to date by threads."""

from __future__ import annotations

from pathlib import Path

from prism.recover.supervise.launchers import Look
from prism.recover.supervise.launchers.kubernetes.api import Api, JsonObject
from prism.recover.supervise.launchers.kubernetes.nodes import NodeWatch
from prism.recover.supervise.launchers.kubernetes.pod_logs import PodLogs
from prism.recover.supervise.launchers.kubernetes.pods import (
    Judging,
    PodState,
    judge,
    read_pod,
    read_workload,
)
from prism.recover.supervise.launchers.kubernetes.records import WorkloadRecord
from prism.recover.supervise.launchers.kubernetes.settings import KubernetesSettings
from prism.recover.supervise.launchers.kubernetes.watching import Watcher

_MAX_LINES = 8


class Session:
    """The cluster's view of one attempt."""

    def __init__(self, api: Api, folder: Path, record: WorkloadRecord, settings: KubernetesSettings) -> None:
        self._record, self._settings = record, settings
        pods = f"/api/v1/namespaces/{record.namespace}/pods"
        self._pods = Watcher(api, pods, {"labelSelector": record.selector})
        self._workload = Watcher(api, record.path, {"fieldSelector": f"metadata.name={record.name}"})
        self.logs = PodLogs(api, record.namespace, folder, settings.max_log_streams)
        self._told: set[str] = set()
        self._last: list[PodState] = []

    def wait_listed(self, limit_s: float) -> bool:
        """Whether both lists have arrived by then."""
        return self._pods.wait_listed(limit_s) and self._workload.wait_listed(limit_s)

    def look(self, nodes: NodeWatch) -> Look:
        """The status of the attempt."""
        pods = self.follow_logs()
        placed = tuple(sorted({pod.node for pod in pods if pod.node and not pod.over}))
        replaced = self._settings.restart == "pod"
        judging = Judging(replaced=replaced, lost_nodes=nodes.lost(placed))
        workload = read_workload(self._find_workload(), self._record.name, self._record.num_pods)
        return judge(pods, workload, judging)

    def follow_logs(self) -> list[PodState]:
        """The current pods; their logs are followed from now on."""
        self._last = self._states()
        self.logs.update(self._last)
        return self._last

    def new_trouble(self) -> list[str]:
        """Problems that were not reported yet."""
        lines = [f"Kubernetes: {watch.trouble}" for watch in (self._pods, self._workload) if watch.trouble]
        for pod in self._states():
            if pod.waits_for and not pod.over:
                lines.append(f"pod {pod.name} waits: {pod.waits_for}")
            if pod.failed and self._settings.restart == "pod":
                lines.append(f"{describe(pod)}; Kubernetes replaces it")
        new = [line for line in dict.fromkeys(lines) if line not in self._told]
        self._told.update(new)
        return new

    def describe_ends(self) -> list[str]:
        """How the pods ended that did not finish, for people."""
        ends = [describe(pod) for pod in sorted(self._last, key=lambda pod: pod.ended_s) if pod.failed]
        return ends if len(ends) <= _MAX_LINES else [*ends[:_MAX_LINES], f"and {len(ends) - _MAX_LINES} more pods"]

    def close(self) -> None:
        """End the threads."""
        for watch in (self._pods, self._workload):
            watch.close()
        self.logs.close()

    def _states(self) -> list[PodState]:
        container = self._settings.container
        present = [read_pod(pod, container) for pod in self._pods.collection.present()]
        gone = [read_pod(pod, container, gone=True) for pod in self._pods.collection.gone()]
        return [*present, *gone]

    def _find_workload(self) -> JsonObject | None:
        found = self._workload.collection.present()
        return next((item for item in found if item["metadata"].get("uid") == self._record.uid), None)


def describe(pod: PodState) -> str:
    """How a pod ended, in a line."""
    code = "no exit code" if pod.code is None else f"exit code {pod.code}"
    reason = f"{pod.reason}, " if pod.reason else "deleted, " if pod.deleted else ""
    return f"pod {pod.name} (rank of its node: {pod.place[2]}, on {pod.node or 'no node'}) ended: {reason}{code}"

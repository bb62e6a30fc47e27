"""A bench kubelet: registers a node and runs pods as processes in namespaces of their own. One process per node; root.

    python -m proving.drills.kube_node KUBECONFIG NODE PORT FOLDER

Each container is PID 1 of a PID namespace and sees its mounts, as under a real runtime; there are no images and no
network of its own. What it does with a pod is what Kubernetes documents: hook, SIGTERM, grace, SIGKILL, status.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import signal
import subprocess
import sys
import threading
import time
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from prism.recover.supervise.launchers.kubernetes.api import STRATEGIC, Api, ApiRefused
from prism.recover.supervise.launchers.kubernetes.credentials import read_kubeconfig
from prism.recover.supervise.launchers.kubernetes.watching import Watcher
from proving.drills.kube_logs import LogServer

_BEAT_S = 2.0
_POLL_S = 0.1
_PATIENCE_S = 120.0  # with a server that is away
_CONTAINER = Path(__file__).with_name("kube_container.py")


@dataclass(slots=True, kw_only=True)
class Container:
    """The one container of a pod that runs."""

    pod: dict[str, Any]
    folder: Path
    process: subprocess.Popen[bytes] | None = None
    started: str = ""
    ended: dict[str, Any] | None = None
    last: dict[str, Any] | None = None
    restarts: int = 0
    closing: bool = False
    lock: threading.Lock = field(default_factory=threading.Lock)

    @property
    def spec(self) -> dict[str, Any]:
        """What to run."""
        found: dict[str, Any] = self.pod["spec"]["containers"][0]
        return found

    @property
    def log(self) -> Path:
        """Its present life's log."""
        return self.folder / f"{self.restarts}.log"


class BenchNode:
    """One node."""

    def __init__(self, api: Api, name: str, port: int, folder: Path) -> None:
        self.api, self.name, self.port, self.folder = api, name, port, folder
        self.containers: dict[str, Container] = {}

    def run(self) -> None:
        """Register, then serve until killed."""
        self._register()
        LogServer(self.port, self.folder, self.containers).start()
        threading.Thread(target=self._beat_on, daemon=True).start()
        pods = Watcher(self.api, "/api/v1/pods", {"fieldSelector": f"spec.nodeName={self.name}"})
        while True:
            for pod in pods.collection.present():
                self._see(pod)
            time.sleep(_POLL_S)

    def _see(self, pod: dict[str, Any]) -> None:
        uid = pod["metadata"]["uid"]
        known = self.containers.get(uid)
        if known is None and (pod.get("status") or {}).get("phase") not in ("Succeeded", "Failed"):
            folder = self.folder / uid
            if folder.exists():  # it ran here before this node lost its power
                self._patch(pod, {"status": {"phase": "Failed", "reason": "NodeLost"}})
                return
            folder.mkdir(parents=True)
            known = self.containers[uid] = Container(pod=pod, folder=folder)
            threading.Thread(target=self._run_pod, args=(known,), daemon=True).start()
        elif known is None and pod["metadata"].get("deletionTimestamp"):
            self._forget(pod)
        if known is not None and pod["metadata"].get("deletionTimestamp"):
            grace_s = float(pod["metadata"].get("deletionGracePeriodSeconds") or 0)
            if not known.closing:
                known.closing = True
                threading.Thread(target=self._close, args=(known, grace_s), daemon=True).start()
            elif grace_s <= 1 and known.process is not None and known.ended is None:
                self._kill(known, signal.SIGKILL)  # the grace was cut short

    def _run_pod(self, one: Container) -> None:
        while not one.closing:
            one.process, one.started = self._start(one), _now()
            self._tell(one, "Running")
            output = one.process.stdout
            assert output is not None
            with one.log.open("ab", buffering=0) as log:
                for line in output:
                    log.write(f"{_now_ns()} ".encode() + line.rstrip(b"\n") + b"\n")
            code = one.process.wait()
            code = code if code >= 0 else 128 - code
            reason = "Completed" if code == 0 else "Error"
            ended = {"exitCode": code, "reason": reason, "startedAt": one.started, "finishedAt": _now()}
            policy = one.pod["spec"].get("restartPolicy")
            if policy == "OnFailure" and code != 0 and not one.closing:
                one.last, one.restarts = ended, one.restarts + 1
                continue
            one.ended = ended
            self._tell(one, "Succeeded" if code == 0 else "Failed")
            return

    def _start(self, one: Container) -> subprocess.Popen[bytes]:
        words = [*one.spec.get("command", ()), *one.spec.get("args", ())]
        mounts = [word for pair in self._mounts(one) for word in pair]
        command = [sys.executable, "-S", str(_CONTAINER), *mounts, "--", *words]
        place = one.spec.get("workingDir")
        return subprocess.Popen(
            command, env=self._variables(one), cwd=place, stdout=subprocess.PIPE, stderr=subprocess.STDOUT
        )

    def _mounts(self, one: Container) -> list[tuple[str, str]]:
        volumes = {v["name"]: v for v in one.pod["spec"].get("volumes") or ()}
        found = []
        for mount in one.spec.get("volumeMounts") or ():
            source = volumes[mount["name"]]
            if "configMap" not in source:
                continue
            folder = one.folder / mount["name"]
            folder.mkdir(exist_ok=True)
            space = one.pod["metadata"]["namespace"]
            data = self.api.get(f"/api/v1/namespaces/{space}/configmaps/{source['configMap']['name']}")["data"]
            for name, text in data.items():
                (folder / name).write_text(text)
            found.append((str(folder), mount["mountPath"]))
        return found

    def _variables(self, one: Container) -> dict[str, str]:
        meta = one.pod["metadata"]
        found = {"PATH": "/usr/local/bin:/usr/bin:/bin", "HOSTNAME": meta["name"]}
        for entry in one.spec.get("env") or ():
            path = ((entry.get("valueFrom") or {}).get("fieldRef") or {}).get("fieldPath", "")
            if path.startswith("metadata.annotations["):
                value = (meta.get("annotations") or {}).get(path[22:-2], "")
            else:
                value = {"spec.nodeName": self.name}.get(path, entry.get("value") or "")
            found[entry["name"]] = str(value)
        return found

    def _close(self, one: Container, grace_s: float) -> None:
        """Hook, SIGTERM, wait, SIGKILL, as documented for the end of a pod; the grace holds for all of it."""
        deadline = time.monotonic() + grace_s
        hook = ((one.spec.get("lifecycle") or {}).get("preStop") or {}).get("exec") or {}
        inner = self._inner(one)
        if one.ended is None and hook.get("command") and inner is not None:
            words = ["nsenter", f"--target={inner}", "--mount", "--pid", *hook["command"]]
            with contextlib.suppress(subprocess.TimeoutExpired, OSError):
                subprocess.run(words, env=self._variables(one), timeout=max(2.0, grace_s), capture_output=True)
        for number in (signal.SIGTERM, signal.SIGKILL):
            self._kill(one, number)
            while one.ended is None and one.process is not None and time.monotonic() < deadline:
                time.sleep(_POLL_S)
        limit = time.monotonic() + 10.0
        while one.ended is None and one.process is not None and time.monotonic() < limit:
            self._kill(one, signal.SIGKILL)
            time.sleep(_POLL_S)
        self._forget(one.pod)

    def _kill(self, one: Container, number: int) -> None:
        inner = self._inner(one)
        if inner is not None and one.ended is None:
            with contextlib.suppress(ProcessLookupError):
                os.kill(inner, number)

    def _inner(self, one: Container) -> int | None:
        """PID 1 of the container, as this machine numbers it."""
        if one.process is None:
            return None
        try:
            children = Path(f"/proc/{one.process.pid}/task/{one.process.pid}/children").read_text().split()
        except OSError:
            return None
        return int(children[0]) if children else None

    def _tell(self, one: Container, phase: str) -> None:
        state = {"terminated": one.ended} if one.ended else {"running": {"startedAt": one.started}}
        status: dict[str, Any] = {"name": one.spec["name"], "state": state, "restartCount": one.restarts}
        status |= {"ready": one.ended is None, "image": one.spec.get("image", ""), "imageID": ""}
        status |= {"lastState": {"terminated": one.last}} if one.last else {}
        ready = {"type": "Ready", "status": "False" if one.ended else "True"}
        body = {"status": {"phase": phase, "containerStatuses": [status], "conditions": [ready], "podIP": "127.0.0.1"}}
        self._patch(one.pod, body)

    def _patch(self, pod: dict[str, Any], body: dict[str, Any]) -> None:
        meta = pod["metadata"]
        deadline = time.monotonic() + _PATIENCE_S
        while time.monotonic() < deadline:
            try:
                self.api.patch(f"/api/v1/namespaces/{meta['namespace']}/pods/{meta['name']}/status", body, STRATEGIC)
            except ApiRefused:
                return  # it is gone
            except OSError:
                time.sleep(1.0)
            else:
                return

    def _forget(self, pod: dict[str, Any]) -> None:
        meta = pod["metadata"]
        with contextlib.suppress(ApiRefused, OSError):
            self.api.delete(f"/api/v1/namespaces/{meta['namespace']}/pods/{meta['name']}", grace_s=0)

    def _register(self) -> None:
        labels = {"kubernetes.io/hostname": self.name, "kubernetes.io/os": "linux"}
        node = {"apiVersion": "v1", "kind": "Node", "metadata": {"name": self.name, "labels": labels}}
        with contextlib.suppress(ApiRefused):
            self.api.create("/api/v1/nodes", node)
        self._beat()

    def _beat(self) -> None:
        room = {"cpu": "64", "memory": "64Gi", "pods": "110"}
        ready = {"type": "Ready", "status": "True", "reason": "BenchReady", "lastHeartbeatTime": _now()}
        addresses = [{"type": "InternalIP", "address": "127.0.0.1"}, {"type": "Hostname", "address": "127.0.0.1"}]
        status: dict[str, Any] = {"capacity": room, "allocatable": room, "conditions": [ready], "addresses": addresses}
        status["daemonEndpoints"] = {"kubeletEndpoint": {"Port": self.port}}
        self.api.patch(f"/api/v1/nodes/{self.name}/status", {"status": status}, STRATEGIC)

    def _beat_on(self) -> None:
        while True:
            time.sleep(_BEAT_S)
            with contextlib.suppress(OSError, ApiRefused):
                self._beat()


def _now() -> str:
    return datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def _now_ns() -> str:
    now = time.time_ns()
    whole = datetime.fromtimestamp(now // 10**9, UTC).strftime("%Y-%m-%dT%H:%M:%S")
    return f"{whole}.{now % 10**9:09d}Z"


def main() -> int:
    """Be a node."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("kubeconfig", type=Path)
    parser.add_argument("node")
    parser.add_argument("port", type=int)
    parser.add_argument("folder", type=Path)
    options = parser.parse_args()
    BenchNode(Api(read_kubeconfig(options.kubeconfig)), options.node, options.port, options.folder).run()
    return 0


if __name__ == "__main__":
    sys.exit(main())

"""A real Kubernetes control plane on loopback (etcd, API server, controller manager, scheduler) with bench nodes.

The binaries are looked for in the folder that PRISM_KUBERNETES names, then on the path. Debian's source package
`kubernetes` holds everything to build them from, with its own Go:

    openapi-gen, then: go build ./cmd/kube-apiserver ./cmd/kube-controller-manager ./cmd/kube-scheduler

Real: storage, validation, defaults, lists, watches, evictions, owner references and their collection, taints and
conditions of nodes, the choice of nodes. Ours: the kubelet (`kube_node`), and the controllers of Indexed Jobs, JobSets
and TrainJobs (`kube_controllers`).
"""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from types import TracebackType
from typing import Any

import yaml

from prism.recover.supervise.launchers.kubernetes.additions import MOUNT
from prism.recover.supervise.launchers.kubernetes.api import Api, ApiRefused
from prism.recover.supervise.launchers.kubernetes.credentials import read_kubeconfig
from proving.drills.kube_controllers import Controllers, definitions

_PROGRAMS = ("etcd", "kube-apiserver", "kube-controller-manager", "kube-scheduler")
_TOOLS = ("openssl", "nsenter")
_TOKEN = "bench-admin"  # of a server that only this machine reaches, for as long as the bench runs
_START_S = 240.0
_MAX_RESTARTS = 3
_CONTROLLERS = "garbagecollector,nodelifecycle,podgc,disruption,namespace,serviceaccount,serviceaccount-token"


def find_program(name: str) -> str | None:
    """The path of a program of the control plane."""
    named = Path(os.environ.get("PRISM_KUBERNETES", "/opt/prism-kubernetes")) / name
    return str(named) if named.exists() else shutil.which(name)


def why_no_kubernetes() -> str | None:
    """Why no control plane can be started here, or None."""
    if os.geteuid() != 0:
        return "needs root, for the namespaces of pods"
    missing = [name for name in _PROGRAMS if find_program(name) is None]
    missing += [name for name in _TOOLS if shutil.which(name) is None]
    return f"needs {', '.join(missing)} (see proving/drills/kube_cluster.py)" if missing else None


class KubeCluster:
    """A control plane and nodes bench-1..n; all is gone at the end."""

    def __init__(self, folder: Path, nodes: int = 3) -> None:
        self.folder = folder
        self.nodes = tuple(f"bench-{number}" for number in range(1, nodes + 1))
        self.kubeconfig = folder / "kubeconfig"
        self._port = free_port()
        self._processes: dict[str, subprocess.Popen[bytes]] = {}
        self._controllers: Controllers | None = None

    def __enter__(self) -> KubeCluster:
        try:
            self._boot(definitions())
            self._wait("jobsets", lambda: self.api.get("/apis/jobset.x-k8s.io/v1alpha2/jobsets") is not None)
            self._wait("trainjobs", lambda: self.api.get("/apis/trainer.kubeflow.org/v1alpha1/trainjobs") is not None)
            self._start_managers()
            self._controllers = Controllers(Api(read_kubeconfig(self.kubeconfig)))
            self._controllers.start()
            for node in self.nodes:
                self.start_node(node)
            self._wait("nodes", lambda: all(self.is_ready(node) for node in self.nodes))
        except BaseException:
            self.__exit__(None, None, None)
            raise
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        if self._controllers is not None:
            self._controllers.closed.set()
        for name in reversed(list(self._processes)):
            self._end(name)
        with contextlib.suppress(OSError):
            Path(MOUNT).rmdir()  # the place that containers mount over

    # -- faults

    def start_node(self, node: str) -> None:
        """Start a node."""
        words = [sys.executable, "-m", "proving.drills.kube_node", str(self.kubeconfig), node, str(free_port())]
        self._spawn(node, [*words, str(self.folder / "nodes" / node)])

    def lose_node(self, node: str) -> None:
        """Power off: the kubelet and every process of its pods, at once."""
        self._end(node)

    def drain(self, node: str) -> None:
        """What kubectl drain does: cordon, then ask for the eviction of every pod there."""
        self.api.patch(f"/api/v1/nodes/{node}", {"spec": {"unschedulable": True}})
        pods = self.api.get("/api/v1/pods", {"fieldSelector": f"spec.nodeName={node}"})["items"]
        for pod in pods:
            meta = {key: pod["metadata"][key] for key in ("name", "namespace")}
            path = f"/api/v1/namespaces/{meta['namespace']}/pods/{meta['name']}/eviction"
            self.api.create(path, {"apiVersion": "policy/v1beta1", "kind": "Eviction", "metadata": meta})

    def uncordon(self, node: str) -> None:
        """Uncordon a node."""
        self.api.patch(f"/api/v1/nodes/{node}", {"spec": {"unschedulable": None}})

    def restart_server(self) -> None:
        """Restart the API server: watches break, and old versions are gone."""
        self._end("kube-apiserver")
        self._spawn_server()
        self._wait("the API server", lambda: self.api.get("/api/v1/namespaces/default") is not None)

    def pods(self, namespace: str = "default") -> list[dict[str, Any]]:
        """All pods."""
        found: list[dict[str, Any]] = self.api.get(f"/api/v1/namespaces/{namespace}/pods")["items"]
        return found

    def is_ready(self, node: str) -> bool:
        """Whether a node is there and can take pods."""
        found = self.api.find(f"/api/v1/nodes/{node}") or {}
        conditions = (found.get("status") or {}).get("conditions") or ()
        # The node controller takes its first taint off when it has seen the node.
        free = not (found.get("spec") or {}).get("taints")
        return free and any((c["type"], c["status"]) == ("Ready", "True") for c in conditions)

    # -- inside

    def _boot(self, kinds: Iterable[dict[str, Any]]) -> None:
        """Start the API server and make these kinds known to it."""
        self.folder.mkdir(parents=True, exist_ok=True)
        self._start_server()
        self.api = Api(read_kubeconfig(self.kubeconfig))
        self._wait("the API server", lambda: self.api.get("/api/v1/namespaces/default") is not None)
        for kind in kinds:
            self.api.create("/apis/apiextensions.k8s.io/v1/customresourcedefinitions", kind)

    def _start_server(self) -> None:
        client, peer = free_port(), free_port()
        self._etcd = f"http://127.0.0.1:{client}"
        words = [_program("etcd"), "--data-dir", str(self.folder / "etcd"), "--listen-client-urls", self._etcd]
        words += ["--advertise-client-urls", self._etcd, "--listen-peer-urls", f"http://127.0.0.1:{peer}"]
        words += ["--initial-advertise-peer-urls", f"http://127.0.0.1:{peer}", "--unsafe-no-fsync"]
        words += ["--initial-cluster", f"default=http://127.0.0.1:{peer}"]
        self._spawn("etcd", words)
        subprocess.run(
            ["openssl", "genrsa", "-out", str(self.folder / "sa.key"), "2048"], check=True, capture_output=True
        )
        (self.folder / "tokens.csv").write_text(f'{_TOKEN},admin,1,"system:masters"\nbench-nobody,nobody,2\n')
        self._spawn_server()
        self._wait("its certificate", (self.folder / "certs" / "apiserver.crt").exists)
        self.write_kubeconfig(self.kubeconfig, _TOKEN)

    def _spawn_server(self) -> None:
        key = str(self.folder / "sa.key")
        words = [_program("kube-apiserver"), f"--etcd-servers={self._etcd}", f"--secure-port={self._port}"]
        words += ["--bind-address=127.0.0.1", f"--cert-dir={self.folder / 'certs'}", "--endpoint-reconciler-type=none"]
        words += [f"--service-account-key-file={key}", f"--service-account-signing-key-file={key}"]
        words += ["--service-account-issuer=https://kubernetes.default.svc", "--authorization-mode=RBAC"]
        words += [f"--token-auth-file={self.folder / 'tokens.csv'}", "--disable-admission-plugins=ServiceAccount"]
        words += ["--service-cluster-ip-range=10.0.0.0/24", "--allow-privileged=true"]
        self._spawn("kube-apiserver", words)

    def _start_managers(self) -> None:
        own = [f"--kubeconfig={self.kubeconfig}", "--leader-elect=false", "--bind-address=127.0.0.1"]
        words = [_program("kube-controller-manager"), *own, f"--controllers={_CONTROLLERS}", "--port=0"]
        words += [f"--secure-port={free_port()}", f"--service-account-private-key-file={self.folder / 'sa.key'}"]
        words += ["--node-monitor-period=1s", "--node-monitor-grace-period=8s", "--pod-eviction-timeout=10s"]
        self._spawn("kube-controller-manager", words)
        words = [_program("kube-scheduler"), *own, f"--secure-port={free_port()}", "--port=0"]
        self._spawn("kube-scheduler", words)

    def write_kubeconfig(self, path: Path, token: str, namespace: str = "default") -> None:
        """A kubeconfig of this cluster for a token."""
        cluster = {
            "server": f"https://127.0.0.1:{self._port}",
            "certificate-authority": str(self.folder / "certs" / "apiserver.crt"),
        }
        context = {"cluster": "bench", "user": "bench", "namespace": namespace}
        document: dict[str, Any] = {"apiVersion": "v1", "kind": "Config", "current-context": "bench"}
        document |= {
            "clusters": [{"name": "bench", "cluster": cluster}],
            "contexts": [{"name": "bench", "context": context}],
        }
        document |= {"users": [{"name": "bench", "user": {"token": token}}]}
        path.write_text(yaml.safe_dump(document))

    def _spawn(self, name: str, words: list[str]) -> None:
        with (self.folder / f"{name}.log").open("ab") as log:
            self._processes[name] = subprocess.Popen(words, stdout=log, stderr=log, start_new_session=True)

    def _end(self, name: str) -> None:
        process = self._processes.pop(name, None)
        if process is not None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()

    def _wait(self, what: str, condition: Callable[[], bool]) -> None:
        deadline, restarts = time.monotonic() + _START_S, 0
        while time.monotonic() < deadline:
            for name, process in list(self._processes.items()):
                if process.poll() is not None and name == "kube-apiserver" and restarts < _MAX_RESTARTS:
                    restarts += 1
                    self._spawn_server()  # on a busy machine it gives up waiting for etcd; a kubelet would restart it
                elif process.poll() is not None:
                    said = (self.folder / f"{name}.log").read_text(errors="replace")[-800:]
                    raise RuntimeError(f"{name} ended with {process.returncode}: {said}")
            with contextlib.suppress(OSError, ApiRefused):
                if condition():
                    return
            time.sleep(0.3)
        raise RuntimeError(f"waited {_START_S:.0f} s for {what}")


def free_port() -> int:
    """A port that is free now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def _program(name: str) -> str:
    found = find_program(name)
    assert found is not None, f"{name} was there when we asked"
    return found

"""Reports from running systems: Slurm's sacct, and a watch on a Kubernetes API that forgets its pods."""

from __future__ import annotations

import json
import os
import shutil
import stat
import subprocess
import sys
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, ClassVar

import pytest

from prism.cli.characterize import characterize_traces
from prism.datacenter.characterize import characterize
from prism.datacenter.characterize.live import fetch_sacct, list_objects, watch_objects
from prism.errors import BadConfigError, BadFileError

SACCT = Path(__file__).parent / "data" / "sacct"


def install(folder: Path, name: str, script: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Put a program of our own first on the path."""
    program = folder / name
    program.write_text(f"#!{sys.executable}\n{script}")
    program.chmod(program.stat().st_mode | stat.S_IEXEC)
    monkeypatch.setenv("PATH", f"{folder}{os.pathsep}{os.environ['PATH']}")


def run_prism(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "prism", "characterize", *arguments], capture_output=True, text=True, check=False
    )


def test_sacct_is_asked_for_what_the_report_needs_and_gives_a_report_each_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    script = f"""
import os, pathlib, sys
pathlib.Path({str(tmp_path / "asked.txt")!r}).write_text(" ".join(sys.argv[1:]) + " " + os.environ["SLURM_TIME_FORMAT"])
sys.stdout.write(pathlib.Path({str(SACCT / "parsable2.txt")!r}).read_text())
"""
    install(tmp_path, "sacct", script, monkeypatch)
    done = run_prism(
        "--system", "sacct", "--since", "now-7days", "--every", "1", "--rounds", "2", "--json", "--gpus", "9"
    )
    assert done.returncode == 0, done.stderr
    documents = [json.loads(line) for line in done.stdout.splitlines()]
    assert [document["jobs"] for document in documents] == [11, 11]
    asked = (tmp_path / "asked.txt").read_text()
    assert "--allusers --parsable2 --starttime=now-7days --format=JobID,User,State,AllocTRES,ReqTRES" in asked
    assert asked.endswith(" %s")


def test_a_sacct_that_fails_or_is_not_there_is_said_in_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    install(tmp_path, "sacct", "import sys\nsys.exit('sacct: error: no database')", monkeypatch)
    with pytest.raises(
        BadFileError, match=r"sacct ended with 1 \(sacct: error: no database\); run it by hand: sacct --all"
    ):
        fetch_sacct("now-1days", tmp_path / "t.txt")
    monkeypatch.setenv("PATH", str(tmp_path / "nothing"))
    with pytest.raises(BadConfigError, match="sacct is not installed here; run prism on a login node"):
        fetch_sacct("now-1days", tmp_path / "t.txt")


@pytest.mark.parametrize("version", ["v1beta1", "v1beta2"])
def test_kueue_is_asked_in_the_version_that_its_cluster_prefers(
    version: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    group = {"kind": "APIGroup", "preferredVersion": {"version": version}}
    empty = {"kind": "WorkloadList", "metadata": {"resourceVersion": "7"}, "items": []}
    answers = {"/apis/kueue.x-k8s.io": group, f"/apis/kueue.x-k8s.io/{version}/workloads": empty}
    install(tmp_path, "kubectl", f"import json, sys\nprint(json.dumps({answers!r}[sys.argv[-1]]))", monkeypatch)
    assert list_objects("kueue", tmp_path / "store.jsonl") == "7"


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({}, "no job table is given"),
        ({"source": "lsf"}, "--system 'lsf' is not known; give one of sacct, kubernetes, kueue"),
        ({"source": "sacct", "traces": [Path("x.csv")]}, "are both given"),
        ({"traces": [Path("x.csv")], "every": 5}, "are for --system"),
        ({"source": "sacct", "every": 0}, "expected at least 1 second"),
        ({"traces": [Path("x.csv")], "cluster": ["a", "b"]}, "given 2 times for 1 traces"),
    ],
)
def test_wrong_use_is_refused(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(BadConfigError, match=message):
        characterize_traces(**settings)


def pod(name: str, phase: str, *, ended: str | None = None, version: int = 1, **metadata: str) -> dict[str, Any]:
    status: dict[str, Any] = {
        "phase": phase,
        "conditions": [{"type": "PodScheduled", "status": "True", "lastTransitionTime": "2024-05-01T10:00:00Z"}],
    }
    if ended:
        status["containerStatuses"] = [{"state": {"terminated": {"exitCode": 0, "finishedAt": ended}}}]
    return {
        "metadata": {"name": name, "namespace": "ml", "uid": name, "creationTimestamp": "2024-05-01T09:59:00Z",
                     "resourceVersion": str(version), **metadata},
        "spec": {"nodeName": "n1", "containers": [
            {"name": "c", "env": [{"name": "TOKEN", "value": "secret-value"}], "resources": {"limits": {"nvidia.com/gpu": "8"}}}]},
        "status": status,
    }  # fmt: skip


class Api(BaseHTTPRequestHandler):
    """As much of a Kubernetes API server as `kubectl get --raw` needs."""

    protocol_version = "HTTP/1.1"
    pods: ClassVar[list[dict[str, Any]]] = []
    events: ClassVar[list[dict[str, Any]]] = []
    asked: ClassVar[list[str]] = []

    def do_GET(self) -> None:
        type(self).asked.append(self.path)
        if "watch=1" in self.path:
            body = "".join(json.dumps(event) + "\n" for event in self.events) + '{"type": "MODI'
        else:
            listed = {"metadata": {"resourceVersion": "77"}, "items": self.pods}
            body = json.dumps({"apiVersion": "v1", "kind": "PodList", **listed})
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body.encode())

    def log_message(self, *_: object) -> None:
        """Say nothing."""


@pytest.fixture
def api(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[type[Api]]:
    if shutil.which("kubectl") is None:
        pytest.skip("needs kubectl")
    server = ThreadingHTTPServer(("127.0.0.1", 0), Api)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    config = tmp_path / "kubeconfig"
    url = f"http://127.0.0.1:{server.server_port}"
    config.write_text(json.dumps({
        "apiVersion": "v1", "kind": "Config", "current-context": "x", "users": [{"name": "u", "user": {}}],
        "clusters": [{"name": "c", "cluster": {"server": url}}],
        "contexts": [{"name": "x", "context": {"cluster": "c", "user": "u"}}],
    }))  # fmt: skip
    monkeypatch.setenv("KUBECONFIG", str(config))
    Api.asked = []
    yield Api
    server.shutdown()
    server.server_close()


def test_a_watch_keeps_pods_that_the_cluster_forgets_and_none_of_their_secrets(api: type[Api], tmp_path: Path) -> None:
    store = tmp_path / "pods.jsonl"
    api.pods = [pod("a", "Running"), pod("b", "Running")]
    gone = pod("b", "Running", deletionTimestamp="2024-05-01T10:30:00Z")
    api.events = [
        {"type": "MODIFIED", "object": {"kind": "Pod", **pod("a", "Succeeded", ended="2024-05-01T12:00:00Z")}},
        {"type": "DELETED", "object": {"kind": "Pod", **gone}},
        {"type": "BOOKMARK", "object": {"kind": "Pod", "metadata": {"resourceVersion": "99"}}},
        {"type": "ADDED", "object": {"kind": "Pod", **pod("c", "Pending")}},
    ]
    version = list_objects("kubernetes", store)
    assert watch_objects("kubernetes", store, version, 2) == 3
    assert any("resourceVersion=77" in path and "watch=1" in path for path in api.asked)
    report = characterize(store)
    states = dict(report.study.states.filter(kind="gpu").select("state", "jobs").iter_rows())
    assert states == {"completed": 1, "cancelled": 1, "pending": 1}
    assert report.study.summary.gpu_hours == pytest.approx(8 * 2 + 8 * 0.5)
    assert "secret-value" not in store.read_text()
    # A day later the cluster knows none of them: what was seen stays, what vanished unseen is not running.
    api.pods = [pod("d", "Running")]
    list_objects("kubernetes", store)
    later = characterize(store)
    states = dict(later.study.states.filter(kind="gpu").select("state", "jobs").iter_rows())
    assert states == {"completed": 1, "cancelled": 2, "running": 1}
    assert later.study.summary.jobs == 4


def test_the_command_watches_for_as_long_as_it_was_told(api: type[Api], tmp_path: Path) -> None:
    api.pods = [pod("a", "Running")]
    api.events = [
        {"type": "MODIFIED", "object": {"kind": "Pod", **pod("a", "Succeeded", ended="2024-05-01T12:00:00Z")}}
    ]
    store = str(tmp_path / "pods.jsonl")
    done = run_prism("--system", "kubernetes", "--store", store, "--every", "1", "--rounds", "1", "--json")
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["states"]["by_gpu_time"] == {"completed": 8 * 7200}


def test_a_store_that_is_something_else_is_not_overwritten(api: type[Api], tmp_path: Path) -> None:
    api.pods = []
    store = tmp_path / "precious.txt"
    store.write_text("my notes\n")
    with pytest.raises(BadFileError, match=r"precious\.txt line 1: is no event of a watch; give --store a new file"):
        list_objects("kubernetes", store)
    assert store.read_text() == "my notes\n"


@pytest.mark.slow
def test_a_real_slurm_answers(tmp_path: Path) -> None:
    """Needs a cluster whose `sacct` works here (SLURM_CONF)."""
    if shutil.which("sacct") is None or subprocess.run(["sacct", "-n"], capture_output=True, check=False).returncode:
        pytest.skip("no Slurm with accounting at hand")
    done = run_prism("--system", "sacct", "--json")
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["trace"]["format"] == "slurm"

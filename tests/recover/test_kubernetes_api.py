"""The client of the REST API: logins, refusals, watches that break off, logs that go on."""

from __future__ import annotations

import base64
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest
import yaml
from kubernetes_server import Answer, Script, serve

from prism.errors import BadConfigError
from prism.recover.supervise.launchers.kubernetes.api import ApiRefused, ApiUnreachable
from prism.recover.supervise.launchers.kubernetes.credentials import Credentials, find_credentials, read_kubeconfig
from prism.recover.supervise.launchers.kubernetes.nodes import NodeWatch, mark_suspect
from prism.recover.supervise.launchers.kubernetes.pod_logs import PodLogs
from prism.recover.supervise.launchers.kubernetes.pods import PodState
from prism.recover.supervise.launchers.kubernetes.watching import Watcher


def wait_for(condition: Callable[[], bool], limit_s: float = 600.0) -> None:
    deadline = time.monotonic() + limit_s
    while not condition():
        assert time.monotonic() < deadline, "it did not come to pass"
        time.sleep(0.02)


def pod(name: str, version: int) -> dict:
    return {"metadata": {"name": name, "uid": name, "resourceVersion": str(version)}, "kind": "Pod"}


def listed(version: int, *names: str) -> Answer:
    items = [pod(name, version) for name in names]
    return Answer(body={"kind": "PodList", "metadata": {"resourceVersion": str(version)}, "items": items})


def event(kind: str, item: dict) -> dict:
    return {"type": kind, "object": item}


BOOKMARK = event("BOOKMARK", {"kind": "Pod", "metadata": {"resourceVersion": "90"}})
GONE = event("ERROR", {"kind": "Status", "code": 410, "reason": "Expired", "message": "too old resource version"})


def names(watcher: Watcher) -> set[str]:
    return {item["metadata"]["name"] for item in watcher.collection.present()}


def asked(script: Script, key: str) -> list[dict[str, str]]:
    return [query for kind, _, query, _ in script.asked if kind == key]


# -- watches


def test_a_watch_goes_on_from_the_last_version_it_saw_also_a_bookmarks():
    first = Answer(lines=(event("ADDED", pod("b", 11)), event("DELETED", pod("a", 12)), BOOKMARK))
    with serve(LIST=[listed(10, "a")], WATCH=[first, Answer(lines=(event("ADDED", pod("c", 95)),))]) as script:
        watcher = Watcher(script.api(), "/api/v1/pods", {"labelSelector": "x=y"})
        wait_for(lambda: names(watcher) == {"b", "c"})
        watcher.close()
        assert [query["resourceVersion"] for query in asked(script, "WATCH")][:2] == ["10", "90"]
        assert asked(script, "WATCH")[0]["allowWatchBookmarks"] == "true"
        assert len(asked(script, "LIST")) == 1 and asked(script, "LIST")[0]["labelSelector"] == "x=y"
        assert [item["metadata"]["name"] for item in watcher.collection.gone()] == ["a"]


@pytest.mark.parametrize("how", [Answer(lines=(GONE,)), Answer(status=410, body={"message": "too old", "code": 410})])
def test_a_version_that_the_server_forgot_leads_to_a_new_list(how: Answer):
    with serve(LIST=[listed(10, "a"), listed(50, "b")], WATCH=[how, Answer(lines=(BOOKMARK,))]) as script:
        watcher = Watcher(script.api(), "/api/v1/pods", {})
        wait_for(lambda: names(watcher) == {"b"})
        watcher.close()
        assert [item["metadata"]["name"] for item in watcher.collection.gone()] == ["a"]


def test_a_stream_that_breaks_off_within_an_event_is_taken_up_again():
    torn = Answer(lines=(event("ADDED", pod("b", 11)), '{"type":"ADDED","obj'), cut=True)
    with serve(LIST=[listed(10, "a")], WATCH=[torn, Answer(lines=(event("ADDED", pod("c", 12)),))]) as script:
        watcher = Watcher(script.api(), "/api/v1/pods", {})
        wait_for(lambda: names(watcher) == {"a", "b", "c"})
        watcher.close()
        assert asked(script, "WATCH")[1]["resourceVersion"] == "11" and len(asked(script, "LIST")) == 1


def test_a_list_of_several_pages_is_read_whole():
    first = Answer(body={"metadata": {"resourceVersion": "10", "continue": "next"}, "items": [pod("a", 1)]})
    with serve(LIST=[first, listed(10, "b")], WATCH=[Answer(lines=(BOOKMARK,))]) as script:
        watcher = Watcher(script.api(), "/api/v1/pods", {})
        assert watcher.wait_listed(10.0) and names(watcher) == {"a", "b"}
        watcher.close()
        assert asked(script, "LIST")[1]["continue"] == "next"


def test_a_server_that_is_away_changes_nothing_and_is_asked_again():
    down = Answer(status=503, body={"message": "etcd is away"})
    with serve(LIST=[listed(10, "a")], WATCH=[down, down, Answer(lines=(event("ADDED", pod("b", 11)),))]) as script:
        watcher = Watcher(script.api(), "/api/v1/pods", {})
        wait_for(lambda: names(watcher) == {"a", "b"})
        watcher.close()


def test_a_missing_right_is_reported_with_what_to_do():
    with serve(LIST=[Answer(status=403, body={"message": "pods is forbidden"})]) as script:
        watcher = Watcher(script.api(), "/api/v1/pods", {})
        wait_for(lambda: bool(watcher.trouble))
        watcher.close()
        assert "pods is forbidden" in watcher.trouble and "rbac.yaml" in watcher.trouble


# -- requests


def test_an_expired_token_is_fetched_again(tmp_path: Path):
    token = tmp_path / "token"
    token.write_text("old")
    expired = Answer(status=401, body={"message": "Unauthorized"})
    with serve(LIST=[expired, listed(1, "a")]) as script:
        api = script.api({"tokenFile": str(token)})
        assert api.credentials.headers()["Authorization"] == "Bearer old"
        token.write_text("new")
        assert api.get("/api/v1/pods")["items"]
        assert [header for *_, header in script.asked] == ["Bearer old", "Bearer new"]


def test_what_stays_refused_is_the_users_and_what_is_busy_is_waited_for():
    unauthorized, busy = (
        Answer(status=401, body={"message": "Unauthorized"}),
        Answer(status=429, body={"message": "slow"}),
    )
    invalid = Answer(status=422, body={"message": "spec.template: Required value"})
    with serve(LIST=[unauthorized, unauthorized, busy], POST=[invalid]) as script:
        with pytest.raises(ApiRefused, match="log in again"):
            script.api().get("/api/v1/pods")
        with pytest.raises(ApiUnreachable, match="429"):
            script.api().get("/api/v1/pods")
        with pytest.raises(BadConfigError, match=r"spec\.template: Required value"):
            script.api().create("/apis/batch/v1/namespaces/x/jobs", {})
    with pytest.raises(OSError, match="does not answer"):
        script.api().get("/api/v1/pods")


def test_what_is_gone_is_no_error_to_delete():
    with serve(DELETE=[Answer(status=404, body={"message": "not found"})]) as script:
        script.api().delete("/api/v1/namespaces/x/pods/y")
        assert script.api().find("/api/v1/nodes/z") is None


# -- logins


def kubeconfig(tmp_path: Path, user: dict) -> Path:
    path = tmp_path / "config"
    cluster = {"server": "https://10.0.0.1:6443/", "insecure-skip-tls-verify": True}
    document = {
        "current-context": "one",
        "clusters": [{"name": "c", "cluster": cluster}],
        "users": [{"name": "u", "user": user}],
        "contexts": [{"name": "one", "context": {"cluster": "c", "user": "u", "namespace": "training"}}],
    }
    path.write_text(yaml.safe_dump(document))
    return path


def test_a_kubeconfig_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    path = kubeconfig(tmp_path, {"token": "secret"})
    monkeypatch.setenv("KUBECONFIG", str(path))
    found = find_credentials()
    assert (found.server, found.namespace) == ("https://10.0.0.1:6443", "training")
    assert found.headers() == {"Authorization": "Bearer secret"}
    with pytest.raises(BadConfigError, match="no entry 'two' under 'contexts'"):
        find_credentials("two")
    monkeypatch.setenv("KUBECONFIG", str(tmp_path / "none"))
    with pytest.raises(BadConfigError, match="no kubeconfig"):
        find_credentials()


def test_a_login_command_is_run_again_when_its_token_ends(tmp_path: Path):
    count = tmp_path / "count"
    program = (
        f"import json, pathlib; p = pathlib.Path({str(count)!r}); n = len(p.read_text()) if p.exists() else 0; p.write_text('x' * (n + 1));"
        "print(json.dumps({'status': {'token': f't{n}', 'expirationTimestamp': '2000-01-01T00:00:00Z'}}))"
    )
    user = {"exec": {"command": sys.executable, "args": ["-c", program]}}
    found = read_kubeconfig(kubeconfig(tmp_path, user))
    assert [found.headers()["Authorization"] for _ in range(2)] == ["Bearer t0", "Bearer t1"]
    broken = read_kubeconfig(kubeconfig(tmp_path, {"exec": {"command": "no-such-login"}}))
    with pytest.raises(BadConfigError, match="'no-such-login' gave no token"):
        broken.headers()


def test_inside_a_pod_its_service_account_is_used(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    for name, text in (("token", "t1\n"), ("namespace", "training"), ("ca.crt", "")):
        (tmp_path / name).write_text(text)
    monkeypatch.delenv("KUBECONFIG", raising=False)
    monkeypatch.setenv("KUBERNETES_SERVICE_HOST", "fd00::1")
    found = find_credentials(account=tmp_path)
    assert (found.server, found.namespace) == ("https://[fd00::1]:443", "training")
    assert found.headers() == {"Authorization": "Bearer t1"}


def test_damaged_data_in_a_kubeconfig_is_reported(tmp_path: Path):
    damaged = {"client-certificate-data": "!", "client-key-data": base64.b64encode(b"k").decode()}
    with pytest.raises(BadConfigError, match="client-certificate"):
        Credentials({"server": "https://x"}, damaged, "", "here").ticket()
    text = base64.b64encode(b"no certificate").decode()
    with pytest.raises(BadConfigError, match="damaged"):
        Credentials({"server": "https://x", "certificate-authority-data": text}, {}, "", "here").tls()


# -- logs


def log_line(second: int, text: str) -> str:
    return f"2026-03-01T10:00:0{second}.5Z {text}"


RUNNING = PodState(name="p", uid="0123456789", node="node-1", container="trainer", started=True, place=("", 0, 2))
OVER = PodState(
    name="p", uid="0123456789", node="node-1", container="trainer", started=True, over=True, place=("", 0, 2)
)


def test_a_log_is_followed_and_goes_on_where_a_killed_supervisor_left_off(tmp_path: Path):
    with serve(LOG=[Answer(lines=(log_line(1, "step 1"), log_line(2, "step 2")))]) as script:
        logs = PodLogs(script.api(), "default", tmp_path, 8)
        logs.update([OVER])
        logs.drain(20.0)
    assert (tmp_path / "node-1.2-01234567.log").read_text() == "step 1\nstep 2\n"
    again = Answer(lines=(log_line(2, "step 2"), log_line(3, "step 3")))
    with serve(LOG=[again]) as script:
        logs = PodLogs(script.api(), "default", tmp_path, 8)
        logs.update([OVER])
        logs.drain(20.0)
        assert asked(script, "LOG")[0]["sinceTime"] == "2026-03-01T10:00:02Z"
    assert (tmp_path / "node-1.2-01234567.log").read_text() == "step 1\nstep 2\nstep 3\n"


def test_a_stream_that_ends_while_the_pod_runs_is_opened_again(tmp_path: Path):
    parts = [Answer(lines=(log_line(1, "a"),), cut=True), Answer(lines=(log_line(1, "a"), log_line(2, "b")))]
    with serve(LOG=parts) as script:
        logs = PodLogs(script.api(), "default", tmp_path, 8)
        logs.update([RUNNING])
        wait_for(
            lambda: (
                (tmp_path / "node-1.2-01234567.log").exists()
                and "b" in (tmp_path / "node-1.2-01234567.log").read_text()
            )
        )
        logs.close()
    assert (tmp_path / "node-1.2-01234567.log").read_text() == "a\nb\n"


def test_what_a_container_said_before_its_restart_is_kept(tmp_path: Path):
    restarted = PodState(
        name="p", uid="0123456789", node="node-1", container="trainer", started=True, over=True, restarts=1
    )
    with serve(LOG=[Answer(lines=(log_line(1, "x"),))]) as script:
        logs = PodLogs(script.api(), "default", tmp_path, 8)
        logs.update([restarted])
        logs.drain(20.0)
        assert {query.get("previous") for query in asked(script, "LOG")} == {"true", None}
    assert len(list(tmp_path.glob("*.log"))) == 2


# -- nodes


def test_a_node_is_lost_only_after_patience_and_without_rights_never():
    away = Answer(body={"status": {"conditions": [{"type": "Ready", "status": "Unknown"}]}})
    with serve(LIST=[away]) as script:
        assert NodeWatch(script.api(), 0.0).lost(("n1",)) == {"n1"}
        assert NodeWatch(script.api(), 60.0).lost(("n1",)) == frozenset()
    with serve(LIST=[Answer(status=403, body={"message": "no"})]) as script:
        watch = NodeWatch(script.api(), 0.0)
        assert watch.lost(("n1",)) == frozenset() and watch.lost(("n1",)) == frozenset()


def test_a_node_is_not_touched_unless_the_user_wants_it():
    with serve() as script:
        assert "would be tainted" in mark_suspect(script.api(), "n1", "bad", dry_run=True)
        assert script.asked == []


def test_a_taint_keeps_those_of_others():
    others = {"key": "gpu", "effect": "NoSchedule"}
    node = Answer(body={"metadata": {"resourceVersion": "7"}, "spec": {"taints": [others]}})
    with serve(LIST=[node], PATCH=[Answer(body={})]) as script:
        assert "is tainted" in mark_suspect(script.api(), "n1", "bad", dry_run=False)
        assert [path for kind, path, *_ in script.asked if kind == "PATCH"] == [
            "/api/v1/nodes/n1",
            "/api/v1/nodes/n1/status",
        ]
        assert (
            script.bodies[-2]["spec"]["taints"][0] == others and script.bodies[-2]["metadata"]["resourceVersion"] == "7"
        )
        assert script.bodies[-1]["status"]["conditions"][0]["type"] == "PrismSuspect"

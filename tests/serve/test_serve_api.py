"""The API: documents, one error shape, and what keeps it safe."""

from __future__ import annotations

import base64
import re
import shutil
import subprocess
from pathlib import Path

import pytest
from served_folder import SCRIPT
from starlette.testclient import TestClient

from prism.errors import BadConfigError
from prism.serve.start import ServeConfig, choose_token, is_loopback
from prism.serve.web.app import AppConfig, create_app
from prism.serve.web.guard import GuardConfig, name_of_host
from prism.serve.web.metrics import write_metric
from prism.serve.web.pages import PAGES

TOKEN = "a-token-of-some-length"


def test_every_page_is_the_same_document_and_everything_it_loads_is_served(client: TestClient) -> None:
    for page in PAGES:
        answer = client.get(page)
        assert answer.status_code == 200 and answer.headers["content-type"].startswith("text/html")
    for name in re.findall(r'(?:src|href)="(static/[^"]+)"', answer.text):
        found = client.get(name)
        assert found.status_code == 200 and found.content, name
    assert "http" not in re.sub(r"<noscript>.*</noscript>", "", answer.text), "nothing comes from elsewhere"


def test_modules_import_only_what_is_served(client: TestClient) -> None:
    seen, waiting = set(), ["/static/app.js"]
    while waiting:
        path = waiting.pop()
        answer = client.get(path)
        assert answer.status_code == 200, path
        seen.add(path)
        for target in re.findall(r'from "(\.{1,2}/[^"]+)"', answer.text):
            parts = path.rsplit("/", 1)[0].split("/")
            for part in target.split("/"):
                if part == "..":
                    parts.pop()
                elif part != ".":
                    parts.append(part)
            if "/".join(parts) not in seen:
                waiting.append("/".join(parts))
    assert len(seen) > 10


def test_the_timeline_is_aggregated_to_the_pixels_asked_for(client: TestClient) -> None:
    asked = {"key": "report~job-1", "width": 200, "num_rows": 16}
    window = client.get("/api/timeline", params=asked).json()
    picture = window["picture"]
    assert len(base64.b64decode(picture["pixels"])) == 16 * 200 and picture["spans"]["row"] == []
    assert picture["num_rows"] == 64 and picture["num_spans"] > 2_000
    middle = (window["from_ns"] + window["to_ns"]) // 2
    near = client.get("/api/timeline", params={**asked, "from_ns": middle, "to_ns": middle + 5_000_000}).json()
    sent = near["picture"]["spans"]
    assert near["picture"]["pixels"] == "" and sent["row"], "few spans are sent as they are"
    rank = near["picture"]["ranks"][sent["row"][0]]
    place = {"key": "report~job-1", "rank": rank, "from_ns": sent["from_ns"][0], "to_ns": sent["to_ns"][0]}
    under = client.get("/api/spans", params=place).json()
    assert sent["names"][sent["name"][0]] in [found["name"] for found in under["observed"]]


def test_no_window_is_larger_than_a_million_pixels(client: TestClient) -> None:
    asked = {"key": "report/cluster~job-1", "width": 4_096, "num_rows": 1_024, "by": "lane"}
    picture = client.get("/api/timeline", params=asked).json()["picture"]
    assert len(picture["labels"]) == min(256, picture["num_rows"])
    assert len(base64.b64decode(picture["pixels"])) <= 1 << 20


@pytest.mark.parametrize(("expected", "aligned"), [("report/cluster~job-1", "clock"), ("emulation~emulation", "step")])
def test_expected_is_laid_over_observed(client: TestClient, expected: str, aligned: str) -> None:
    asked = {
        "key": "report~job-1",
        "width": 300,
        "num_rows": 64,
        "from_ns": 0,
        "to_ns": 3_000_000_000,
        "expected": expected,
    }
    found = client.get("/api/timeline", params=asked).json()["expected"]
    assert found["aligned"] == aligned
    assert any(base64.b64decode(found["pixels"])), "something was expected"


def test_where_time_goes_adds_up_to_no_more_than_there_is(client: TestClient) -> None:
    data = client.get("/api/breakdown", params={"key": "report~job-1", "from_ns": 0, "to_ns": 10**9}).json()
    compute = data["seconds"][data["kinds"].index("compute")]
    assert len(compute) == 64 and all(0.0 <= value <= 1.0 for value in compute)


def test_a_job_is_exported_as_a_perfetto_trace(client: TestClient) -> None:
    answer = client.get("/api/trace", params={"key": "report~job-1", "from_ns": 0, "to_ns": 10**9})
    assert answer.status_code == 200 and answer.content[:1] == b"\n" and len(answer.content) > 1_000
    assert 'filename="report-job-1.perfetto-trace"' in answer.headers["content-disposition"]
    whole = client.get("/api/trace", params={"key": "report~job-1"})
    assert len(whole.content) > len(answer.content)


@pytest.mark.parametrize(
    ("path", "status"),
    [
        ("/nothing", 404), ("/api/nothing", 404), ("/api/job", 422), ("/api/job?key=no~job", 404),
        ("/api/timeline?key=report~job-1&width=99999", 422), ("/api/timeline?key=report~job-1&from_ns=x", 422),
        ("/api/timeline?key=no", 404),
        ("/api/timeline?key=report~job-1&expected=no", 404), ("/api/run?key=no", 404), ("/api/verdict?id=no", 404),
        ("/api/evaluation?key=no", 404), ("/api/trace?key=no", 404), ("/api/report?key=no", 404),
        ("/static/../app.py", 404), ("/static/%2e%2e/start.py", 404), ("/static/..%2f..%2fstart.py", 404),
        ("/api/spans?key=report~job-1&rank=-1", 422), (f"/api/job?key={'x' * 2_000}", 422),
    ],
)  # fmt: skip
def test_every_error_has_one_shape(client: TestClient, path: str, status: int) -> None:
    answer = client.get(path)
    assert answer.status_code == status
    error = answer.json()["error"]
    assert set(error) == {"code", "message", "status"} and error["status"] == status
    assert error["message"] and "\n" not in error["message"]


@pytest.mark.parametrize(
    "key",
    ["../../etc/passwd", "/etc/passwd", "..%2f..", "report/../..~job-1", "~", "report~job-1\0", "report~../job-1"],
)
def test_no_key_leads_out_of_the_folder(client: TestClient, key: str) -> None:
    for route in ("job", "timeline", "trace", "report", "run", "evaluation"):
        assert client.get(f"/api/{route}", params={"key": key}).status_code == 404
    assert client.get("/api/verdict", params={"id": key}).status_code == 404


def test_a_link_that_appears_in_the_folder_is_not_followed(tmp_path: Path) -> None:
    (tmp_path / "outside").mkdir()
    (tmp_path / "outside" / "diagnosis.json").write_text('{"jobs": [], "findings": []}')
    root = tmp_path / "root"
    root.mkdir()
    (root / "linked").symlink_to(tmp_path / "outside")
    (root / "diagnosis.json").symlink_to(tmp_path / "outside" / "diagnosis.json")
    with TestClient(create_app(AppConfig(folder=root)), base_url="http://127.0.0.1") as session:
        assert session.get("/api/overview").json()["sources"] == []


def test_script_in_a_log_line_stays_text(client: TestClient) -> None:
    seen = 0
    for row in client.get("/api/failures").json()["verdicts"]:
        answer = client.get("/api/verdict", params={"id": row["id"]})
        assert answer.headers["content-type"] == "application/json"
        assert answer.headers["x-content-type-options"] == "nosniff"
        texts = [line["text"] for context in answer.json()["context"] for line in context["lines"]]
        seen += SCRIPT in texts
    assert seen, "the log with the script is shown"
    for page in PAGES:
        assert SCRIPT not in client.get(page).text
    for path in Path("src/prism/serve/static").rglob("*.js"):
        assert not re.search(
            r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|\beval\(|new Function", path.read_text()
        ), path


def test_every_answer_carries_the_headers(client: TestClient) -> None:
    for path in ("/", "/api/version", "/metrics", "/healthz", "/nothing", "/static/app.js"):
        headers = client.get(path).headers
        assert "script-src 'self';" in headers["content-security-policy"], path
        assert "unsafe-eval" not in headers["content-security-policy"]
        assert headers["x-frame-options"] == "DENY" and headers["referrer-policy"] == "no-referrer"
        assert "cache-control" in headers and "server" not in headers


def test_a_stand_alone_report_may_not_run_scripts(client: TestClient) -> None:
    answer = client.get("/api/report", params={"key": "datacenter~report"})
    assert answer.status_code == 200
    policy = answer.headers["content-security-policy"]
    assert "sandbox" in policy and "allow-scripts" not in policy and "default-src 'none'" in policy


def test_only_get_and_head_pass_and_without_a_body(client: TestClient) -> None:
    for method in ("POST", "PUT", "DELETE", "PATCH", "OPTIONS", "TRACE"):
        assert client.request(method, "/api/version").status_code == 405
    assert client.request("GET", "/api/version", content=b"x").status_code == 413
    head = client.head("/api/version")
    assert head.status_code == 200 and head.content == b"" and int(head.headers["content-length"]) > 0


def test_a_huge_query_is_refused(client: TestClient) -> None:
    answer = client.get("/api/version?" + "a" * 10_000)
    assert answer.status_code == 414 and answer.json()["error"]["code"] == "too_long"


def test_what_did_not_change_is_not_sent_again(client: TestClient) -> None:
    first = client.get("/api/cluster")
    again = client.get("/api/cluster", headers={"If-None-Match": first.headers["etag"]})
    assert again.status_code == 304 and again.content == b""
    script = client.get("/static/app.js")
    assert client.get("/static/app.js", headers={"If-None-Match": script.headers["etag"]}).status_code == 304


def test_an_address_that_others_reach_needs_a_token() -> None:
    assert is_loopback("127.0.0.1") and is_loopback("::1") and is_loopback("localhost") and is_loopback("127.3.2.1")
    assert (
        not is_loopback("0.0.0.0") and not is_loopback("::") and not is_loopback("10.0.0.1") and not is_loopback("host")
    )
    assert choose_token(ServeConfig(folder=Path(), ask_token=False)) is None
    with pytest.raises(BadConfigError, match="--no-token"):
        choose_token(ServeConfig(folder=Path(), host="0.0.0.0", ask_token=False))
    made = {choose_token(ServeConfig(folder=Path(), host="0.0.0.0")) for _ in range(3)}
    assert len(made) == 3 and all(token and len(token) >= 32 for token in made)


@pytest.fixture(scope="module")
def guarded(tmp_path_factory: pytest.TempPathFactory) -> TestClient:
    config = AppConfig(
        folder=tmp_path_factory.mktemp("guarded"), guard=GuardConfig(token=TOKEN, hosts=None, most_wrong_tries=99)
    )
    return TestClient(create_app(config), base_url="http://prism.example.com")


def test_without_the_token_nothing_is_shown(guarded: TestClient) -> None:
    for path in ("/", "/api/version", "/metrics", "/static/app.js", "/nothing", "/?token=wrong", "/?token="):
        answer = guarded.get(path, follow_redirects=False)
        assert answer.status_code == 401 and answer.json()["error"]["code"] == "token_needed"
    for given in ("wrong", TOKEN[:-1], TOKEN + "x", "", "é"):
        assert guarded.get("/api/version", headers={"Authorization": f"Bearer {given}".encode()}).status_code == 401
        assert guarded.get("/api/version", headers={"Cookie": f"prism_session={given}".encode()}).status_code == 401
    assert guarded.get("/healthz").status_code == 200, "probes need no token"


def test_with_the_token_everything_is(guarded: TestClient) -> None:
    assert guarded.get("/api/version", headers={"Authorization": f"Bearer {TOKEN}"}).status_code == 200
    first = guarded.get(f"/job?key=a~b&token={TOKEN}", follow_redirects=False)
    assert first.status_code == 303 and first.headers["location"] == "./job?key=a~b", "the token leaves the address"
    guarded.cookies.clear()
    away = guarded.get(f"http://prism.example.com//evil.example.com/?token={TOKEN}", follow_redirects=False)
    assert away.headers["location"] == "./", "and never leads to another host"
    cookie = first.headers["set-cookie"]
    assert "HttpOnly" in cookie and "SameSite=lax" in cookie and TOKEN not in cookie
    assert guarded.get("/api/version", headers={"Cookie": cookie.partition(";")[0]}).status_code == 200
    guarded.cookies.clear()


def test_on_loopback_other_names_are_refused(client: TestClient) -> None:
    for name in ("evil.example.com", "127.0.0.1.evil.example.com", "", "localhost.evil.com:80"):
        assert client.get("/api/version", headers={"Host": name}).status_code == 403
    for name in ("127.0.0.1", "localhost:8042", "[::1]:8042", "LOCALHOST"):
        assert client.get("/api/version", headers={"Host": name}).status_code == 200
    assert name_of_host("[::1]:80") == "::1"


def test_metrics_are_what_prometheus_reads(client: TestClient) -> None:
    answer = client.get("/metrics")
    assert answer.headers["content-type"].startswith("text/plain; version=0.0.4")
    named = set()
    for line in answer.text.splitlines():
        if line.startswith("# TYPE"):
            named.add(line.split()[2])
        elif not line.startswith("#"):
            match = re.fullmatch(
                r'([a-z_]+)(\{[a-z_]+="(?:[^"\\\n]|\\.)*"(?:,[a-z_]+="(?:[^"\\\n]|\\.)*")*\})? [-+0-9.e]+', line
            )
            assert match and match[1] in named, line
    for name in ("jobs", "job_step_seconds", "findings", "run_recoveries_total", "evaluation_trials", "hosts_cordoned"):
        assert f"prism_serve_{name}" in named
    assert 'prism_serve_run_recoveries_total{run="runs/pretrain"} 2' in answer.text


def test_labels_of_metrics_are_escaped() -> None:
    text = write_metric("x", "gauge", "About.", [({"name": 'a"b\\c\nd'}, 1.0)])
    assert text.splitlines()[-1] == r'prism_serve_x{name="a\"b\\c\nd"} 1'


def test_the_dashboard_for_grafana_asks_only_for_metrics_that_are_served(client: TestClient) -> None:
    import json

    text = Path("src/prism/serve/grafana/prism-serve.json").read_text()
    asked = set(re.findall(r"prism_serve_[a-z_]+", text))
    served = {line.split()[2] for line in client.get("/metrics").text.splitlines() if line.startswith("# TYPE")}
    assert asked and asked <= served
    document = json.loads(text)
    assert document["title"] and len(document["panels"]) >= 8
    # Prometheus gives a label `job` of its own to every target, and would rename ours.
    assert not re.search(r"\bby \([^)]*\bjob\b|\{\{job\}\}|[{,]job=", text)


@pytest.mark.skipif(shutil.which("promtool") is None, reason="needs promtool, of Debian's prometheus")
def test_prometheus_takes_the_metrics_and_its_own_label_is_left_alone(client: TestClient) -> None:
    text = client.get("/metrics").text
    checked = subprocess.run(["promtool", "check", "metrics"], input=text, capture_output=True, text=True, timeout=600)
    assert checked.returncode == 0, checked.stderr + checked.stdout
    assert 'prism_job="' in text and not re.search(r"[{,]job=", text)

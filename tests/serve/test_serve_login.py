"""Who may read: the login page, sessions, wrong tries, a prefix, and machines that others log in to."""

from __future__ import annotations

import gzip
import json
import re
import time
from pathlib import Path

import pytest
from starlette.testclient import TestClient
from test_serve_truth import job_document, write_diagnosis

from prism.errors import BadConfigError
from prism.serve import start
from prism.serve.start import ServeConfig, check_prefix, choose_token
from prism.serve.web.app import AppConfig, create_app
from prism.serve.web.guard import GuardConfig, WrongTries

TOKEN = "a-token-of-more-than-16-letters"
HTML = {"Accept": "text/html,application/xhtml+xml"}


def open_client(folder: Path, **more: object) -> TestClient:
    guard = GuardConfig(token=TOKEN, hosts=None, **more)  # type: ignore[arg-type]
    return TestClient(create_app(AppConfig(folder=folder, guard=guard)), base_url="http://prism.example.com")


def test_a_person_without_a_token_sees_a_login_page_and_a_program_sees_json(tmp_path: Path) -> None:
    client = open_client(tmp_path)
    page = client.get("/job?key=a~b", headers=HTML)
    assert page.status_code == 401 and "<form" in page.text and "Token" in page.text
    assert "not right" in client.get("/?token=wrong", headers=HTML).text
    assert client.get("/api/jobs", headers=HTML).json()["error"]["code"] == "token_needed"
    style = re.findall(r'href="(static/[^"]+)"', page.text)
    assert style and all(client.get(f"/{name}").status_code == 200 for name in style)
    assert client.get("/static/app.js").status_code == 401


def test_a_link_from_elsewhere_finds_its_reader_logged_in(tmp_path: Path) -> None:
    client = open_client(tmp_path)
    cookie = client.get(f"/?token={TOKEN}", follow_redirects=False).headers["set-cookie"]
    assert "samesite=lax" in cookie.lower(), "a strict cookie is not sent along a link from a chat"
    assert TOKEN not in cookie
    assert client.get("/job?key=a~b", headers=HTML).status_code == 200


def test_wrong_tries_are_counted_and_a_session_goes_on(tmp_path: Path) -> None:
    client = open_client(tmp_path, most_wrong_tries=3)
    client.get(f"/?token={TOKEN}")
    session = dict(client.cookies)
    client.cookies.clear()
    for _ in range(3):
        assert client.get("/api/jobs", headers={"Authorization": "Bearer wrong"}).status_code == 401
    late = client.get("/api/jobs", headers={"Authorization": "Bearer wrong again"})
    assert late.status_code == 429 and late.headers["retry-after"] == "60"
    right = client.get("/api/jobs", headers={"Authorization": f"Bearer {TOKEN}"})
    assert right.status_code == 200, "a scrape behind the proxy that somebody guesses from"
    client.cookies.update(session)
    assert client.get("/api/jobs").status_code == 200, "whoever is logged in is not locked out by somebody's guesses"


def test_wrong_tries_are_forgotten_after_a_while() -> None:
    now = [0.0]
    tries = WrongTries(2, 60.0, lambda: now[0])
    tries.note("a")
    tries.note("a")
    assert tries.are_too_many("a") and not tries.are_too_many("b")
    now[0] = 61.0
    assert not tries.are_too_many("a")


def test_on_loopback_a_token_is_asked_for_where_others_log_in(monkeypatch: pytest.MonkeyPatch) -> None:
    for others in (True, False):
        monkeypatch.setattr(start, "has_other_users", lambda others=others: others)
        assert (choose_token(ServeConfig(folder=Path())) is not None) == others
    monkeypatch.setattr(start, "has_other_users", lambda: True)
    assert choose_token(ServeConfig(folder=Path(), ask_token=False)) is None


def test_pages_work_below_a_prefix(tmp_path: Path) -> None:
    client = open_client(tmp_path, prefix="/prism")
    bearer = {"Authorization": f"Bearer {TOKEN}"}
    assert client.get("/prism", headers=bearer, follow_redirects=False).headers["location"] == "/prism/"
    page = client.get("/prism/job", headers=bearer)
    names = re.findall(r'(?:src|href)="(static/[^"]+)"', page.text)
    assert page.status_code == 200 and len(names) >= 4
    assert all(client.get(f"/prism/{name}", headers=bearer).status_code == 200 for name in names)
    first = client.get(f"/prism/job?key=a&token={TOKEN}", follow_redirects=False)
    assert first.headers["location"] == "./job?key=a" and "Path=/prism" in first.headers["set-cookie"]


@pytest.mark.parametrize(("given", "clean"), [("", ""), ("/", ""), ("prism", "/prism"), ("/a/b/", "/a/b")])
def test_a_prefix_is_written_in_any_way(given: str, clean: str) -> None:
    assert check_prefix(given) == clean


def test_a_prefix_that_is_no_path_is_refused() -> None:
    for text in ("/../x", "a?b", "//a//b"):
        with pytest.raises(BadConfigError, match="--prefix"):
            check_prefix(text)


def test_answers_are_packed_paged_and_not_sent_again_where_they_say_the_same(tmp_path: Path) -> None:
    write_diagnosis(tmp_path / "report", [job_document(number) for number in range(30)])
    app = create_app(AppConfig(folder=tmp_path, look_every_s=0.05))
    with TestClient(app, base_url="http://127.0.0.1") as client:
        with client.stream("GET", "/api/jobs", headers={"Accept-Encoding": "gzip"}) as answer:
            packed, tag = b"".join(answer.iter_raw()), answer.headers["etag"]
        whole = json.loads(gzip.decompress(packed))
        assert len(packed) < 0.3 * len(json.dumps(whole)) and whole["total"] == 30
        page = client.get("/api/jobs?offset=10&limit=5").json()
        assert page["jobs"] == whole["jobs"][10:15] and page["total"] == 30
        before = client.get("/api/version").json()["version"]
        (tmp_path / "goodput.json").write_text('{"schema": "prism.goodput/1", "gpu_hours": 1.0, "goodput": 0.5}')
        deadline = time.monotonic() + 600
        while client.get("/api/version").json()["version"] == before and time.monotonic() < deadline:
            time.sleep(0.05)
        assert client.get("/api/reports").json()["reports"], "the folder has changed"
        assert client.get("/api/jobs", headers={"If-None-Match": tag}).status_code == 304


def test_the_pages_are_small_and_nothing_is_loaded_that_is_not_ours(tmp_path: Path) -> None:
    from prism.serve.web.pages import load_static

    sizes = {name: len(file.make("gzip").body) for name, file in load_static().items()}
    assert sum(sizes.values()) < 150_000, sizes


def test_a_session_of_one_process_is_good_at_another_of_the_same_token(tmp_path: Path) -> None:
    guards = [create_app(AppConfig(folder=tmp_path, guard=GuardConfig(token="t" * 20))) for _ in range(2)]
    with (
        TestClient(guards[0], base_url="http://127.0.0.1") as one,
        TestClient(guards[1], base_url="http://127.0.0.1") as two,
    ):
        one.get("/", params={"token": "t" * 20})
        assert two.get("/api/version").status_code == 401
        two.cookies.update(one.cookies)
        assert two.get("/api/version").status_code == 200

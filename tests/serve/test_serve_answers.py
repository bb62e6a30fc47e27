"""Answers that are kept: given only to those who may, only while they are true, in every packing the same."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import pytest
import zstandard
from fastapi.testclient import TestClient
from small_folder import make_small_folder
from test_serve_truth import job_document, write_diagnosis

from prism.serve.tokens import Token, digest_of
from prism.serve.views import cluster
from prism.serve.web.answers import choose_encoding
from prism.serve.web.app import AppConfig, create_app, keep_up
from prism.serve.web.guard import GuardConfig

READER, SCRAPER = "r" * 20, "s" * 20
WINDOW = "/api/timeline?key=report~job-1&width=64&from_ns=0&num_rows=2"


@pytest.fixture
def num_built(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How often the document of the Cluster page was made."""
    built = [0]
    describe = cluster.describe_cluster

    def count(*given: Any) -> cluster.ClusterDocument:
        built[0] += 1
        return describe(*given)

    monkeypatch.setattr(cluster, "describe_cluster", count)
    return built


def test_a_kept_answer_is_made_once_and_given_only_to_those_who_may(tmp_path: Path, num_built: list[int]) -> None:
    write_diagnosis(tmp_path / "report", [job_document(1)])
    ended = Token(name="old", digest=digest_of("o" * 20), expires_s=1.0)
    scraper = Token(name="scraper", digest=digest_of(SCRAPER), scopes=frozenset({"metrics"}))
    guard = GuardConfig(token=READER, tokens=(scraper, ended))
    client = TestClient(create_app(AppConfig(folder=tmp_path, guard=guard)), base_url="http://127.0.0.1")

    def ask(path: str, token: str = "") -> int:
        given = {"Authorization": f"Bearer {token}"} if token else {}
        return client.get(path, headers=given).status_code

    assert [ask("/api/cluster", READER) for _ in range(3)] == [200] * 3 and num_built == [1]
    tag = client.get("/api/cluster", headers={"Authorization": f"Bearer {READER}"}).headers["etag"]
    assert ask("/api/cluster") == 401 and ask("/api/cluster", "wrong" * 4) == 401
    assert ask("/api/cluster", "o" * 20) == 401, "a token that has ended"
    assert ask("/api/cluster", SCRAPER) == 403 and ask("/metrics", SCRAPER) == 200
    assert client.get("/api/cluster", headers={"If-None-Match": tag}).status_code == 401, "nor that it is the same"
    assert client.get("/api/cluster", headers={"Host": "evil.example.com"}).status_code == 403
    assert client.post("/api/cluster").status_code == 405 and num_built == [1]


def test_a_kept_answer_goes_when_the_folder_changes(tmp_path: Path, num_built: list[int]) -> None:
    write_diagnosis(tmp_path / "report", [job_document(1)])
    config = AppConfig(folder=tmp_path)
    backing = keep_up(config)
    client = TestClient(create_app(config, backing), base_url="http://127.0.0.1")
    assert [client.get("/api/cluster").json()["counts"]["jobs"] for _ in range(3)] == [1] * 3 and num_built == [1]
    write_diagnosis(tmp_path / "other", [job_document(2)])
    backing.library.refresh()
    assert [client.get("/api/cluster").json()["counts"]["jobs"] for _ in range(3)] == [2] * 3 and num_built == [2]


def test_a_remark_is_published_although_no_file_of_the_folder_changed(tmp_path: Path) -> None:
    from prism.serve.history import HistoryConfig

    (tmp_path / "served").mkdir()
    history = HistoryConfig(state=tmp_path / "state")
    config = AppConfig(folder=tmp_path / "served", guard=GuardConfig(writable=True), history=history)
    client = TestClient(create_app(config), base_url="http://127.0.0.1")
    assert [client.get("/api/annotations").json()["annotations"] for _ in range(2)] == [[], []]
    body = json.dumps({"text": "cables changed", "at_ns": 1})
    assert client.post("/api/annotations", content=body, headers={"X-Prism-Write": "1"}).status_code < 300
    assert [row["text"] for row in client.get("/api/annotations").json()["annotations"]] == ["cables changed"]


def test_every_packing_holds_the_same(tmp_path: Path) -> None:
    write_diagnosis(tmp_path / "report", [job_document(number) for number in range(30)])
    unpack = {"zstd": lambda body: zstandard.ZstdDecompressor().decompress(body), "gzip": gzip.decompress, "": bytes}
    client = TestClient(create_app(AppConfig(folder=tmp_path)), base_url="http://127.0.0.1")
    found = {}
    for accepted, expected in (("gzip, deflate, br, zstd", "zstd"), ("gzip", "gzip"), ("identity", "")):
        for _ in range(2):  # made, then kept
            with client.stream("GET", "/api/jobs", headers={"Accept-Encoding": accepted}) as answer:
                body = b"".join(answer.iter_raw())
                assert answer.headers.get("content-encoding", "") == expected
            found[expected] = unpack[expected](body)
    assert found["zstd"] == found["gzip"] == found[""]


@pytest.mark.parametrize(
    ("accepted", "chosen"),
    [("zstd;q=0, gzip", "gzip"), ("gzip;q=0", ""), ("", ""), ("GZIP ; q=0.5", "gzip"), ("gzipped, zstdx", ""),
     ("br, zstd;q=0.9", "zstd")],
)  # fmt: skip
def test_what_a_client_does_not_take_is_not_sent(accepted: str, chosen: str) -> None:
    assert choose_encoding(accepted.encode()) == chosen


def test_windows_say_the_same_by_the_short_way_and_through_the_framework(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from prism.serve.web.answers import Answers, Direct

    served = make_small_folder(tmp_path, characterized=False)
    config = AppConfig(folder=served, guard=GuardConfig(most_seconds=600.0))  # loops may be compiled first
    short = TestClient(create_app(config), base_url="http://127.0.0.1")
    paths = [WINDOW, WINDOW + "&by=lane&hide=dp,tp", "/api/spans?key=report~job-1&rank=1&from_ns=0&to_ns=2000000000",
             WINDOW + "&width=2", "/api/timeline", "/api/timeline?key=nothing", "/api/spans?key=report~job-1&rank=x",
             WINDOW + "&from_ns=&to_ns=5", WINDOW + "&width=64&width=128&unknown=1"]  # fmt: skip
    by_short = [short.get(path) for path in paths for _ in range(2)]

    async def pass_on(self: Direct[Any], scope: Any) -> None:
        return None

    monkeypatch.setattr(Direct, "ask", pass_on)
    monkeypatch.setattr(Answers, "find", lambda self, scope: None)
    framework = TestClient(create_app(config), base_url="http://127.0.0.1")
    by_framework = [framework.get(path) for path in paths for _ in range(2)]
    assert [(a.status_code, a.content) for a in by_short] == [(a.status_code, a.content) for a in by_framework]
    assert [a.status_code for a in by_short[::2]] == [200, 200, 200, 422, 422, 404, 422, 422, 200]

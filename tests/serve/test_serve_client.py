"""The typed client, written from the API's description: what it reads is what the service said."""

from __future__ import annotations

import importlib.util
import json
from collections.abc import Iterator, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest
from small_folder import make_small_folder
from starlette.testclient import TestClient

from prism.serve.client import Client, ServeError
from prism.serve.history import HistoryConfig
from prism.serve.web.app import AppConfig, create_app
from prism.serve.web.guard import GuardConfig

SCRIPT = Path(__file__).parents[2] / "scripts" / "write_serve_client.py"
ASKED: dict[str, dict[str, Any]] = {
    "version": {}, "overview": {}, "jobs": {"limit": 1}, "findings": {}, "cluster": {}, "incidents": {}, "hours": {}, "incident": {"id": "i-1"}, "failures": {},
    "evaluations": {}, "datacenter": {}, "reports": {}, "job": {"key": "report~job-1"},
    "verdict": {"id": "runs/pretrain~3"}, "run": {"key": "runs/pretrain~run"},
    "evaluation": {"key": "evaluation~trials"}, "printed": {"path": "goodput.json"},
    "timeline": {"key": "report~job-1", "width": 64, "num_rows": 8}, "spans": {"key": "report~job-1", "rank": 0},
    "breakdown": {"key": "report~job-1"}, "history": {"limit": 5}, "history_jobs": {}, "search": {"q": "node"},
    "host": {"name": "node-2"}, "annotations": {}, "alerts": {},
}  # fmt: skip


class InProcess(Client):
    """The client without a socket."""

    def __init__(self, session: TestClient) -> None:
        super().__init__("http://127.0.0.1")
        self.session = session

    def ask(self, method: str, path: str, query: Mapping[str, Any], body: Mapping[str, Any] | None = None) -> bytes:
        given = {name: value for name, value in query.items() if value is not None}
        answer = self.session.request(method, path, params=given, json=body, headers={"X-Prism-Write": "1"})
        if answer.status_code != 200:
            raise ServeError(answer.json()["error"]["code"], answer.json()["error"]["message"], answer.status_code)
        return answer.content


@pytest.fixture(scope="module")
def client(tmp_path_factory: pytest.TempPathFactory) -> Iterator[InProcess]:
    folder = make_small_folder(tmp_path_factory.mktemp("client"), characterized=False)
    history = HistoryConfig(state=tmp_path_factory.mktemp("state"))
    config = AppConfig(folder=folder, history=history, guard=GuardConfig(writable=True, most_seconds=200.0))
    with TestClient(create_app(config), base_url="http://127.0.0.1") as session:
        yield InProcess(session)


@pytest.mark.parametrize("name", ASKED)
def test_what_the_client_reads_is_what_was_said(client: InProcess, name: str) -> None:
    said = json.loads(client.ask("GET", f"/api/{name.replace('_', '/')}", ASKED[name]))
    read = getattr(client, name)(**ASKED[name])
    assert json.loads(json.dumps(asdict(read))) == said


def test_remarks_are_written_and_deleted_and_errors_have_a_code(client: InProcess) -> None:
    written = client.write_annotations(text="new switch firmware", at_ns=1)
    assert [note.text for note in client.annotations().annotations] == ["new switch firmware"]
    client.delete_annotations(id=written.id)
    assert client.annotations().annotations == ()
    with pytest.raises(ServeError) as raised:
        client.job(key="nothing")
    assert (raised.value.code, raised.value.status) == ("not_found", 404)


def test_the_client_is_written_from_the_api_as_it_is() -> None:
    spec = importlib.util.spec_from_file_location("write_serve_client", SCRIPT)
    assert spec is not None and spec.loader is not None
    script = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(script)
    assert script.FILE.read_text() == script.write_client(script.describe()), "run scripts/write_serve_client.py"

"""The API against its own description."""

from __future__ import annotations

import pytest
from hypothesis import HealthCheck, settings
from starlette.testclient import TestClient

schemathesis = pytest.importorskip("schemathesis", reason="needs schemathesis")


@pytest.fixture(scope="module")
def schema(client: TestClient):
    return schemathesis.openapi.from_asgi("/api/openapi.json", client.app, headers={"Host": "127.0.0.1"})


loaded = schemathesis.pytest.from_fixture("schema")


@loaded.parametrize()
@settings(max_examples=25, deadline=None, suppress_health_check=list(HealthCheck))
def test_every_answer_is_as_described(case) -> None:
    case.call_and_validate(headers={"Host": "127.0.0.1"})


@pytest.mark.parametrize(
    "key", ["report~job-1", "report/cluster~job-1", "emulation~emulation", "evaluation~trials", "runs/pretrain~run"]
)
def test_answers_about_what_is_there_have_the_declared_shape(client: TestClient, schema, key: str) -> None:
    checked = 0
    for path in ("/api/job", "/api/timeline", "/api/breakdown", "/api/run", "/api/evaluation"):
        answer = client.get(path, params={"key": key, "num_rows": 8, "width": 64})
        if answer.status_code == 200:
            schema[path]["GET"].validate_response(answer)
            checked += 1
    assert checked

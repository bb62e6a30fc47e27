"""The API against its own description."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from starlette.testclient import TestClient

from prism.serve.web.descriptions import FIELDS, PARAMETERS, list_fields

schemathesis = pytest.importorskip("schemathesis", reason="needs schemathesis")

PATHS = (
    "/api/version", "/api/overview", "/api/jobs", "/api/findings", "/api/cluster", "/api/incidents", "/api/hours", "/api/failures",
    "/api/evaluations",
    "/api/datacenter", "/api/job", "/api/verdict", "/api/run", "/api/evaluation", "/api/timeline", "/api/spans",
    "/api/breakdown", "/api/trace", "/api/report", "/api/reports", "/api/printed",
    "/api/history", "/api/history/jobs", "/api/difference", "/api/search", "/api/host", "/api/incident",
    "/api/annotations", "/api/alerts", "/metrics", "/healthz",
)  # fmt: skip
STREAM = "/api/events"  # it lasts, and is tried in a browser
WRITING = ("/api/alerts/test",)  # nothing to get there
KEYS = ("report~job-1", "report/cluster~job-1", "emulation~emulation", "evaluation~trials", "runs/pretrain~run")


@pytest.fixture(scope="module")
def schema(client: TestClient) -> Any:
    return schemathesis.openapi.from_asgi("/api/openapi.json", client.app, headers={"Host": "127.0.0.1"})


def test_every_route_is_tried_here(client: TestClient) -> None:
    assert set(client.get("/api/openapi.json").json()["paths"]) == {*PATHS, STREAM, *WRITING}


def test_every_field_and_parameter_is_described_and_no_text_is_left_over(client: TestClient) -> None:
    document = client.get("/api/openapi.json").json()
    fields = list(list_fields(document))
    assert len(fields) > 300
    assert [f"{schema}.{name}" for schema, name, field in fields if not field.get("description")] == []
    used = {name for _, name, _ in fields} | {f"{schema}.{name}" for schema, name, _ in fields}
    assert FIELDS.keys() - used == set(), "texts of fields that are gone"
    parameters = [
        parameter
        for methods in document["paths"].values()
        for operation in methods.values()
        for parameter in operation.get("parameters", ())
    ]
    assert [p["name"] for p in parameters if not p.get("description") or "example" not in p] == []
    assert PARAMETERS.keys() - {parameter["name"] for parameter in parameters} == set()


@pytest.mark.parametrize("path", PATHS)
def test_whatever_is_asked_is_answered_as_described(schema: Any, path: str) -> None:
    operation = schema[path]["GET"]

    @settings(max_examples=20, deadline=None, suppress_health_check=list(HealthCheck))
    @given(case=operation.as_strategy())
    def ask(case: Any) -> None:
        case.call_and_validate(headers={"Host": "127.0.0.1"})

    ask()


@pytest.mark.parametrize("key", KEYS)
def test_what_is_there_is_answered_in_the_declared_shape(client: TestClient, schema: Any, key: str) -> None:
    checked = 0
    for path in ("/api/job", "/api/timeline", "/api/breakdown", "/api/run", "/api/evaluation"):
        answer = client.get(path, params={"key": key, "num_rows": 8, "width": 64})
        if answer.status_code == 200:
            schema[path]["GET"].validate_response(schemathesis.Response.from_httpx(answer, verify=False))
            checked += 1
    assert checked

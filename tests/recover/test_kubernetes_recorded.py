"""What a real API server answered (Kubernetes 1.20.2; `python -m proving.drills.kube_record`), read by what reads them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from kubernetes_server import Answer, serve

from prism.recover.supervise.launchers import Look
from prism.recover.supervise.launchers.kubernetes.api import ApiRefused
from prism.recover.supervise.launchers.kubernetes.nodes import is_unreachable
from prism.recover.supervise.launchers.kubernetes.pods import Judging, WorkloadState, judge, read_pod
from prism.recover.supervise.launchers.kubernetes.watching import Collection, VersionGone

RECORDED = json.loads((Path(__file__).parent / "data" / "kubernetes-1.20.2.json").read_text())


def looks(name: str) -> list[Look]:
    """How the attempt stood after each event."""
    collection, found = Collection(), []
    for event in RECORDED[name]:
        collection.apply(event)
        pods = [read_pod(pod) for pod in collection.present()]
        pods += [read_pod(pod, gone=True) for pod in collection.gone()]
        found.append(judge(pods, WorkloadState(name=name, num_pods=1), Judging()))
    return found


def test_a_pod_that_ends_well_waits_runs_and_is_done():
    seen = looks("succeeded")
    assert seen[0].queued and seen[-1].code == 0
    running = [look for look in seen if look.running and not look.queued]
    assert running and running[0].hosts[0].startswith("bench-")


def test_a_pod_that_fails_is_reported_with_its_code_and_node():
    last = looks("failed")[-1]
    assert last.code == 7 and last.first_failed is not None and last.first_failed.startswith("bench-")


def test_an_evicted_pod_runs_until_it_has_saved_and_was_told_to_go():
    seen = looks("evicted")
    told = [event for event in RECORDED["evicted"] if event["object"]["metadata"].get("deletionTimestamp")]
    assert told and seen[RECORDED["evicted"].index(told[0])].running
    assert seen[-1].code == 143 and not seen[-1].lost


def test_a_forgotten_version_is_noticed_in_the_form_the_server_gives_it():
    gone = RECORDED["gone"]
    if gone["status"] == 410:
        with serve(LIST=[Answer(status=410, body=gone["lines"][0])]) as script, pytest.raises(ApiRefused) as refused:
            script.api().get("/api/v1/pods")
        assert refused.value.status == 410
        return
    with pytest.raises(VersionGone):
        for event in gone["lines"]:
            Collection().apply(event)


@pytest.mark.parametrize(
    ("name", "status", "said"),
    [
        ("unauthorized", 401, "log in again"),
        ("forbidden", 403, 'User "nobody" cannot list'),
        ("not-found", 404, "not found"),
        ("conflict", 409, "already exists"),
        ("invalid", 422, "spec.template"),
    ],
)
def test_a_refusal_is_told_in_the_servers_words(name: str, status: int, said: str):
    answer: dict[str, Any] = RECORDED["refusals"][name]
    found = Answer(status=answer["status"], body=answer["body"])
    with serve(LIST=[found]) as script, pytest.raises(ApiRefused) as refused:
        script.api().get("/api/v1/pods")
    assert refused.value.status == status and said in str(refused.value)


def test_a_node_that_stopped_reporting_is_unreachable():
    assert not is_unreachable(RECORDED["nodes"]["ready"]) and is_unreachable(RECORDED["nodes"]["lost"])

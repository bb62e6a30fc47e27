"""Jobs dispatched to two real Kubernetes API servers with Kueue's kinds, while both and the dispatcher fail."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from proving.drills.kueue_bench import KUEUE, KueueBench
from proving.drills.kueue_drill import run_drill, why_not


@pytest.mark.slow
@pytest.mark.skipif(why_not() is not None, reason=why_not() or "")
def test_every_job_is_taken_and_run_exactly_once(tmp_path: Path) -> None:
    found = run_drill(tmp_path, 24, limit_s=600.0)
    assert found.kills and found.faults == 4
    assert len(found.held) == 24 and set(found.held.values()) == {1}
    assert len(found.ran) == 24 and set(found.ran.values()) == {1}


@pytest.mark.slow
@pytest.mark.skipif(why_not() is not None, reason=why_not() or "")
def test_a_workload_of_the_manager_is_nominated_for_the_worker_with_room(tmp_path: Path) -> None:
    ran = tmp_path / "ran.txt"
    with KueueBench(tmp_path / "hub", 0, ran) as hub, KueueBench(tmp_path / "west", 32, ran) as west:
        path = f"{KUEUE}/namespaces/default/workloads"
        limits = {"limits": {"nvidia.com/gpu": "4"}, "requests": {"nvidia.com/gpu": "4"}}
        template = {"spec": {"containers": [{"name": "main", "image": "train", "resources": limits}]}}
        body = {"apiVersion": "kueue.x-k8s.io/v1beta1", "kind": "Workload", "metadata": {"name": "train"}}
        hub.api.create(path, {**body, "spec": {"podSets": [{"name": "main", "count": 2, "template": template}]}})
        reserved = {"type": "QuotaReserved", "status": "True", "lastTransitionTime": "2026-01-01T00:00:00Z"}
        status = {"conditions": [reserved], "admissionChecks": [{"name": "workers", "state": "Pending"}]}
        hub.api.patch(f"{path}/train/status", {"status": status})
        sites = tmp_path / "workers.yaml"
        sites.write_text(f"clusters: [{{name: west, kueue: {{kubeconfig: {west.kubeconfig}}}}}]\n")
        words = ["place", "nominate", "--clusters", str(sites), "--kubeconfig", str(hub.kubeconfig)]
        said = subprocess.run([sys.executable, "-m", "prism", *words], capture_output=True, text=True, timeout=600)
        assert "default/train: west" in said.stdout
        assert "nominatedClusterNames" not in hub.workloads()[0]["status"]  # it only advised
        more = ["--act", "--rounds", "1"]
        subprocess.run([sys.executable, "-m", "prism", *words, *more], check=True, timeout=600)
        found = hub.workloads()[0]
        assert found["status"]["nominatedClusterNames"] == ["west"]
        assert found["status"]["admissionChecks"] == status["admissionChecks"]  # the rest is as it was
        managers = {entry["manager"] for entry in found["metadata"]["managedFields"]}
        assert "kueue-admission" in managers

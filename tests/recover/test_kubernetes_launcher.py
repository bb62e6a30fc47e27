"""The launcher against a cluster in memory: ownership, adoption, messages, and what is never changed."""

from __future__ import annotations

import signal
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest
import yaml
from kubernetes_cluster import MemoryCluster

from prism.errors import BadConfigError
from prism.recover.progress import RunOrders, attempt_dir
from prism.recover.supervise.config import LaunchSettings
from prism.recover.supervise.launchers import LaunchPlan, Look
from prism.recover.supervise.launchers.kubernetes.launcher import KubernetesLauncher
from prism.recover.supervise.launchers.kubernetes.settings import KubernetesSettings

JOB = {
    "apiVersion": "batch/v1",
    "kind": "Job",
    "metadata": {"name": "train"},
    "spec": {
        "completionMode": "Indexed",
        "parallelism": 2,
        "template": {"spec": {"containers": [{"name": "trainer", "image": "x", "command": ["train"]}]}},
    },
}


@pytest.fixture
def cluster(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[MemoryCluster]:
    made = MemoryCluster()
    made.write_kubeconfig(tmp_path / "kubeconfig")
    monkeypatch.setenv("KUBECONFIG", str(tmp_path / "kubeconfig"))
    (tmp_path / "job.yaml").write_text(yaml.safe_dump(JOB))
    yield made
    made.close()


def make(tmp_path: Path, said: list[str] | None = None, **more: object) -> KubernetesLauncher:
    own = KubernetesSettings(manifest=str(tmp_path / "job.yaml"), **more)  # type: ignore[arg-type]
    return KubernetesLauncher(LaunchSettings(kubernetes=own), (said if said is not None else []).append)


def plan(tmp_path: Path, attempt: int = 1, excluded: tuple[str, ...] = ()) -> LaunchPlan:
    run_dir = tmp_path / "run"
    orders = RunOrders(run_dir=run_dir, attempt=attempt)
    folder = attempt_dir(run_dir, attempt)
    return LaunchPlan(command=(), orders=orders, folder=folder, hosts=(), num_hosts=1, excluded=excluded)


def wait_look(launcher: KubernetesLauncher, folder: Path, wanted: Callable[[Look], bool]) -> Look:
    deadline = time.monotonic() + 600
    while not wanted(look := launcher.look(folder)):
        assert time.monotonic() < deadline, look
        time.sleep(0.02)
    return look


def test_an_attempt_goes_from_the_queue_over_its_nodes_to_its_end(tmp_path: Path, cluster: MemoryCluster):
    launcher, one = make(tmp_path), plan(tmp_path)
    launcher.start(one)
    assert launcher.look(one.folder).queued
    first, second = cluster.place("node-a", "node-b")
    cluster.logs = {p["metadata"]["name"]: ["hello", f"from {n}"] for n, p in enumerate((first, second))}
    assert wait_look(launcher, one.folder, lambda look: bool(look.hosts)).hosts == ("node-a", "node-b")
    cluster.end(first, 0)
    cluster.end(second, 0)
    look = wait_look(launcher, one.folder, lambda look: not look.running)
    assert look.code == 0 and look.first_failed is None
    assert [path.read_text() for path in launcher.logs(one.folder)] == ["hello\nfrom 0\n", "hello\nfrom 1\n"]
    launcher.stop(one.folder, 0.0)
    assert cluster.workload()  # what is complete stays, for people to look at
    assert make(tmp_path).look(one.folder).code == 0


def test_a_killed_rank_is_reported_with_its_node_and_the_rest_is_swept(tmp_path: Path, cluster: MemoryCluster):
    said: list[str] = []
    launcher, one = make(tmp_path, said), plan(tmp_path)
    launcher.start(one)
    _, second = cluster.place("node-a", "node-b")
    cluster.end(second, 137)
    look = wait_look(launcher, one.folder, lambda look: not look.running)
    assert (look.code, look.first_failed) == (137, "node-b")
    assert any("on node-b) ended: exit code 137" in line for line in said)
    launcher.stop(one.folder, 0.0)
    assert not cluster.pods() and not cluster.objects["/apis/batch/v1/namespaces/default/jobs"]
    assert launcher.look(one.folder).code == 137


def test_the_next_attempt_is_new_under_the_same_name_and_avoids_the_suspects(tmp_path: Path, cluster: MemoryCluster):
    launcher = make(tmp_path)
    launcher.start(plan(tmp_path))
    before = cluster.workload()["metadata"]["uid"]
    launcher.start(plan(tmp_path, attempt=2, excluded=("node-b",)))
    found = cluster.workload()
    assert found["metadata"]["uid"] != before and found["metadata"]["labels"]["prism-attempt"] == "2"
    required = found["spec"]["template"]["spec"]["affinity"]["nodeAffinity"]
    (term,) = required["requiredDuringSchedulingIgnoredDuringExecution"]["nodeSelectorTerms"]
    assert term["matchFields"] == [{"key": "metadata.name", "operator": "NotIn", "values": ["node-b"]}]


def test_starting_the_same_attempt_twice_leaves_one_of_it(tmp_path: Path, cluster: MemoryCluster):
    launcher, one = make(tmp_path), plan(tmp_path)
    launcher.start(one)
    before = cluster.workload()["metadata"]["uid"]
    cluster.place("node-a", "node-b")
    make(tmp_path).start(one)  # the supervisor was killed before it wrote down that it had started it
    assert cluster.workload()["metadata"]["uid"] == before and len(cluster.pods()) == 2


def test_another_supervisor_adopts_an_attempt_by_what_is_on_disk(tmp_path: Path, cluster: MemoryCluster):
    one = plan(tmp_path)
    make(tmp_path).start(one)
    first, _ = cluster.place("node-a", "node-b")
    again = make(tmp_path)
    assert wait_look(again, one.folder, lambda look: bool(look.hosts)).running
    cluster.end(first, 9)
    assert wait_look(again, one.folder, lambda look: not look.running).code == 9


@pytest.mark.parametrize("labels", [{}, {"prism-run": "another"}])
def test_a_workload_of_someone_else_is_never_touched(tmp_path: Path, cluster: MemoryCluster, labels: dict):
    jobs = "/apis/batch/v1/namespaces/default/jobs"
    theirs = {"metadata": {"name": "train", "uid": "u", "labels": labels}, "spec": {}}
    cluster.put(jobs, theirs, "ADDED")
    with pytest.raises(BadConfigError, match="exists and is"):
        make(tmp_path).start(plan(tmp_path))
    assert cluster.workload()["metadata"]["uid"] == "u"
    assert not [path for verb, path in cluster.asked if verb in ("DELETE", "POST", "PATCH")]


def test_an_evicted_pod_that_saved_is_no_success_and_no_failure(tmp_path: Path, cluster: MemoryCluster):
    launcher, one = make(tmp_path), plan(tmp_path)
    launcher.start(one)
    first, second = cluster.place("node-a", "node-b")
    target = {"type": "DisruptionTarget", "status": "True", "reason": "EvictionByEvictionAPI"}
    cluster.end(first, 0, conditions=[target])
    cluster.end(second, 0)
    look = wait_look(launcher, one.folder, lambda look: not look.running)
    assert (look.code, look.first_failed, look.lost) == (143, "node-a", False)


def test_a_workload_that_a_person_deleted_ends_the_attempt(tmp_path: Path, cluster: MemoryCluster):
    launcher, one = make(tmp_path), plan(tmp_path)
    launcher.start(one)
    cluster.place("node-a", "node-b")
    wait_look(launcher, one.folder, lambda look: bool(look.hosts))
    cluster.delete("/apis/batch/v1/namespaces/default/jobs", "train")
    assert wait_look(launcher, one.folder, lambda look: not look.running).code in (143, None)


def test_a_server_that_goes_away_says_nothing_of_the_job(tmp_path: Path, cluster: MemoryCluster):
    launcher, one = make(tmp_path), plan(tmp_path)
    launcher.start(one)
    cluster.place("node-a", "node-b")
    wait_look(launcher, one.folder, lambda look: bool(look.hosts))
    cluster.close()
    assert launcher.look(one.folder).running


def test_a_replaced_pod_is_reported_and_the_attempt_goes_on(tmp_path: Path, cluster: MemoryCluster):
    said: list[str] = []
    launcher, one = make(tmp_path, said, restart="pod"), plan(tmp_path)
    launcher.start(one)
    assert cluster.workload()["spec"]["backoffLimit"] > 0
    first, _ = cluster.place("node-a", "node-b")
    cluster.end(first, 1)
    cluster.place("node-c")
    wait_look(launcher, one.folder, lambda look: look.running and any("replaces it" in line for line in said))


def test_a_condemned_node_is_only_told_of_unless_the_user_wants_more(tmp_path: Path, cluster: MemoryCluster):
    said: list[str] = []
    cluster.put("/api/v1/nodes", {"metadata": {"name": "node-b"}, "spec": {}}, "ADDED")
    make(tmp_path, said).cordon("node-b", "failed the host test")
    assert "would be tainted" in said[0] and not cluster.objects["/api/v1/nodes"]["node-b"]["spec"]
    launcher = make(tmp_path, said, taint=True)
    launcher.cordon("node-b", "failed the host test")
    node = cluster.objects["/api/v1/nodes"]["node-b"]
    assert node["spec"]["taints"][0]["key"] == "prism-suspect"
    launcher.uncordon("node-b")
    assert cluster.objects["/api/v1/nodes"]["node-b"]["spec"]["taints"] == []


def test_what_cannot_be_done_there_is_reported(tmp_path: Path, cluster: MemoryCluster):
    with pytest.raises(BadConfigError, match="host test"):
        make(tmp_path).prefix("node-a")
    with pytest.raises(BadConfigError, match="--manifest"):
        KubernetesLauncher(replace(LaunchSettings()))


@pytest.fixture
def signals() -> Iterator[None]:
    """A supervisor listens to signals; the tests after this one should not."""
    numbers = (signal.SIGTERM, signal.SIGINT)
    before = [signal.getsignal(number) for number in numbers]
    yield
    for number, handler in zip(numbers, before, strict=True):
        signal.signal(number, handler)


@pytest.mark.usefixtures("cluster", "signals")
@pytest.mark.parametrize(("words", "said"), [([], "--manifest"), (["--manifest", "none.yaml"], "none.yaml")])
def test_the_command_needs_a_manifest(tmp_path: Path, words: list[str], said: str, capfd: pytest.CaptureFixture[str]):
    from prism.cli.main import main

    with pytest.raises(SystemExit) as ended:
        main(["supervise", "--launcher", "kubernetes", "--run-dir", str(tmp_path / "run"), *words])
    assert ended.value.code == 2 and said in capfd.readouterr().err

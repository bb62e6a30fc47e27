"""One contract for every launcher: local processes, ssh, Slurm and Kubernetes where they can be started, the fake."""

from __future__ import annotations

import secrets
import shutil
import sys
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
import yaml
from fake_launcher import FakeLauncher

from prism.errors import BadConfigError
from prism.recover.progress import RunOrders, attempt_dir
from prism.recover.supervise.config import LaunchSettings
from prism.recover.supervise.launchers import Launcher, LaunchPlan
from prism.recover.supervise.launchers.kubernetes.launcher import KubernetesLauncher
from prism.recover.supervise.launchers.kubernetes.settings import KubernetesSettings
from prism.recover.supervise.launchers.local import LocalLauncher
from prism.recover.supervise.launchers.processes import find_marked
from prism.recover.supervise.launchers.slurm import SlurmLauncher
from prism.recover.supervise.launchers.ssh import SshLauncher
from proving.drills.kube_cluster import KubeCluster, why_no_kubernetes
from proving.drills.kube_stage import workload
from proving.drills.slurm_cluster import SlurmCluster, why_no_slurm
from proving.drills.ssh_hosts import SshHosts, why_no_ssh_hosts


@pytest.fixture(scope="module")
def slurm(tmp_path_factory) -> Iterator[SlurmCluster]:
    reason = why_no_slurm()
    if reason is not None:
        pytest.skip(reason)
    with SlurmCluster(tmp_path_factory.mktemp("slurm")) as cluster:
        yield cluster


@pytest.fixture(scope="module")
def ssh_hosts(tmp_path_factory) -> Iterator[SshHosts]:
    reason = why_no_ssh_hosts()
    if reason is not None:
        pytest.skip(reason)
    with SshHosts(tmp_path_factory.mktemp("ssh"), 2) as hosts:
        yield hosts


@pytest.fixture(scope="module")
def kube(tmp_path_factory) -> Iterator[KubeCluster]:
    reason = why_no_kubernetes()
    if reason is not None:
        pytest.skip(reason)
    with KubeCluster(tmp_path_factory.mktemp("kubernetes"), 2) as cluster:
        yield cluster


def on_kubernetes(tmp_path: Path, **more: object) -> KubernetesLauncher:
    """A launcher of a Job of one pod."""
    name = f"contract-{secrets.token_hex(3)}"
    (tmp_path / "job.yaml").write_text(yaml.safe_dump(workload(name, "Job", pods=1)))
    own = KubernetesSettings(manifest=str(tmp_path / "job.yaml"), **more)  # type: ignore[arg-type]
    return KubernetesLauncher(LaunchSettings(kubernetes=own, python=sys.executable))


@pytest.fixture
def kube_launcher(kube: KubeCluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Launcher]:
    monkeypatch.setenv("KUBECONFIG", str(kube.kubeconfig))
    yield on_kubernetes(tmp_path)
    for job in kube.api.get("/apis/batch/v1/namespaces/default/jobs")["items"]:
        path = f"/apis/batch/v1/namespaces/default/jobs/{job['metadata']['name']}"
        kube.api.delete(path, propagation="Background")


class NamedHosts(SshLauncher):
    """Runs what names no host on the first one."""

    def start(self, plan: LaunchPlan) -> tuple[str, ...]:
        return super().start(replace(plan, hosts=plan.hosts or ("h1",)))


@pytest.fixture(
    params=[
        "local",
        pytest.param("ssh", marks=[pytest.mark.slow]),
        pytest.param("kubernetes", marks=[pytest.mark.slow]),
        pytest.param("slurm", marks=[pytest.mark.slurm, pytest.mark.slow]),
    ]
)
def launcher(request) -> Launcher:
    if request.param == "ssh":
        return NamedHosts(request.getfixturevalue("ssh_hosts").settings)
    if request.param == "kubernetes":
        return request.getfixturevalue("kube_launcher")
    if request.param == "slurm":
        request.getfixturevalue("slurm")
        return SlurmLauncher()
    return LocalLauncher()


def plan(tmp_path: Path, script: str, attempt: int = 1, hosts: tuple[str, ...] = ()) -> LaunchPlan:
    run_dir = tmp_path / "run"
    orders = RunOrders(run_dir=run_dir, attempt=attempt, resume_step=4)
    return LaunchPlan(
        command=("sh", "-c", script), orders=orders, folder=attempt_dir(run_dir, attempt), hosts=hosts, num_hosts=1
    )


def wait_over(launcher: Launcher, folder: Path, limit_s: float = 600.0):
    deadline = time.monotonic() + limit_s
    while (look := launcher.look(folder)).running and time.monotonic() < deadline:
        time.sleep(0.1)
    assert not look.running
    return look


def wait_text(launcher: Launcher, folder: Path, text: str) -> str:
    deadline = time.monotonic() + 600
    while time.monotonic() < deadline:
        found = "".join(path.read_text() for path in launcher.logs(folder))
        if text in found:
            return found
        time.sleep(0.1)
    raise AssertionError(f"{text!r} not in the logs")


def test_a_command_that_ends_well_is_seen_to(tmp_path: Path, launcher: Launcher):
    one = plan(tmp_path, "echo hello $PRISM_ATTEMPT $PRISM_RESUME_STEP $PRISM_NODE_RANK of $PRISM_NUM_NODES")
    launcher.start(one)
    look = wait_over(launcher, one.folder)
    assert look.code == 0 and look.first_failed is None
    assert "hello 1 4 0 of 1" in wait_text(launcher, one.folder, "hello")


def test_a_failure_is_reported_with_its_code_and_host(tmp_path: Path, launcher: Launcher):
    one = plan(tmp_path, "exit 7")
    launcher.start(one)
    look = wait_over(launcher, one.folder)
    assert look.code == 7 and look.first_failed is not None


def test_stopping_ends_every_process_also_those_in_sessions_of_their_own(tmp_path: Path, launcher: Launcher):
    one = plan(tmp_path, "setsid sleep 300 & echo up; sleep 300")
    launcher.start(one)
    wait_text(launcher, one.folder, "up")
    assert launcher.look(one.folder).running
    launcher.stop(one.folder, 0.0)
    assert not launcher.look(one.folder).running
    if isinstance(launcher, LocalLauncher):
        assert find_marked(str(one.folder.resolve())) == []


def test_stopping_with_grace_lets_the_command_finish_its_work(tmp_path: Path, launcher: Launcher):
    one = plan(tmp_path, "trap 'echo saved; exit 0' TERM; echo up; while :; do sleep 0.1; done")
    launcher.start(one)
    wait_text(launcher, one.folder, "up")
    launcher.stop(one.folder, 20.0)
    assert "saved" in wait_text(launcher, one.folder, "saved")


def test_stopping_what_is_over_does_nothing(tmp_path: Path, launcher: Launcher):
    one = plan(tmp_path, "exit 0")
    launcher.start(one)
    wait_over(launcher, one.folder)
    launcher.stop(one.folder, 0.0)
    assert launcher.look(one.folder).code == 0


def test_a_further_attempt_has_its_own_orders(tmp_path: Path, launcher: Launcher):
    first = plan(tmp_path, "echo attempt $PRISM_ATTEMPT; exit 3")
    launcher.start(first)
    wait_over(launcher, first.folder)
    second = plan(tmp_path, "echo attempt $PRISM_ATTEMPT", attempt=2)
    launcher.start(second)
    assert wait_over(launcher, second.folder).code == 0
    assert "attempt 2" in wait_text(launcher, second.folder, "attempt")


def test_an_attempt_that_was_never_started_is_not_running(tmp_path: Path, launcher: Launcher):
    assert not launcher.look(tmp_path / "nothing").running


# -- local only


def test_an_attempt_outlives_the_launcher_that_started_it(tmp_path: Path):
    one = plan(tmp_path, "sleep 1; exit 5")
    LocalLauncher().start(one)
    again = LocalLauncher()
    assert again.look(one.folder).running
    assert wait_over(again, one.folder).code == 5


def test_processes_that_vanish_without_a_word_are_noticed(tmp_path: Path):
    launcher = LocalLauncher()
    one = plan(tmp_path, "sleep 300")
    launcher.start(one)
    launcher.stop(one.folder, 0.0)
    look = launcher.look(one.folder)
    assert not look.running and look.code is None


def test_the_host_that_failed_first_is_named(tmp_path: Path):
    launcher = LocalLauncher()
    one = plan(tmp_path, 'if [ "$PRISM_HOST" = b ]; then exit 9; fi; sleep 1; exit 1', hosts=("a", "b", "c"))
    launcher.start(one)
    look = wait_over(launcher, one.folder)
    assert look.first_failed == "b" and look.code == 9
    launcher.stop(one.folder, 0.0)


def wait_until_marked(folder: Path, start: str, limit_s: float = 600.0) -> None:
    deadline = time.monotonic() + limit_s
    while time.monotonic() < deadline:
        pids = find_marked(str(folder.resolve()))
        if any(Path(f"/proc/{pid}/cmdline").read_text().startswith(start) for pid in pids):
            return
        time.sleep(0.05)
    raise AssertionError(f"no process of {start!r} came up")


def test_starting_the_same_attempt_twice_leaves_one_of_it(tmp_path: Path):
    launcher = LocalLauncher()
    one = plan(tmp_path, "sleep 300")
    launcher.start(one)
    launcher.start(one)
    wait_until_marked(one.folder, "sleep\0")
    commands = [Path(f"/proc/{p}/cmdline").read_text() for p in find_marked(str(one.folder.resolve()))]
    assert len([command for command in commands if command.startswith("sleep\0")]) == 1
    launcher.stop(one.folder, 0.0)


@pytest.mark.parametrize(("hosts", "kept"), [(("a",), True), (("a", "b"), False)])
def test_rendezvous_variables_of_the_user_stay_on_one_host(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, hosts: tuple[str, ...], kept: bool
):
    monkeypatch.setenv("MASTER_ADDR", "node-7")
    monkeypatch.setenv("PET_NODE_RANK", "3")
    launcher = LocalLauncher()
    one = plan(tmp_path, "echo $MASTER_ADDR,$PET_NODE_RANK", hosts=hosts)
    launcher.start(one)
    wait_over(launcher, one.folder)
    assert ((one.folder / "a.log").read_text() == "node-7,3\n") is kept


def test_a_job_whose_run_folder_was_deleted_runs_on_and_its_exit_code_is_known(tmp_path: Path):
    launcher, go = LocalLauncher(), tmp_path / "go"
    one = plan(tmp_path, f"while [ ! -e {go} ]; do sleep 0.1; done; exit 7", hosts=("a",))
    launcher.start(one)
    wait_until_marked(one.folder, "sleep\0")
    shutil.rmtree(one.folder)
    seen = launcher.look(one.folder).running, LocalLauncher().look(one.folder).running
    go.touch()
    assert seen == (True, True)
    assert wait_over(launcher, one.folder).code == 7


def test_a_full_disk_under_the_log_does_not_end_the_command(tmp_path: Path):
    launcher = LocalLauncher()
    one = plan(tmp_path, "for n in 1 2 3 4 5; do echo line $n || exit 9; done; exit 0", hosts=("a",))
    one.folder.mkdir(parents=True)
    (one.folder / "a.log").symlink_to("/dev/full")
    launcher.start(one)
    assert wait_over(launcher, one.folder).code == 0


LOADERS = """
import os, signal, sys, time
workers = []
for _ in range(2):
    pid = os.fork()
    if pid == 0:
        time.sleep(600)
    workers.append(pid)
def leave(number, frame):
    alive = [os.waitpid(pid, os.WNOHANG)[0] == 0 for pid in workers]
    print("saved with", sum(alive), "loaders", flush=True)
    [os.kill(pid, signal.SIGKILL) for pid in workers]
    sys.exit(0)
signal.signal(signal.SIGTERM, leave)
print("up", flush=True)
time.sleep(600)
"""


@pytest.mark.parametrize("rank", ["", "RANK=0"])
def test_a_request_to_end_reaches_the_ranks_alone(tmp_path: Path, rank: str):
    """With a number in the environment as under torchrun, and without, as a plain script."""
    launcher = LocalLauncher()
    script = tmp_path / "train.py"
    script.write_text(LOADERS)
    one = plan(tmp_path, f"{rank} {sys.executable} {script}; exit $?")
    launcher.start(one)
    wait_text(launcher, one.folder, "up")
    launcher.stop(one.folder, 30.0)
    assert "saved with 2 loaders" in wait_text(launcher, one.folder, "saved")


def test_a_second_request_ends_the_wait(tmp_path: Path):
    launcher = LocalLauncher()
    one = plan(tmp_path, "trap '' TERM; echo up; while :; do sleep 0.1; done")
    launcher.start(one)
    wait_text(launcher, one.folder, "up")
    started = time.monotonic()
    launcher.stop(one.folder, 600.0, hurry=lambda: time.monotonic() > started + 0.5)
    assert not launcher.look(one.folder).running


def test_a_command_that_does_not_exist_is_refused_before_anything_starts(tmp_path: Path):
    bad = LaunchPlan(command=("no-such-trainer",), orders=RunOrders(), folder=tmp_path / "x", hosts=(), num_hosts=1)
    with pytest.raises(BadConfigError, match="'no-such-trainer' not found"):
        LocalLauncher().start(bad)
    assert not (tmp_path / "x").exists()


@pytest.mark.slow
def test_a_host_that_ssh_no_longer_reaches_is_lost(tmp_path: Path, ssh_hosts: SshHosts, monkeypatch):
    monkeypatch.setattr("prism.recover.supervise.launchers.ssh._ASK_EVERY_S", 0.5)
    launcher = SshLauncher(ssh_hosts.settings)
    one = plan(tmp_path, "sleep 300", hosts=("h1", "h2"))
    launcher.start(one)
    assert launcher.look(one.folder).running
    ssh_hosts.spaces.cut("h2")
    look = wait_over(launcher, one.folder, 120.0)
    assert look.first_failed == "h2" and look.lost
    LocalLauncher().stop(one.folder, 0.0)


# -- Kubernetes only, on a real API server


def wait_hosts(launcher: Launcher, folder: Path) -> tuple[str, ...]:
    deadline = time.monotonic() + 600
    while not (look := launcher.look(folder)).hosts and time.monotonic() < deadline:
        time.sleep(0.1)
    return look.hosts


@pytest.mark.slow
def test_a_drain_waits_for_the_save_and_asks_the_ranks_alone(
    tmp_path: Path, kube: KubeCluster, kube_launcher: Launcher
):
    script = tmp_path / "train.py"
    script.write_text(LOADERS)
    one = plan(tmp_path, f"RANK=0 {sys.executable} {script}; exit $?")
    kube_launcher.start(one)
    wait_text(kube_launcher, one.folder, "up")
    (node,) = wait_hosts(kube_launcher, one.folder)
    try:
        kube.drain(node)
        look = wait_over(kube_launcher, one.folder)
    finally:
        kube.uncordon(node)
    assert look.code == 143 and look.first_failed == node
    assert "saved with 2 loaders" in wait_text(kube_launcher, one.folder, "saved")


@pytest.mark.slow
def test_an_excluded_node_is_avoided_by_the_scheduler(tmp_path: Path, kube: KubeCluster, kube_launcher: Launcher):
    for attempt, node in enumerate(kube.nodes, 1):
        one = replace(plan(tmp_path, "sleep 300", attempt=attempt), excluded=(node,))
        kube_launcher.start(one)
        (found,) = wait_hosts(kube_launcher, one.folder)
        assert found != node
        kube_launcher.stop(one.folder, 0.0)


@pytest.mark.slow
@pytest.mark.usefixtures("kube_launcher")
def test_a_condemned_node_gets_a_taint_and_a_condition_and_loses_the_taint(tmp_path: Path, kube: KubeCluster):
    launcher, node = on_kubernetes(tmp_path, taint=True), kube.nodes[0]
    launcher.cordon(node, "failed the host test")
    found = kube.api.get(f"/api/v1/nodes/{node}")
    assert [taint["key"] for taint in found["spec"]["taints"]] == ["prism-suspect"]
    suspect = next(c for c in found["status"]["conditions"] if c["type"] == "PrismSuspect")
    assert (suspect["status"], suspect["message"]) == ("True", "failed the host test")
    launcher.uncordon(node)
    assert not kube.api.get(f"/api/v1/nodes/{node}")["spec"].get("taints")


@pytest.mark.slow
@pytest.mark.usefixtures("kube_launcher")
def test_only_the_failed_pod_is_replaced_where_the_user_wants_that(tmp_path: Path, kube: KubeCluster):
    launcher = on_kubernetes(tmp_path, restart="pod")
    one = plan(tmp_path, f"[ -e {tmp_path}/again ] && echo twice && exit 0; touch {tmp_path}/again; echo once; exit 3")
    launcher.start(one)
    assert wait_over(launcher, one.folder).code == 0
    assert len(launcher.logs(one.folder)) == 2


@pytest.mark.slow
@pytest.mark.usefixtures("kube_launcher")
def test_the_shipped_rights_are_enough_and_no_more(tmp_path: Path, kube: KubeCluster, monkeypatch: pytest.MonkeyPatch):
    kube.api.create("/api/v1/namespaces", {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "training"}})
    rbac = Path(__file__).parents[2] / "examples" / "recover" / "kubernetes" / "rbac.yaml"
    for document in yaml.safe_load_all(rbac.read_text()):
        space = document["metadata"].get("namespace")
        group = "/api/v1" if document["kind"] == "ServiceAccount" else "/apis/rbac.authorization.k8s.io/v1"
        kube.api.create(f"{group}{f'/namespaces/{space}' if space else ''}/{document['kind'].lower()}s", document)
    account = "/api/v1/namespaces/training/serviceaccounts/prism-supervise/token"
    request = {"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", "spec": {}}
    token = kube.api.create(account, request)["status"]["token"]
    kube.write_kubeconfig(tmp_path / "kubeconfig", token, "training")
    monkeypatch.setenv("KUBECONFIG", str(tmp_path / "kubeconfig"))
    launcher = on_kubernetes(tmp_path)
    one = plan(tmp_path, "trap 'echo saved; exit 0' TERM; echo up; while :; do sleep 0.1; done")
    launcher.start(one)
    wait_text(launcher, one.folder, "up")
    launcher.stop(one.folder, 20.0)
    assert "saved" in wait_text(launcher, one.folder, "saved")
    with pytest.raises(BadConfigError, match=r"403.*rbac\.yaml"):
        on_kubernetes(tmp_path, namespace="default").start(plan(tmp_path, "true", attempt=2))


def test_slurm_that_is_not_there_is_reported_in_one_line(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("PATH", "/nonexistent")
    with pytest.raises(BadConfigError, match="needs sbatch"):
        SlurmLauncher()


def test_the_fake_keeps_the_contract_too(tmp_path: Path):
    fake = FakeLauncher()
    one = plan(tmp_path, "")
    fake.start(one)
    assert fake.look(one.folder).running
    fake.end(7)
    assert fake.look(one.folder).code == 7
    assert not fake.look(tmp_path / "nothing").running
    fake.start(one)
    fake.stop(one.folder, 0.0)
    assert fake.look(one.folder).code is None

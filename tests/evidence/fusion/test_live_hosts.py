"""A job of several hosts that hangs now, looked at for real: over ssh into hosts of their own, and by Slurm's srun."""

from __future__ import annotations

import json
import os
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from proving.drills.slurm_cluster import SlurmCluster, why_no_slurm
from proving.drills.ssh_hosts import SSHD_CONFIG

pytest.importorskip("torch", reason="needs torch")
pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]
ROOT = Path(__file__).parents[3]
PROGRAM = """
import os, sys, time
from pathlib import Path
import torch, torch.distributed as dist
rank, world = int(os.environ.get("RANK", os.environ.get("SLURM_PROCID", 0))), 4
def load_data(step):
    Path(sys.argv[1], f"rank-{rank}-step-{step}").touch()
    if rank == 2 and step == 3:
        time.sleep(3600)
dist.init_process_group("gloo", init_method=f"file://{sys.argv[1]}/store", rank=rank, world_size=world)
for step in range(1, 100):
    load_data(step)
    dist.all_reduce(torch.ones(8))
"""


def wait_for(what: str, true: Callable[[], bool]) -> None:
    until = time.monotonic() + 600
    while not true():
        assert time.monotonic() < until, f"{what} did not come"
        time.sleep(0.1)


def reached(folder: Path) -> bool:
    return all((folder / f"rank-{rank}-step-3").exists() for rank in range(4))


def ask(*words: str, **environment: str) -> dict[str, Any]:
    command = [sys.executable, "-m", "prism", "investigate", *words, "--json"]
    env = {**os.environ, **environment}
    done = subprocess.run(command, capture_output=True, text=True, env=env, timeout=600)
    assert done.returncode == 0, done.stderr
    document: dict[str, Any] = json.loads(done.stdout)
    return document


def named(document: dict[str, Any]) -> set[tuple[str, str]]:
    return {(c["type"], c["id"]) for c in document["verdict"]["culprits"]}


def why_no_hosts() -> str | None:
    if os.geteuid() != 0 or not Path("/usr/sbin/sshd").exists() or shutil.which("ssh") is None:
        return "needs root, openssh-client and openssh-server"
    words = ["unshare", "--pid", "--fork", "--mount-proc", "--uts", "true"]
    return None if subprocess.run(words, capture_output=True).returncode == 0 else "needs unshare"


@contextmanager
def ssh_hosts(folder: Path) -> Iterator[Path]:
    """h1 and h2: an sshd each, with processes and a name of their own; gives a folder with an `ssh` that knows them."""
    Path("/run/sshd").mkdir(exist_ok=True)
    for name in ("host_key", "user_key"):
        subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(folder / name)], check=True)
    known, running = "", []
    try:
        for host in ("h1", "h2"):
            with socket.create_server(("127.0.0.1", 0)) as free:
                port = free.getsockname()[1]
            (folder / f"{host}.conf").write_text(
                SSHD_CONFIG.format(port=port, folder=folder, host=host) + "ListenAddress 127.0.0.1\n"
            )
            daemon = f"hostname {host} && exec /usr/sbin/sshd -D -e -f {folder}/{host}.conf"
            own = ["unshare", "--pid", "--fork", "--kill-child", "--mount-proc", "--uts", "sh", "-c", daemon]
            running.append(subprocess.Popen(own, stderr=subprocess.DEVNULL))
            known += f"Host {host}\n HostName 127.0.0.1\n Port {port}\n IdentityFile {folder}/user_key\n"
            known += " StrictHostKeyChecking no\n UserKnownHostsFile /dev/null\n LogLevel ERROR\n"
            wait_for("sshd", lambda h=host: (folder / f"{h}.pid").exists())  # type: ignore[misc]
        (folder / "ssh_config").write_text(known)
        (folder / "bin").mkdir()
        (folder / "bin" / "ssh").write_text(f'#!/bin/sh\nexec /usr/bin/ssh -F {folder}/ssh_config "$@"\n')
        (folder / "bin" / "ssh").chmod(0o755)
        yield folder / "bin"
    finally:
        for process in running:
            process.kill()
            process.wait()


@pytest.mark.skipif(why_no_hosts() is not None, reason=str(why_no_hosts()))
def test_hosts_are_asked_over_ssh_and_nothing_is_left_there(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(PROGRAM)
    job = tmp_path / "job"
    job.mkdir()
    with ssh_hosts(tmp_path) as ssh:
        started = []
        for rank in range(4):
            env = f"RANK={rank} MASTER_ADDR=h1 MASTER_PORT=29500 GLOO_SOCKET_IFNAME=lo OMP_NUM_THREADS=1"
            words = f"env {env} {sys.executable} {tmp_path}/train.py {job}"
            started.append(subprocess.Popen([str(ssh / "ssh"), f"h{1 + rank // 2}", words]))
        try:
            wait_for("the hang", lambda: reached(job))
            before = sorted(p.name for p in tmp_path.rglob("*"))
            document = ask("--hosts", "h1,h2", PATH=f"{ssh}:{os.environ['PATH']}")
            left = subprocess.run([str(ssh / "ssh"), "h2", "ps", "-eo", "args"], capture_output=True, text=True).stdout
            alive = [p.poll() for p in started]
        finally:
            for process in started:
                process.kill()
                process.wait()
    assert named(document) >= {("rank", "2"), ("host", "h2")}, document
    assert "h2" in document["evidence"][0]["text"] and "python3 -" not in left
    assert sorted(p.name for p in tmp_path.rglob("*") if p.name != "store") == [n for n in before if n != "store"]
    assert alive == [None] * 4, "the job is not touched"


@pytest.mark.skipif(why_no_slurm() is not None, reason=str(why_no_slurm()))
def test_a_slurm_job_is_asked_on_all_its_nodes(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(PROGRAM)
    job = tmp_path / "job"
    job.mkdir()
    with SlurmCluster(tmp_path / "cluster"):
        script = f"#!/bin/sh\nexport GLOO_SOCKET_IFNAME=lo OMP_NUM_THREADS=1\nsrun {sys.executable} {tmp_path}/train.py {job}\n"
        words = ["sbatch", "--parsable", "--nodes=2", "--ntasks=4", "--ntasks-per-node=2", "--overcommit"]
        done = subprocess.run([*words, f"--output={job}/out.log"], input=script, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
        number = done.stdout.strip()
        try:
            wait_for("the hang", lambda: reached(job))
            document = ask("--job", number)
            steps = subprocess.run(["squeue", "-h", "-s", "-j", number], capture_output=True, text=True).stdout
        finally:
            subprocess.run(["scancel", "--full", number], check=False)
    assert ("rank", "2") in named(document) and any(t == "host" for t, _ in named(document)), document
    assert len([line for line in steps.splitlines() if "python" in line]) == 1, "only the job's own step is left"

"""A real Slurm with accounting, made for the occasion, and what `prism characterize --from sacct` says of its jobs.

    python proving/benchmarks/characterize_slurm.py  # as root; needs slurm-wlm, slurmdbd, munge and mariadb-server

Everything runs on loopback in a temporary folder and is stopped at the end. GPUs and MIG devices exist by name only.
Prints the GPU-seconds of each job by plain arithmetic on `sacct`, and those of the report.
"""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import tempfile
import time
from pathlib import Path

SLURMDBD = """AuthType=auth/munge
AuthInfo=socket={f}/munge.sock
DbdHost=localhost
DbdPort={dbd}
SlurmUser=root
LogFile={f}/slurmdbd.log
PidFile={f}/slurmdbd.pid
StorageType=accounting_storage/mysql
StorageHost=127.0.0.1
StoragePort={sql}
StorageUser=slurm
StoragePass=pw
"""
SLURM = """ClusterName=lab
SlurmctldHost={host}(127.0.0.1)
SlurmctldPort={ctld}
SlurmdPort={slurmd}
SlurmUser=root
SlurmdUser=root
AuthType=auth/munge
AuthInfo=socket={f}/munge.sock
CredType=cred/munge
StateSaveLocation={f}/state
SlurmdSpoolDir={f}/spool
SlurmctldPidFile={f}/slurmctld.pid
SlurmdPidFile={f}/slurmd.pid
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU
GresTypes=gpu
AccountingStorageType=accounting_storage/slurmdbd
AccountingStorageHost=localhost
AccountingStoragePort={dbd}
AccountingStoragePass={f}/munge.sock
AccountingStorageTRES=gres/gpu,gres/gpu:a100,gres/gpu:1g.5gb
JobAcctGatherType=jobacct_gather/none
SlurmdParameters=config_overrides
KillWait=2
NodeName={host} NodeAddr=127.0.0.1 CPUs=32 RealMemory=1000 Gres=gpu:a100:8,gpu:1g.5gb:7
PartitionName=gpu Nodes={host} Default=YES State=UP
"""
GRES = "Name=gpu Type=a100 File={f}/dev/g[0-7]\nName=gpu Type=1g.5gb File={f}/dev/g[8-14]\n"
GRANTS = (
    "create database slurm_acct_db; create user 'slurm'@'127.0.0.1' identified by 'pw'; create user "
    "'slurm'@'localhost' identified by 'pw'; grant all on slurm_acct_db.* to 'slurm'@'127.0.0.1', 'slurm'@'localhost';"
)
JOBS = (
    ("--gres=gpu:a100:4", "sleep 3"),
    ("--gres=gpu:a100:2", "sleep 4; exit 3"),
    ("--gres=gpu:1g.5gb:3", "sleep 5"),
    ("--gres=gpu:a100:2", "sleep 60"),
    ("-c2", "sleep 2"),
)


def main() -> None:
    """Start, run jobs, compare, stop."""
    processes: list[subprocess.Popen[bytes]] = []
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as name:
        folder = Path(name)
        folder.chmod(0o755)
        try:
            start(folder, processes)
            compare(folder)
        finally:
            subprocess.run(["scancel", "--user=root"], check=False)
            time.sleep(3)
            for process in reversed(processes):
                process.terminate()
                process.wait(20)


def start(folder: Path, processes: list[subprocess.Popen[bytes]]) -> None:
    """The five servers, in the order in which they need each other."""
    ports = dict(zip(("dbd", "sql", "ctld", "slurmd"), free_ports(4), strict=True))
    words = {"f": folder, "host": socket.gethostname(), **ports}
    for part in ("mysql", "state", "spool", "dev", "out"):
        (folder / part).mkdir()
    for number in range(15):
        os.mknod(folder / "dev" / f"g{number}", 0o20666, os.makedev(1, 3))
    for file, text in (("slurm.conf", SLURM), ("slurmdbd.conf", SLURMDBD), ("gres.conf", GRES)):
        (folder / file).write_text(text.format(**words))
        (folder / file).chmod(0o600 if file == "slurmdbd.conf" else 0o644)
    (folder / "munge.key").write_bytes(os.urandom(1024))
    (folder / "munge.key").chmod(0o400)
    os.environ["SLURM_CONF"] = str(folder / "slurm.conf")

    def serve(*command: str) -> None:
        log = (folder / f"{Path(command[0]).name}.out").open("wb")
        processes.append(subprocess.Popen(command, stdout=log, stderr=log))

    munge = {
        "socket": "munge.sock",
        "key-file": "munge.key",
        "pid-file": "m.pid",
        "log-file": "m.log",
        "seed-file": "m.seed",
    }
    serve("munged", "--foreground", "--force", *(f"--{option}={folder / file}" for option, file in munge.items()))
    run(
        "mariadb-install-db",
        "--no-defaults",
        f"--datadir={folder}/mysql",
        "--user=root",
        "--auth-root-authentication-method=normal",
    )
    sql = f"{folder}/my.sock"
    serve("mariadbd", "--no-defaults", f"--datadir={folder}/mysql", f"--socket={sql}", f"--port={ports['sql']}",
          "--bind-address=127.0.0.1", "--user=root", f"--pid-file={folder}/my.pid")  # fmt: skip
    wait_for("mariadb", "-uroot", f"-S{sql}", "-e", "select 1")
    run("mariadb", "-uroot", f"-S{sql}", "-e", GRANTS)
    serve("slurmdbd", "-D")
    wait_for("sacctmgr", "-i", "add", "cluster", "lab")
    serve("slurmctld", "-D", "-c")
    wait_for("scontrol", "ping")
    serve("slurmd", "-D", "-c")
    wait_for("bash", "-c", "sinfo -h -o %t | grep -q idle")


def compare(folder: Path) -> None:
    """Jobs that end well, fail, run on and use no GPU; by arithmetic and by the report."""
    for resources, script in JOBS:
        run("sbatch", f"--output={folder}/out/%j", resources, f"--wrap={script}")
    time.sleep(15)
    command = [sys.executable, "-m", "prism", "characterize", "--system", "sacct", "--since", "now-1hours", "--json"]
    report = json.loads(subprocess.run(command, capture_output=True, check=True).stdout)
    listed = run("sacct", "-X", "-n", "-P", "--format=JobID,State,ElapsedRaw").decode().splitlines()
    sizes = [4, 2, 3 / 7, 2, 0]
    total = 0.0
    for line, gpus in zip(listed, sizes, strict=True):
        total += gpus * int(line.split("|")[2])
        print(f"{line}: {gpus:.3f} GPUs, {gpus * int(line.split('|')[2]):.1f} GPU-seconds")
    print(f"plain arithmetic {total:.1f} GPU-seconds; report {3600 * report['gpu_hours']:.1f} (asked a moment earlier)")
    print(f"states by GPU time: {report['states']['by_gpu_time']}")


def run(*command: str) -> bytes:
    """A command that must succeed."""
    return subprocess.run(command, check=True, capture_output=True).stdout


def wait_for(*command: str) -> None:
    """Try a command until it succeeds."""
    for _ in range(60):
        if subprocess.run(command, capture_output=True, check=False).returncode == 0:
            return
        time.sleep(0.5)
    raise SystemExit(f"{' '.join(command)} did not succeed within 30 s")


def free_ports(count: int) -> list[int]:
    """Ports that nobody listens on."""
    sockets = [socket.socket() for _ in range(count)]
    for one in sockets:
        one.bind(("127.0.0.1", 0))
    ports = [int(one.getsockname()[1]) for one in sockets]
    for one in sockets:
        one.close()
    return ports


if __name__ == "__main__":
    main()

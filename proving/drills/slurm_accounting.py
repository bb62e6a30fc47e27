"""slurmdbd on a MariaDB of its own, so that clusters know each other by name (`sbatch -M`). Needs root."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import time
from pathlib import Path
from types import TracebackType

from proving.drills.slurm_cluster import Shared, free_port_run, start_daemon, start_munge, why_no_slurm

_CONFIG = """\
AuthType=auth/munge
AuthInfo=socket={munge}
DbdHost={host}
DbdAddr=127.0.0.1
DbdPort={port}
SlurmUser=root
LogFile={folder}/slurmdbd.log
PidFile={folder}/slurmdbd.pid
StorageType=accounting_storage/mysql
StorageHost=127.0.0.1
StoragePort={storage_port}
StorageUser=slurm
StoragePass=bench
StorageLoc=slurm_acct
"""
# A job's comment is its mark; the accounting keeps it only where it is told to.
_CLUSTER_CONFIG = """\
AccountingStorageType=accounting_storage/slurmdbd
AccountingStorageHost=127.0.0.1
AccountingStoragePort={port}
AccountingStoragePass={munge}
AccountingStoreFlags=job_comment
JobAcctGatherType=jobacct_gather/none
"""
_READY_S = 120.0


def why_no_accounting() -> str | None:
    """Why slurmdbd cannot be started here, or None."""
    path = f"{os.environ.get('PATH', '')}:/usr/sbin:/sbin"
    tools = ("slurmdbd", "sacctmgr", "mariadbd", "mariadb-install-db", "mariadb")
    missing = [tool for tool in tools if shutil.which(tool, path=path) is None]
    return why_no_slurm() or (f"needs Debian's slurmdbd and mariadb-server ({', '.join(missing)})" if missing else None)


class Accounting:
    """munged, mariadbd and slurmdbd in a folder; clusters that share it are registered by name."""

    def __init__(self, folder: Path, clusters: tuple[str, ...]) -> None:
        self.folder, self.clusters = folder, clusters
        self._daemons: list[subprocess.Popen[bytes]] = []

    def __enter__(self) -> Shared:
        self.folder.mkdir(parents=True, exist_ok=True)
        self.folder.chmod(0o755)
        try:
            self._daemons.append(start_munge(self.folder))
            port = free_port_run(2)
            self._start_storage(port + 1)
            config = _CONFIG.format(
                munge=self.folder / "munge.socket",
                host=socket.gethostname(),
                port=port,
                folder=self.folder,
                storage_port=port + 1,
            )
            path = self.folder / "slurmdbd.conf"
            path.write_text(config)
            path.chmod(0o600)
            environment = {**os.environ, "SLURM_CONF": str(self.folder / "slurm.conf")}
            munge = self.folder / "munge.socket"
            shared = Shared(munge=munge, config=_CLUSTER_CONFIG.format(port=port, munge=munge))
            # slurmdbd reads its own file beside slurm.conf, and sacctmgr wants one that names a cluster.
            (self.folder / "slurm.conf").write_text(
                f"ClusterName={self.clusters[0]}\nSlurmctldHost={socket.gethostname()}\nSlurmUser=root\n"
                f"AuthType=auth/munge\nAuthInfo=socket={shared.munge}\n{shared.config}"
                "NodeName=none State=FUTURE\nPartitionName=none Nodes=none\n"
            )
            self._daemons.append(start_daemon(self.folder, "slurmdbd", ["slurmdbd", "-D"], environment))
            for name in self.clusters:
                self._wait(["sacctmgr", "-i", "add", "cluster", name], environment)
        except BaseException:
            self.__exit__(None, None, None)
            raise
        return shared

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        for daemon in reversed(self._daemons):
            daemon.terminate()
            try:
                daemon.wait(15)
            except subprocess.TimeoutExpired:
                daemon.kill()
                daemon.wait()
        self._daemons.clear()

    def _start_storage(self, port: int) -> None:
        data = self.folder / "mariadb"
        plain = ["--no-defaults", "--user=root", f"--datadir={data}"]
        make = ["mariadb-install-db", *plain, "--auth-root-authentication-method=normal", "--skip-test-db"]
        subprocess.run(make, check=True, capture_output=True)
        words = [*plain, f"--socket={self.folder}/mariadb.sock", "--bind-address=127.0.0.1", f"--port={port}"]
        words += [
            f"--pid-file={self.folder}/mariadb.pid",
            "--innodb-buffer-pool-size=64M",
            "--innodb-log-file-size=32M",
        ]
        self._daemons.append(start_daemon(self.folder, "mariadbd", ["mariadbd", *words]))
        sql = "CREATE USER slurm@'127.0.0.1' IDENTIFIED BY 'bench'; CREATE DATABASE slurm_acct; "
        sql += "GRANT ALL ON slurm_acct.* TO slurm@'127.0.0.1';"
        self._wait(["mariadb", "--no-defaults", "-uroot", f"--socket={self.folder}/mariadb.sock", "-e", sql], None)

    def _wait(self, command: list[str], environment: dict[str, str] | None) -> None:
        deadline = time.monotonic() + _READY_S
        while True:
            done = subprocess.run(command, capture_output=True, text=True, env=environment, timeout=60)
            if done.returncode == 0 or "already exists" in done.stdout:
                return
            if time.monotonic() > deadline:
                raise RuntimeError(f"{command[0]}: {done.stderr[-900:]}{done.stdout[-300:]}; see {self.folder}")
            time.sleep(0.5)

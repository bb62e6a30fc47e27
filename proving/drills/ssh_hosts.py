"""Hosts with an sshd each, in network namespaces of this machine, that share its file system. Needs root."""

from __future__ import annotations

import shutil
import subprocess
import time
from contextlib import suppress
from pathlib import Path
from types import TracebackType

from prism.lab.testbed.namespaces import Namespaces, why_no_namespaces
from prism.recover.supervise.config import Addresses, LaunchSettings

_PORT = 2222
SSHD_CONFIG = """\
Port {port}
HostKey {folder}/host_key
AuthorizedKeysFile {folder}/user_key.pub
PidFile {folder}/{host}.pid
PasswordAuthentication no
UsePAM no
StrictModes no
PermitRootLogin prohibit-password
"""


def why_no_ssh_hosts() -> str | None:
    """Why such hosts cannot be made here, or None."""
    missing = [tool for tool in ("ssh", "ssh-keygen") if shutil.which(tool) is None]
    if missing or not Path("/usr/sbin/sshd").exists():
        return "needs openssh-client and openssh-server"
    return why_no_namespaces()


class SshHosts:
    """Hosts h1..hn with an sshd each; a cable can be cut. All is gone at the end."""

    def __init__(self, folder: Path, count: int) -> None:
        self.folder = folder
        self.spaces = Namespaces(count)
        self._servers: list[subprocess.Popen[bytes]] = []

    def __enter__(self) -> SshHosts:
        self.spaces.__enter__()
        try:
            for name in ("host_key", "user_key"):
                words = ["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(self.folder / name)]
                subprocess.run(words, check=True)
            Path("/run/sshd").mkdir(exist_ok=True)  # sshd insists on it
            for host in self.spaces.hosts:
                self._start(host)
        except BaseException:
            self.__exit__(None, None, None)
            raise
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        for server in self._servers:
            server.kill()
            server.wait()
        self.spaces.__exit__(kind, error, at)

    @property
    def settings(self) -> LaunchSettings:
        """How a launcher reaches the hosts: from the first one, as from a login node on the same network."""
        own = [part.format(host=self.spaces.hosts[0]) for part in self.spaces.prefix]
        options = ["BatchMode=yes", "ConnectTimeout=5", "StrictHostKeyChecking=no", "UserKnownHostsFile=/dev/null"]
        flags = [word for option in options for word in ("-o", option)]
        ssh = (*own, "ssh", "-q", "-p", str(_PORT), "-i", str(self.folder / "user_key"), *flags)
        return LaunchSettings(ssh=ssh, addresses=Addresses(named=self.spaces.addresses))

    def _start(self, host: str) -> None:
        config = self.folder / f"{host}.conf"
        config.write_text(SSHD_CONFIG.format(port=_PORT, folder=self.folder, host=host))
        own = [part.format(host=host) for part in self.spaces.prefix]
        words = [*own, "/usr/sbin/sshd", "-D", "-e", "-f", str(config)]
        self._servers.append(subprocess.Popen(words, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL))
        deadline = time.monotonic() + 20.0
        while time.monotonic() < deadline:
            with suppress(OSError):
                if (self.folder / f"{host}.pid").read_text().strip():
                    return
            time.sleep(0.1)
        raise RuntimeError(f"sshd on {host} did not start")

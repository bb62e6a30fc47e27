"""An sshd on loopback that lets in one key, as a cluster's login host does. Needs root."""

from __future__ import annotations

import socket
import subprocess
import time
from pathlib import Path
from types import TracebackType

_CONFIG = """\
ListenAddress 127.0.0.1:{port}
HostKey {folder}/host_key
AuthorizedKeysFile {folder}/user_key.pub
PidFile {folder}/sshd.pid
PasswordAuthentication no
UsePAM no
StrictModes no
PermitRootLogin prohibit-password
MaxStartups 100
"""
_OPTIONS = ("BatchMode=yes", "ConnectTimeout=5", "StrictHostKeyChecking=no", "UserKnownHostsFile=/dev/null")


class SshLogin:
    """Starts sshd; `words` is how it is reached."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._server: subprocess.Popen[bytes] | None = None
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            self.port = int(probe.getsockname()[1])

    def __enter__(self) -> SshLogin:
        self.folder.mkdir(parents=True, exist_ok=True)
        for name in ("host_key", "user_key"):
            key = str(self.folder / name)
            subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", key], check=True)
        Path("/run/sshd").mkdir(exist_ok=True)  # sshd insists on it
        config = self.folder / "sshd.conf"
        config.write_text(_CONFIG.format(port=self.port, folder=self.folder))
        words = ["/usr/sbin/sshd", "-D", "-e", "-f", str(config)]
        self._server = subprocess.Popen(words, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        deadline = time.monotonic() + 30.0
        while not (self.folder / "sshd.pid").exists():
            if time.monotonic() > deadline:
                self.__exit__(None, None, None)
                raise RuntimeError("sshd did not start")
            time.sleep(0.1)
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        if self._server is not None:
            self._server.kill()
            self._server.wait()

    @property
    def words(self) -> list[str]:
        """The command that runs its further words there."""
        flags = [word for option in _OPTIONS for word in ("-o", option)]
        return ["ssh", "-q", "-p", str(self.port), "-i", str(self.folder / "user_key"), *flags, "root@127.0.0.1"]

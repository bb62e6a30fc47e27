"""A minimal container runtime: PID 1 of a PID namespace with its own mounts. Needs root.

    python -S kube_container.py SOURCE TARGET [SOURCE TARGET ...] -- COMMAND...

Ends with the command's exit code, or 128 and the signal that ended it. Standard library only.
"""

from __future__ import annotations

import ctypes
import os
import signal
import sys
from pathlib import Path

_NEW_MOUNTS, _NEW_PIDS = 0x0002_0000, 0x2000_0000
_BIND, _RECURSIVE, _PRIVATE = 0x1000, 0x4000, 1 << 18
_DEATH_SIGNAL = 1


def main() -> int:
    """Run the command."""
    split = sys.argv.index("--")
    mounts, command = sys.argv[1:split], sys.argv[split + 1 :]
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.unshare(_NEW_MOUNTS | _NEW_PIDS) != 0:
        raise OSError(ctypes.get_errno(), "unshare failed")
    child = os.fork()
    if child == 0:
        libc.prctl(_DEATH_SIGNAL, signal.SIGKILL)  # with whoever started us: a node that loses its power
        libc.mount(None, b"/", None, _RECURSIVE | _PRIVATE, None)
        libc.mount(b"proc", b"/proc", b"proc", 0, None)
        for source, target in zip(mounts[::2], mounts[1::2], strict=True):
            Path(target).mkdir(parents=True, exist_ok=True)
            libc.mount(source.encode(), target.encode(), None, _BIND, None)
        os.execvp(command[0], command)
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, signal.SIG_IGN)  # signals are for the command
    _, status = os.waitpid(child, 0)
    return os.WEXITSTATUS(status) if os.WIFEXITED(status) else 128 + os.WTERMSIG(status)


if __name__ == "__main__":
    sys.exit(main())

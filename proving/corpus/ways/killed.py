"""Ranks that end by a signal or by the kernel, and launchers that tell of it."""

from __future__ import annotations

import contextlib
import os
import subprocess
from pathlib import Path

from launch import Program, Ranks, Torchrun
from trainer import trainer
from way import CannotMake, Place, Way

from ways.forked import forked

_MEMORY = Path("/sys/fs/cgroup/memory")
_EATS = "hoard = [bytearray(16 << 20) for _ in range(64)]"
_LIGHT = """\
import os, signal, sys, time

rank = int(os.environ.get("RANK", 0))
for step in range(1, 31):
    print(f"step {step}/40 loss {4 / step:.3f}", flush=True)
if rank == 1 or "RANK" not in os.environ:
    %s
time.sleep(60)
"""
_SHELL = ("bash", "-c", '"$@"; status=$?; echo "train.py ended with status $status"; exit $status', "bash")
_SIGNAL = {"also": ("Unknown", "NodeFailure"), "reason": "RuntimeError", "restarts": None}


def _limited(place: Place, rank: int) -> None:
    group = _MEMORY / f"corpus-{os.getpid()}"
    try:
        group.mkdir()
        (group / "memory.limit_in_bytes").write_text(str(700 << 20 if rank else 4 << 30))
        (group / "cgroup.procs").write_text(str(os.getpid()))
    except OSError as error:
        raise CannotMake("needs root and a memory controller of version 1") from error


class _KernelKills:
    """Two ranks, one in a small memory cgroup; what the kernel wrote about it lies beside their logs."""

    def __init__(self, name: str) -> None:
        self._job = Ranks(program=trainer(name, at=_EATS), prepare=_limited, file="gpu-0{rank}_rank_{rank}.log")

    def __call__(self, place: Place) -> None:
        if not _MEMORY.is_dir() or os.geteuid() != 0:
            raise CannotMake("needs root and a memory controller of version 1")
        before = self._kernel()
        self._job(place)
        old = set(before)
        fresh = [line for line in self._kernel() if line not in old and ("corpus-" in line or "Killed pro" in line)]
        (place.logs / "gpu-01.dmesg").write_text("\n".join(fresh[-4:]) + "\n")
        for group in _MEMORY.glob("corpus-*"):
            with contextlib.suppress(OSError):
                group.rmdir()

    @staticmethod
    def _kernel() -> list[str]:
        return subprocess.run(["dmesg"], capture_output=True, text=True, errors="replace").stdout.splitlines()


WAYS = [
    Way(name="kernel-kills-a-rank", family="killed", reason="OutOfMemoryError", proof=r"out of memory: Killed process",
        rank=1, host="gpu-01", make=_KernelKills("kernel-kills-a-rank")),
    forked("rank-vanishes", {"reason": "NodeFailure", "restarts": True, "proof": r"closed by peer|reset by peer",
                             "host": "node-1"}, family="killed",
           at="os.kill(os.getpid(), signal.SIGKILL)"),
    forked("rank-aborts", {**_SIGNAL, "proof": r"Fatal Python error: Aborted"}, family="killed",
           head="import faulthandler; faulthandler.enable()", at="os.abort()"),
    forked("rank-reads-null", {**_SIGNAL, "proof": r"Fatal Python error: Segmentation fault"}, family="killed",
           head="import ctypes, faulthandler; faulthandler.enable()", at="ctypes.string_at(0)"),
    forked("mapped-file-shrinks", {**_SIGNAL, "also": ("Unknown", "OSError"),
                                   "proof": r"Fatal Python error: Bus error"}, family="killed",
           head="import faulthandler, mmap; faulthandler.enable()",
           at="""
           with open("tokens.bin", "wb+") as shard:
               shard.truncate(1 << 16)
               view = mmap.mmap(shard.fileno(), 0)
               shard.truncate(0)
               view[9000]
           """),
    Way(name="torchrun-signal-9", family="torchrun", reason="NodeFailure", also=("OutOfMemoryError",), restarts=True,
        rank=1, proof=r"SIGKILL", make=Torchrun(text=_LIGHT % "os.kill(os.getpid(), signal.SIGKILL)")),
    Way(name="torchrun-signal-11", family="torchrun", rank=1, proof=r"SIGSEGV", **_SIGNAL,
        make=Torchrun(text=_LIGHT % "os.kill(os.getpid(), signal.SIGSEGV)", options=())),
    Way(name="torchrun-type-error", family="torchrun", reason="TypeError", rank=1, proof=r"TypeError",
        make=Torchrun(text=_LIGHT % "len(5)")),
    Way(name="torchrun-unprefixed-index", family="torchrun", reason="IndexError", rank=1, proof=r"IndexError",
        make=Torchrun(text=_LIGHT % "[0, 1][rank + 1]", options=())),
    Way(name="torchrun-script-missing", family="torchrun", reason="FileNotFoundError", proof=r"can't open file",
        also=("OSError",), make=Torchrun(text="", options=("pretrain_gpt.py",))),
    Way(name="shell-killed", family="killed", reason="OutOfMemoryError", also=("NodeFailure", "Unknown"), restarts=None,
        proof=r"Killed", make=Program(text=_LIGHT % "os.kill(os.getpid(), signal.SIGKILL)", wrap=_SHELL)),
]  # fmt: skip

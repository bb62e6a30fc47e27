"""Files that cannot be found, read or written. What must be mounted is mounted in a namespace of the rank's own."""

from __future__ import annotations

import ctypes
import os
from collections.abc import Callable

from way import CannotMake, Place

from ways.forked import forked

_NEW_MOUNTS, _PRIVATE, _READ_ONLY = 0x00020000, 0x4000 | 1 << 18, 1


def _mount(options: bytes, flags: int = 0) -> Callable[[Place, int], None]:
    def prepare(place: Place, rank: int) -> None:
        if os.geteuid() != 0:
            raise CannotMake("needs root, to mount a small file system")
        libc = ctypes.CDLL(None, use_errno=True)
        target = place.scratch / "checkpoints"
        target.mkdir(exist_ok=True)
        failed = libc.unshare(_NEW_MOUNTS) or libc.mount(b"none", b"/", None, _PRIVATE, None)
        if failed or libc.mount(b"tmpfs", os.fsencode(target), b"tmpfs", flags, options):
            raise CannotMake("cannot mount here")

    return prepare


def _as_nobody(place: Place, rank: int) -> None:
    (place.scratch / "private").mkdir(mode=0o700, exist_ok=True)
    if os.geteuid() != 0:
        raise CannotMake("needs root, to become another user")
    os.setresuid(65534, 65534, 65534)


_OS = {"reason": "OSError"}

WAYS = [
    forked("checkpoint-disk-full",
           {**_OS, "also": ("RuntimeError",), "proof": r"No space left|write failed|unexpected pos"},
           prepare=_mount(b"size=64k"), at='torch.save(torch.zeros(1 << 18), "checkpoints/step-20.pt")'),
    forked("log-disk-full", {**_OS, "proof": r"No space left on device"}, prepare=_mount(b"size=64k"), rank=None,
           at='open("checkpoints/metrics.jsonl", "wb").write(bytes(1 << 20))'),
    forked("no-inodes-left", {**_OS, "proof": r"No space left on device"}, prepare=_mount(b"nr_inodes=4"),
           at="""
           for shard in range(8):
               open(f"checkpoints/shard-{shard}.bin", "wb").close()
           """),
    forked("read-only-mount", {**_OS, "proof": r"Read-only file system"}, prepare=_mount(b"", _READ_ONLY), rank=None,
           at='open("checkpoints/step-20.bin", "wb")'),
    forked("not-allowed-to-write", {"reason": "PermissionError", "proof": r"PermissionError"}, prepare=_as_nobody,
           rank=None, at='open("private/step-20.bin", "wb")'),
    forked("not-allowed-to-list", {"reason": "PermissionError", "proof": r"PermissionError"}, prepare=_as_nobody,
           rank=None, setup='shards = os.listdir("private")'),
    forked("folder-in-place-of-file", {**_OS, "proof": r"IsADirectoryError"},
           at="""
           os.makedirs("latest", exist_ok=True)
           open("latest", "rb").read()
           """),
    forked("too-many-files-open", {**_OS, "proof": r"Too many open files"},
           at="""
           import resource
           resource.setrlimit(resource.RLIMIT_NOFILE, (80, 80))
           shards = [open("/dev/zero", "rb") for _ in range(100)]
           """),
    forked("file-size-limit", {**_OS, "proof": r"File too large"},
           at="""
           import resource
           resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 20, 1 << 20))
           open("step-20.bin", "wb", buffering=0).write(bytes(1 << 21))
           open("step-20.bin", "ab", buffering=0).write(bytes(1 << 21))
           """),
    forked("device-read-error", {**_OS, "restarts": None, "proof": r"Input/output error"},
           at='open("/proc/self/mem", "rb", buffering=0).read(4096)'),
    forked("resume-from-nothing", {"reason": "FileNotFoundError", "proof": r"FileNotFoundError"}, rank=None,
           setup='state = torch.load("/checkpoints/run-17/step-5000.pt")'),
    forked("shard-missing", {"reason": "FileNotFoundError", "proof": r"FileNotFoundError"},
           at="""
           import mmap
           mmap.mmap(os.open("/data/tokens/shard-00031.bin", os.O_RDONLY), 0)
           """),
]  # fmt: skip

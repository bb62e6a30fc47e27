"""Jobs in containers: started by bubblewrap, or with their output as docker, containerd and kubectl keep it."""

from __future__ import annotations

import datetime
import json
import shutil
from collections.abc import Callable

from launch import Program, Ranks
from trainer import trainer
from way import CannotMake, Place, Way

_BOX = ("bwrap", "--ro-bind", "/", "/", "--dev", "/dev", "--proc", "/proc", "--tmpfs", "/tmp")
_STEPS = "for step in range(1, 31):\n    print(f'step {step}/90 loss {5 / step:.3f}', flush=True)\n"


class _Boxed:
    def __init__(self, program: Program) -> None:
        self._program = program

    def __call__(self, place: Place) -> None:
        if shutil.which("bwrap") is None:
            raise CannotMake("needs bubblewrap (Debian: bubblewrap)")
        self._program(place)


class _Framed:
    """A job whose logs are rewritten as a collector would have stored them."""

    def __init__(self, job: Ranks, frame: Callable[[str, str, int], str]) -> None:
        self._job, self._frame = job, frame

    def __call__(self, place: Place) -> None:
        self._job(place)
        for file in sorted(place.logs.iterdir()):
            rank = int(file.stem.rpartition("-")[2])
            stamp = datetime.datetime.now(datetime.UTC)
            lines = file.read_text(errors="replace").splitlines()
            times = [
                (stamp + datetime.timedelta(milliseconds=n)).strftime("%Y-%m-%dT%H:%M:%S.%f000Z")
                for n in range(len(lines))
            ]
            file.write_text("".join(self._frame(t, line, rank) for t, line in zip(times, lines, strict=True)))


def _docker(time: str, line: str, rank: int) -> str:
    return json.dumps({"log": line + "\n", "stream": "stderr", "time": time}) + "\n"


def _cri(time: str, line: str, rank: int) -> str:
    return f"{time} stdout F {line}\n"


def _pod(time: str, line: str, rank: int) -> str:
    return f"[pod/llm-worker-{rank}/trainer] {line}\n"


def _framed(name: str, reason: str, proof: str, at: str, frame: Callable[[str, str, int], str]) -> Way:
    job = Ranks(program=trainer(name, at=at), file="llm-worker-{rank}.log")
    return Way(name=name, family="containers", reason=reason, proof=proof, rank=1 if at else None,
               restarts=False if at else None, make=_Framed(job, frame))  # fmt: skip


WAYS = [
    _framed("docker-key-error", "KeyError", r"KeyError", "{}['pixel_values']", _docker),
    _framed("cri-disk-full", "OSError", r"No space left", "open('/dev/full', 'wb', buffering=0).write(b'x')", _cri),
    _framed("pod-prefix-index-error", "IndexError", r"IndexError", "[1, 2][batch.shape[0]]", _pod),
    _framed("finished-docker", "none", r"training finished", "", _docker),
    Way(name="box-image-read-only", family="containers", reason="OSError", proof=r"Read-only file system",
        make=_Boxed(Program(text=_STEPS + "open('/var/checkpoint.bin', 'wb')\n",
                            wrap=(*_BOX, "--ro-bind", ".", "/tmp", "--chdir", "/tmp")))),
    Way(name="box-without-network", family="containers", reason="ConnectionError", also=("NetworkError", "OSError"),
        proof=r"unreachable|Connection refused", restarts=None,
        make=_Boxed(Program(text=_STEPS + "import socket\nsocket.create_connection(('10.9.8.7', 443), 3)\n",
                            wrap=(*_BOX, "--unshare-net", "--ro-bind", ".", "/tmp", "--chdir", "/tmp")))),
    Way(name="box-command-missing", family="containers", reason="FileNotFoundError", proof=r"execvp",
        also=("OSError",), make=_Boxed(Program(text="", wrap=(*_BOX, "python3.99-nightly")))),
]  # fmt: skip

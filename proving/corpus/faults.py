"""Ways to make a training process really fail, each with what a diagnosis should say about it."""

from __future__ import annotations

import argparse
import ctypes
import os
import resource
import signal
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import torch

MS_REC, MS_PRIVATE, CLONE_NEWNS = 0x4000, 1 << 18, 0x00020000
Act = Callable[[argparse.Namespace], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Fault:
    """How one failure is made, and the truth about it."""

    reason: str
    root: str  # a regular expression of the line that shows the cause; of peers, where the faulty rank says nothing
    before: Act | None = None
    during: Act | None = None
    everywhere: bool = False
    speaks: bool = True  # whether the faulty rank itself prints the root line
    restarts: bool = False  # whether restarting is right


def _kill(args: argparse.Namespace) -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def _hang(args: argparse.Namespace) -> None:
    time.sleep(args.timeout_s * 4)
    os._exit(0)


def _small_shm(args: argparse.Namespace) -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.unshare(CLONE_NEWNS) or libc.mount(b"none", b"/", None, MS_REC | MS_PRIVATE, None):
        raise RuntimeError("this fault needs root: it mounts a small /dev/shm in a namespace of its own")
    libc.mount(b"tmpfs", b"/dev/shm", b"tmpfs", 0, b"size=64k")


class _Samples(torch.utils.data.Dataset[torch.Tensor]):
    def __len__(self) -> int:
        return 64

    def __getitem__(self, index: int) -> torch.Tensor:
        return torch.zeros(1 << 16)


def _load_with_workers(args: argparse.Namespace) -> None:
    for _ in torch.utils.data.DataLoader(_Samples(), batch_size=8, num_workers=2):
        pass


def _kill_loader(args: argparse.Namespace) -> None:
    class Deadly(_Samples):
        def __getitem__(self, index: int) -> torch.Tensor:
            os.kill(os.getpid(), signal.SIGKILL)
            return torch.zeros(1)

    for _ in torch.utils.data.DataLoader(Deadly(), batch_size=8, num_workers=1):
        pass


def _exhaust_memory(args: argparse.Namespace) -> None:
    resource.setrlimit(resource.RLIMIT_AS, (8 << 30, 8 << 30))
    torch.zeros(64 << 30, dtype=torch.uint8)


def _corrupt_checkpoint(args: argparse.Namespace) -> None:
    path = Path(args.scratch) / f"model_rank{os.environ['RANK']}.pt"
    torch.save({"weight": torch.randn(512, 512)}, path)
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])
    torch.load(path)


def _wrong_shape_checkpoint(args: argparse.Namespace) -> None:
    torch.nn.Linear(64, 64).load_state_dict(torch.nn.Linear(32, 32).state_dict())


def _wrong_path(args: argparse.Namespace) -> None:
    Path("/data/not-mounted/shard-00017.bin").read_bytes()


def _wrong_argument(args: argparse.Namespace) -> None:
    parser = argparse.ArgumentParser(prog="train.py")
    parser.add_argument("--lr", type=float)
    parser.parse_args(["--lr", "1e-4", "--use-flash-attn"])


def _permission(args: argparse.Namespace) -> None:
    path = Path(args.scratch) / f"private_rank{os.environ['RANK']}"
    path.write_text("x")
    path.chmod(0)
    if os.geteuid() == 0:
        os.seteuid(65534)
    path.open("w")


def _disk_full(args: argparse.Namespace) -> None:
    with Path("/dev/full").open("wb", buffering=0) as stream:
        stream.write(b"checkpoint")


def _module_missing(args: argparse.Namespace) -> None:
    __import__("flash_attn_not_installed")


def _bad_syntax(args: argparse.Namespace) -> None:
    path = Path(args.scratch) / f"bad_config_rank{os.environ['RANK']}.py"
    path.write_text("model = dict(type='Llama'\nhidden = 4096\n")
    sys.path.insert(0, args.scratch)
    __import__(path.stem)


def _subprocess(args: argparse.Namespace) -> None:
    subprocess.run(["make", "-C", "/nonexistent"], check=True, stdout=subprocess.DEVNULL)


def _service_down(args: argparse.Namespace) -> None:
    urllib.request.urlopen("http://127.0.0.1:9/api/runs", timeout=2)


def _nan(args: argparse.Namespace) -> None:
    loss = float("nan")
    raise RuntimeError(f"Rank {os.environ['RANK']}: loss is {loss} at iteration {args.fault_step}, stopping training")


def _shape(args: argparse.Namespace) -> None:
    torch.nn.Linear(64, 64)(torch.randn(8, 63))


def _key(args: argparse.Namespace) -> None:
    {"input_ids": 1}["labels"]


def _value(args: argparse.Namespace) -> None:
    int("12k")


def _type(args: argparse.Namespace) -> None:
    torch.nn.Linear(4, 4, hidden=3)  # type: ignore[call-arg]


def _index(args: argparse.Namespace) -> None:
    [][3]


def _attribute(args: argparse.Namespace) -> None:
    torch.nn.Linear(4, 4).embed  # noqa: B018


def _name(args: argparse.Namespace) -> None:
    exec("tokenizer.encode('x')", {})


def _zero(args: argparse.Namespace) -> None:
    8 // (int(os.environ["WORLD_SIZE"]) * 0)


def _assertion(args: argparse.Namespace) -> None:
    hidden_size, num_heads = 4096, 30
    assert hidden_size % num_heads == 0, f"hidden size {hidden_size} is not a multiple of {num_heads} heads"


def _never_start(args: argparse.Namespace) -> None:
    time.sleep(args.timeout_s * 3)
    os._exit(0)


def _cut_network(args: argparse.Namespace) -> None:
    """Drop every packet from here on; the launcher runs this job in a network namespace of its own."""
    subprocess.run(["ip", "link", "set", "lo", "down"], check=True)


FAULTS: dict[str, Fault] = {
    "none": Fault(reason="Unknown", root=r"$^"),
    "kill_rank": Fault(reason="NodeFailure", during=_kill, speaks=False, restarts=True,
                       root=r"closed by peer|reset by peer"),
    "hang": Fault(reason="NCCLTimeoutError", during=_hang, speaks=False, restarts=True, root=r"Timed out waiting"),
    "packets_dropped": Fault(reason="NCCLTimeoutError", during=_cut_network, speaks=False, restarts=True,
                             root=r"Timed out waiting"),
    "store_missing": Fault(reason="ConnectionError", before=_never_start, speaks=False,
                           root=r"torch.distributed.Dist(?:Network|Store)Error"),
    "shm_full": Fault(reason="DataloaderKilled", before=_small_shm, during=_load_with_workers, restarts=True,
                      root=r"DataLoader worker|bus error|unable to (?:write|allocate)"),
    "loader_killed": Fault(reason="DataloaderKilled", during=_kill_loader, restarts=True, root=r"DataLoader worker"),
    "memory": Fault(reason="OutOfMemoryError", during=_exhaust_memory, root=r"can't allocate memory|not enough memory"),
    "corrupt_checkpoint": Fault(reason="ModelLoadingError", before=_corrupt_checkpoint, root=r"PytorchStreamReader"),
    "wrong_shape_checkpoint": Fault(reason="ModelLoadingError", before=_wrong_shape_checkpoint, everywhere=True,
                                    root=r"Error\(s\) in loading state_dict"),
    "wrong_path": Fault(reason="FileNotFoundError", during=_wrong_path, root=r"FileNotFoundError"),
    "wrong_argument": Fault(reason="ArgumentError", before=_wrong_argument, everywhere=True,
                             root=r"unrecognized arguments"),
    "permission": Fault(reason="PermissionError", during=_permission, root=r"PermissionError"),
    "disk_full": Fault(reason="OSError", during=_disk_full, root=r"No space left on device"),
    "module_missing": Fault(reason="ImportError", before=_module_missing, everywhere=True, root=r"ModuleNotFoundError"),
    "bad_syntax": Fault(reason="SyntaxError", before=_bad_syntax, everywhere=True, root=r"SyntaxError"),
    "subprocess": Fault(reason="CalledProcessError", during=_subprocess, root=r"CalledProcessError"),
    "service_down": Fault(reason="ConnectionError", during=_service_down, restarts=True, root=r"Connection refused"),
    "nan": Fault(reason="RuntimeError", during=_nan, restarts=True, root=r"loss is nan"),
    "shape": Fault(reason="RuntimeError", during=_shape, root=r"mat1 and mat2"),
    "key": Fault(reason="KeyError", during=_key, root=r"KeyError: 'labels'"),
    "value": Fault(reason="ValueError", during=_value, root=r"ValueError"),
    "type": Fault(reason="TypeError", during=_type, root=r"TypeError"),
    "index": Fault(reason="IndexError", during=_index, root=r"IndexError"),
    "attribute": Fault(reason="AttributeError", during=_attribute, root=r"AttributeError"),
    "name": Fault(reason="NameError", during=_name, root=r"NameError"),
    "zero": Fault(reason="ZeroDivisionError", during=_zero, root=r"ZeroDivisionError"),
    "assertion": Fault(reason="AssertionError", during=_assertion, root=r"AssertionError"),
}  # fmt: skip

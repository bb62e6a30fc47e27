"""What one rank of a case does, in a process of its own: steps, the fault, a dump when asked."""

from __future__ import annotations

import ctypes
import mmap
import os
import signal
import sys
import threading
import time
import traceback
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from proving.benchmarks.hangs.plan import Case, Op

_FOREVER_S = 3600
_POLL_S = 0.02
ASK = 0  # byte of the shared page: dump now
FIRED = 1  # byte: the fault has begun
STEPS = 16  # from this byte on, steps done by each rank


def run_rank(case: Case, rank: int, folder: Path, page: mmap.mmap) -> None:
    """Run until killed; the log has what a trainer would print."""
    _redirect(folder / f"rank_{rank}.log")
    try:
        dist.init_process_group(
            "gloo",
            init_method=f"file://{folder}/store",
            rank=rank,
            world_size=case.world_size,
            timeout=timedelta(seconds=_FOREVER_S),
        )
        groups = _form(case, rank)
        threading.Thread(target=_dump_when_asked, args=(rank, folder, page), daemon=True).start()
        print(f"rank {rank}/{case.world_size} pid {os.getpid()} groups {sorted(groups)}", flush=True)
        _train(case, rank, groups, folder, page)
    except Exception:
        traceback.print_exc()
        sys.stderr.flush()
        dump(rank, folder)
        os._exit(1)


def _redirect(path: Path) -> None:
    handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
    os.dup2(handle, 1)
    os.dup2(handle, 2)


def _form(case: Case, rank: int) -> dict[str, Any]:
    groups: dict[str, Any] = {"world": dist.group.WORLD}
    for name, ranks in case.groups.items():
        if name != "world" and rank in ranks:
            groups[name] = dist.new_group(list(ranks), use_local_synchronization=True, group_desc=name)
    return groups


def _train(case: Case, rank: int, groups: dict[str, Any], folder: Path, page: mmap.mmap) -> None:
    ops = case.list_ops(rank)
    step = 0
    while True:
        time.sleep(case.step_ms / 1000)
        faulty = rank == case.victim and step == case.step
        for at, op in enumerate(_reorder(ops, case) if faulty and case.kind == "deadlock" else ops):
            if faulty and at == case.at:
                page[FIRED] = 1
                op = fail(case, op, folder)
                if op is None:
                    continue
            _communicate(op, groups)
        step += 1
        page[STEPS + rank] = step % 256
        print(f"{time.strftime('%H:%M:%S')} step {step} loss {2.0 / step:.4f}", flush=True)


def _reorder(ops: list[Op], case: Case) -> list[Op]:
    """The operation at the fault and the one after it, the other way round."""
    return [*ops[: case.at], ops[case.at + 1], ops[case.at], *ops[case.at + 2 :]]


def fail(case: Case, op: Op, folder: Path) -> Op | None:
    """Do what goes wrong; returns what the rank then calls, None where it leaves its collective out."""
    if case.kind == "stop":
        os.kill(os.getpid(), signal.SIGSTOP)
    elif case.kind == "die":
        os.kill(os.getpid(), signal.SIGKILL)
    elif case.kind == "sleep":
        time.sleep(_FOREVER_S)
    elif case.kind == "raise":
        raise ValueError(f"batch {case.step} has no labels")
    elif case.kind == "file":
        while not (folder / "shard-ready").exists():
            time.sleep(0.05)
    elif case.kind == "gil":
        ctypes.PyDLL(None).sleep(_FOREVER_S)  # PyDLL keeps the interpreter's lock during the call
    elif case.kind == "skip":
        return None
    elif case.kind == "other":
        return Op(group=op.group, call="all_gather", numel=op.numel)
    elif case.kind == "size":
        return Op(group=op.group, call=op.call, numel=2 * op.numel + 1)
    return op


def _communicate(op: Op, groups: dict[str, Any]) -> None:
    tensor, group = torch.ones(op.numel), groups[op.group]
    if op.call == "all_reduce":
        dist.all_reduce(tensor, group=group)
    elif op.call == "send":
        dist.send(tensor, op.peer, group=group)
    elif op.call == "recv":
        dist.recv(tensor, op.peer, group=group)
    else:
        dist.all_gather([torch.empty(op.numel) for _ in range(dist.get_world_size(group))], tensor, group=group)


def _dump_when_asked(rank: int, folder: Path, page: mmap.mmap) -> None:
    while not page[ASK]:
        time.sleep(_POLL_S)
    dump(rank, folder)


def dump(rank: int, folder: Path) -> None:
    """Write this rank's Flight Recorder, as PyTorch writes it on a timeout."""
    part = folder / f"dump_{rank}.part"
    part.write_bytes(torch._C._distributed_c10d._dump_fr_trace())
    part.replace(folder / f"nccl_trace_rank_{rank}")

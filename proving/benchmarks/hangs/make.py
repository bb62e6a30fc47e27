"""Make real hangs: python -m proving.benchmarks.hangs.make FOLDER [--seeds 0:200] [--stacks].

A case is a gloo job of 2 to 16 ranks on this machine with data, tensor and pipeline groups, in which one rank goes
wrong. Its folder holds what a user has afterwards: nccl_trace_rank_N (PyTorch's Flight Recorder, a tenth of them lost),
rank_N.log, and truth.json. Even seeds are in FOLDER/open, odd ones, to be scored once, in FOLDER/held-back. With
--stacks there is also stacks.txt, as `prism supervise` takes it before it ends an attempt that hangs; nothing else of
Prism is used. torch is imported once; ranks are forked, so that a case takes a few seconds.
"""

from __future__ import annotations

import argparse
import json
import mmap
import os
import shutil
import signal
import time
from pathlib import Path

os.environ.setdefault("TORCH_FR_BUFFER_SIZE", "2000")
os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")

import torch
import torch._inductor  # Stack traces of a dump need it: imported once here, and not by every rank.

from prism.recover.supervise.stacks import take_stacks
from proving.benchmarks.hangs.plan import Case, draw_case
from proving.benchmarks.hangs.rank import ASK, FIRED, STEPS, run_rank

_LIMIT_S = 120.0  # of a case
_SILENT_S = 1.0  # without a step that make a hang, or so many steps:
_SILENT_STEPS = 40
_DUMP_S = 10.0  # that ranks have to write what they can
_POLL_S = 0.02


def make_case(case: Case, folder: Path, *, stacks: bool = False) -> bool:
    """Run one case and write its folder; False where the fault did not come to pass."""
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    page = mmap.mmap(-1, 4096)
    pids = [_fork(case, rank, folder, page) for rank in range(case.world_size)]
    try:
        fired_ns, ended = _wait_for_hang(case, page, pids)
        if stacks:
            alive = {pid: rank for rank, pid in enumerate(pids) if rank not in ended}
            take_stacks(list(alive), folder / "stacks.txt", alive)
        page[ASK] = 1
        _wait_for_dumps(case, folder, pids, ended)
        exits = {rank: _describe_exit(status) for rank, status in ended.items()}
    finally:
        for rank, pid in enumerate(pids):
            if rank not in ended:
                os.kill(pid, signal.SIGKILL)
                os.waitpid(pid, 0)
    for left in (folder / "store", *folder.glob("*.part")):
        left.unlink(missing_ok=True)
    for rank in case.missing:
        (folder / f"nccl_trace_rank_{rank}").unlink(missing_ok=True)
    _write_truth(case, folder, fired_ns, exits, bytes(page[STEPS : STEPS + case.world_size]))
    return fired_ns > 0


def _fork(case: Case, rank: int, folder: Path, page: mmap.mmap) -> int:
    pid = os.fork()
    if pid == 0:
        try:
            run_rank(case, rank, folder, page)
        finally:
            os._exit(1)
    return pid


def _wait_for_hang(case: Case, page: mmap.mmap, pids: list[int]) -> tuple[int, dict[int, int]]:
    """Wait until no rank that lives does a step any more; returns when the fault began and who has ended how."""
    begin = moved = time.monotonic()
    fired_ns, before, ended = 0, b"", dict[int, int]()
    quiet = max(_SILENT_S, _SILENT_STEPS * case.step_ms / 1000)
    while time.monotonic() - begin < _LIMIT_S:
        if page[FIRED] and not fired_ns:
            fired_ns = time.time_ns()
        now = bytes(page[STEPS : STEPS + case.world_size])
        if now != before:
            before, moved = now, time.monotonic()
        _reap(pids, ended)
        if len(ended) == len(pids) or (fired_ns and time.monotonic() - moved > quiet):
            break
        time.sleep(_POLL_S)
    return fired_ns, ended


def _reap(pids: list[int], ended: dict[int, int]) -> None:
    for rank, pid in enumerate(pids):
        if rank not in ended:
            done, status = os.waitpid(pid, os.WNOHANG)
            if done:
                ended[rank] = status


def _wait_for_dumps(case: Case, folder: Path, pids: list[int], ended: dict[int, int]) -> None:
    """Ranks that are stopped, dead or hold the interpreter's lock write none."""
    able = case.world_size - (case.kind in ("stop", "die", "gil"))
    until = time.monotonic() + _DUMP_S
    while time.monotonic() < until and len(list(folder.glob("nccl_trace_rank_*"))) < able:
        _reap(pids, ended)
        if len(ended) == len(pids):
            break
        time.sleep(_POLL_S)


def _describe_exit(status: int) -> str:
    return f"signal {os.WTERMSIG(status)}" if os.WIFSIGNALED(status) else f"exit {os.WEXITSTATUS(status)}"


def _write_truth(case: Case, folder: Path, fired_ns: int, exits: dict[int, str], steps: bytes) -> None:
    op = case.list_ops(case.victim)[case.at]
    truth = {
        "seed": case.seed,
        "kind": case.kind,
        "culprits": [str(case.victim)],
        "step": case.step,
        "operation": {"number": case.at, "call": op.call, "group": op.group, "numel": op.numel, "peer": op.peer},
        "groups": {name: list(ranks) for name, ranks in case.groups.items()},
        "layout": {"dp": case.dp, "tp": case.tp, "pp": case.pp},
        "world_size": case.world_size,
        "fired": fired_ns > 0,
        "since_ns": fired_ns,
        "exits": {str(rank): how for rank, how in sorted(exits.items())},
        "steps_done": list(steps),
        "dumps": sorted(int(p.name.rsplit("_", 1)[1]) for p in folder.glob("nccl_trace_rank_*")),
        "dumps_lost": list(case.missing),
        "torch": torch.__version__,
    }
    (folder / "truth.json").write_text(json.dumps(truth, indent=1) + "\n")


def main() -> None:
    """Make the cases of some seeds."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--seeds", default="0:200", help="first and one past the last")
    parser.add_argument("--stacks", action="store_true", help="also take the stacks of the ranks that live")
    asked = parser.parse_args()
    torch.set_num_threads(1)
    first, last = map(int, asked.seeds.split(":"))
    for seed in range(first, last):
        case = draw_case(seed)
        begin = time.monotonic()
        place = asked.folder / ("held-back" if seed % 2 else "open") / f"case-{seed:03d}"
        if (place / "truth.json").exists():
            continue  # A run that was stopped goes on.
        fired = make_case(case, place.resolve(), stacks=asked.stacks)
        num = len(list(place.glob("nccl_trace_rank_*")))
        print(
            f"{place.name} {case.kind}: {case.world_size} ranks, {num} dumps, {time.monotonic() - begin:.1f} s"
            + ("" if fired else "; THE FAULT DID NOT COME TO PASS"),
            flush=True,
        )


if __name__ == "__main__":
    main()

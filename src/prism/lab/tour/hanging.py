"""A job that hangs, for `prism investigate`: python hanging.py FOLDER. Needs torch; all its processes end with it.

Four gloo ranks train until rank 2 waits for an input file that never appears; the others wait in their next
all-reduce. The folder then contains the files of a real job: rank_N.log, Flight Recorder dumps (dump_N), stacks.txt
as `prism supervise` collects it, and flow records. The records are made from the times of the job's transfers, because
ranks of one machine send nothing over a network: each rank counts as a host, and all hosts answer a monitor.
"""

from __future__ import annotations

import csv
import os
import shutil
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from datetime import timedelta
from pathlib import Path

os.environ["TORCH_FR_BUFFER_SIZE"] = "2000"
os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")

import torch
import torch._inductor  # Stack traces of a dump need it: imported once here, not by every rank.
import torch.distributed as dist

from prism.recover.supervise.stacks import take_stacks

NUM_RANKS, HELD_RANK, HELD_STEP = 4, 2, 30
_NUMEL = (40_000, 25_000)  # gradients, in two buckets
_QUIET_S = 3.0  # without a new line in any log
_LIMIT_S = 60.0
_MONITOR = "10.88.9.9"
_BYTES_PER_NS = 0.05  # of the network in the flow records
_COLUMNS = ("start_ns", "end_ns", "src", "dst", "bytes")


def main() -> None:
    """Cause the hang, collect its evidence, end it."""
    folder = Path(sys.argv[1]).resolve()
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    torch.set_num_threads(1)
    start_ns = time.time_ns()
    pids = {_fork(rank, folder): rank for rank in range(NUM_RANKS)}
    try:
        _wait_for_silence(folder)
        take_stacks(list(pids), folder / "stacks.txt", pids)
        (folder / ".dump").touch()
        _wait_until(lambda: len(list(folder.glob("dump_*"))) == NUM_RANKS)
    finally:
        for pid in pids:
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)
    _write_flows(folder, start_ns, time.time_ns())


def load_batch(rank: int, step: int, folder: Path) -> torch.Tensor:
    """One batch; one shard of the held rank is missing."""
    while rank == HELD_RANK and step == HELD_STEP and not (folder / f"shard-{step:05d}.bin").exists():
        time.sleep(0.05)
    return torch.ones(sum(_NUMEL)) * step


def train(rank: int, folder: Path) -> None:
    """The program of a rank."""
    with (folder / f".sent_{rank}.csv").open("w", newline="") as sent:
        for step in range(1, 1_000):
            batch = load_batch(rank, step, folder)
            time.sleep(0.03)  # forward and backward
            for bucket in torch.split(batch, list(_NUMEL)):
                csv.writer(sent).writerow((time.time_ns(), "begins", bucket.numel()))
                sent.flush()
                dist.all_reduce(bucket)
                csv.writer(sent).writerow((time.time_ns(), "ends", bucket.numel()))
            _say(rank, folder, f"step {step} loss {4.0 / step:.4f}")


def _fork(rank: int, folder: Path) -> int:
    pid = os.fork()
    if pid == 0:
        try:
            store, limit = f"file://{folder}/.store", timedelta(seconds=600)
            dist.init_process_group("gloo", init_method=store, rank=rank, world_size=NUM_RANKS, timeout=limit)
            threading.Thread(target=_dump_when_asked, args=(rank, folder), daemon=True).start()
            train(rank, folder)
        finally:
            os._exit(1)
    return pid


def _say(rank: int, folder: Path, text: str) -> None:
    with (folder / f"rank_{rank}.log").open("a") as log:
        log.write(f"{time.strftime('%Y-%m-%d %H:%M:%S', time.gmtime())} [rank{rank}] {text}\n")


def _dump_when_asked(rank: int, folder: Path) -> None:
    while not (folder / ".dump").exists():
        time.sleep(0.05)
    part = folder / f".part_{rank}"
    part.write_bytes(torch._C._distributed_c10d._dump_fr_trace())  # type: ignore[attr-defined]
    part.replace(folder / f"dump_{rank}")


def _wait_for_silence(folder: Path) -> None:
    begin = time.monotonic()
    while time.monotonic() - begin < _LIMIT_S:
        logs = list(folder.glob("rank_*.log"))
        newest = max((p.stat().st_mtime for p in logs), default=time.time())
        # On a busy machine, logs may be silent before the job hangs.
        at_hang = [p for p in logs if f"step {HELD_STEP - 1} " in p.read_text()]
        if len(at_hang) == NUM_RANKS and time.time() - newest > _QUIET_S:
            return
        time.sleep(0.1)
    raise SystemExit("the job did not come to its hang in a minute; run it again on an idle machine")


def _wait_until(done: Callable[[], bool]) -> None:
    until = time.monotonic() + _LIMIT_S
    while not done() and time.monotonic() < until:
        time.sleep(0.05)


def _write_flows(folder: Path, start_ns: int, end_ns: int) -> None:
    """Flow records and topology, one host per rank, and a monitor that queries each host twice a second."""
    rows: list[tuple[object, ...]] = []
    for rank in range(NUM_RANKS):
        rows += _list_transfers(rank, folder / f".sent_{rank}.csv")
        asks = range(start_ns, end_ns, 500_000_000)
        rows += [(at, at + 200_000, _address(rank), _MONITOR, 900) for at in asks]
    with (folder / "flows.csv").open("w", newline="") as out:
        csv.writer(out).writerows([_COLUMNS, *rows])
    with (folder / "topology.csv").open("w", newline="") as out:
        places = [(_address(rank), f"demo-{rank}", 0, "leaf-0") for rank in range(NUM_RANKS)]
        csv.writer(out).writerows([("address", "host", "rail", "switch"), *places])
    for left in folder.glob(".*"):
        left.unlink()


def _list_transfers(rank: int, path: Path) -> Iterator[tuple[object, ...]]:
    """The bytes that a rank sent to the next one of the ring: all, or one chunk if the all-reduce never ended."""
    ends = _address(rank), _address((rank + 1) % NUM_RANKS)
    with path.open() as sent:
        calls = [(int(at), what, 4 * int(numel) // NUM_RANKS) for at, what, numel in csv.reader(sent)]
    for at, what, chunk in calls:
        if what == "ends":  # each chunk goes around twice, less the rank's own
            num_bytes = 2 * (NUM_RANKS - 1) * chunk
            yield at - round(num_bytes / _BYTES_PER_NS), at, *ends, num_bytes
    if calls and calls[-1][1] == "begins":
        at, _, chunk = calls[-1]
        yield at, at + round(chunk / _BYTES_PER_NS), *ends, chunk


def _address(rank: int) -> str:
    return f"10.88.0.{rank + 1}"


if __name__ == "__main__":
    main()

"""Real NCCL hangs on one GPU, what each of NCCL's and PyTorch's tools says of them, and who Prism names.

    python proving/benchmarks/investigate_nccl.py OUTPUT [--kinds sleep,kernel,...] [--ranks 4] [--timeout 25]

NCCL refuses two ranks on one GPU of one host, so every rank names a host of its own (NCCL_HOSTID) and they talk over
sockets of the loopback interface; where that is refused too, one rank alone is run. Kept in OUTPUT, per kind: the raw
answers of RAS in text and JSON, Flight Recorder dumps by its pipe, by the worker's debug server and by the watchdog's
timeout, NCCL's log, the ranks' logs, and what `prism investigate` says of the running job and of the folder.
"""

from __future__ import annotations

import argparse
import contextlib
import http.client
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from pathlib import Path

KINDS = ("sleep", "kernel", "skip", "size", "die", "other")
STEPS = 8
_SETTLE_S = 6.0
_START_S = 90.0


def run_rank(kind: str, folder: Path, backend: str, timeout_s: float) -> None:
    """One rank: some steps, then the fault of its kind on the last rank but one."""
    import torch
    import torch.distributed as dist

    rank, world = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    device = "cuda" if backend == "nccl" else "cpu"
    limit = timedelta(seconds=timeout_s)
    dist.init_process_group(backend, init_method=f"file://{folder}/store", rank=rank, world_size=world, timeout=limit)
    server = None
    with contextlib.suppress(Exception):  # not in every build
        from torch._C._distributed_c10d import _WorkerServer

        server = _WorkerServer(str(folder / f"control_{rank}.sock"), -1)
    victim = max(world - 2, 0)
    for step in range(1, 1_000):
        tensor, faulty = torch.ones(1 << 16, device=device), rank == victim and step == STEPS
        if faulty and kind == "sleep":
            time.sleep(3600)
        if faulty and kind == "die":
            os.kill(os.getpid(), signal.SIGKILL)
        if faulty and kind == "kernel" and device == "cuda":
            torch.cuda._sleep(1 << 45)  # hours of clock cycles
        if faulty and kind == "size":
            tensor = torch.ones(1 << 15, device=device)
        if faulty and kind == "other":
            dist.broadcast(tensor, 0)
        elif not (faulty and kind == "skip"):
            dist.all_reduce(tensor)
        dist.all_reduce(torch.ones(4, device=device))
        print(f"step {step} sum {float(tensor[0]):.0f}", flush=True)
    del server


def make_hang(kind: str, folder: Path, given: argparse.Namespace, ranks: int, port: int) -> dict[str, object]:
    """Run one kind, look at it while it hangs, wait for the watchdog, and ask Prism about what is left."""
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    running = [_start(kind, folder, given, rank, ranks, port) for rank in range(ranks)]
    told: dict[str, object] = {"kind": kind, "ranks": ranks, "truth": max(ranks - 2, 0)}
    try:
        told["reached"] = _wait_for_hang(folder, running, ranks)
        if not told["reached"]:
            return told
        told["ras"] = _ask_ras(folder, port)
        live = [sys.executable, "-m", "prism", "investigate", "--json"]
        for process in running:
            live += ["--pid", str(process.pid)] if process.poll() is None else []
        told["live"] = _prism(live, folder / "live.json")
        told["pipe"] = _ask_pipes(folder, ranks)
        told["debug_server"] = [_ask_worker(folder, rank) for rank in range(ranks)]
        until = time.monotonic() + given.timeout + 20  # the watchdog dumps and ends the ranks
        while any(p.poll() is None for p in running) and time.monotonic() < until:
            time.sleep(0.5)
        told["exit_codes"] = [p.poll() for p in running]
    finally:
        for process in running:
            with contextlib.suppress(ProcessLookupError):
                process.kill()
            process.wait()
        for left in (*folder.glob("*.sock"), *folder.glob("*.pipe"), folder / "store"):
            left.unlink(missing_ok=True)
    told["dumps_after_timeout"] = sorted(p.name for p in (folder / "job").glob("dump_*"))
    ask = [sys.executable, "-m", "prism", "investigate", str(folder / "job"), "--json"]
    told["folder"] = _prism(ask, folder / "folder.json")
    return told


def _start(
    kind: str, folder: Path, given: argparse.Namespace, rank: int, ranks: int, port: int
) -> subprocess.Popen[bytes]:
    job = folder / "job"
    job.mkdir(exist_ok=True)
    env = os.environ | {
        "RANK": str(rank), "WORLD_SIZE": str(ranks), "LOCAL_RANK": "0", "NCCL_HOSTID": f"host-{rank}",
        "MASTER_ADDR": "localhost", "MASTER_PORT": str(port),
        # Naming the frames of stacks takes longer than the watchdog waits for a dump.
        "TORCH_INCLUDE_STACK_TRACE": "0",
        "NCCL_RAS_ADDR": f"localhost:{port + rank}", "NCCL_SOCKET_IFNAME": "lo", "GLOO_SOCKET_IFNAME": "lo",
        "NCCL_NET": "Socket", "NCCL_P2P_DISABLE": "1", "NCCL_SHM_DISABLE": "1", "NCCL_DEBUG": "INFO",
        "NCCL_DEBUG_FILE": str(job / f"nccl_{rank}.log"), "TORCH_FR_BUFFER_SIZE": "2000",
        "TORCH_NCCL_DUMP_ON_TIMEOUT": "1", "TORCH_FR_DUMP_TEMP_FILE": str(job / "dump_"),
        "TORCH_NCCL_DEBUG_INFO_PIPE_FILE": str(folder / "pipe_"), "TORCH_NCCL_HEARTBEAT_TIMEOUT_SEC": "30",
    }  # fmt: skip
    words = [sys.executable, __file__, str(folder), "--rank-of", kind, "--backend", given.backend]
    with (job / f"rank_{rank}.log").open("wb") as log:
        return subprocess.Popen([*words, "--timeout", str(given.timeout)], env=env, stdout=log, stderr=log)


def _wait_for_hang(folder: Path, running: list[subprocess.Popen[bytes]], ranks: int) -> bool:
    begin = time.monotonic()
    while time.monotonic() - begin < _START_S:
        steps = [p.read_text(errors="replace").count("\nstep ") for p in (folder / "job").glob("rank_*.log")]
        if len(steps) == ranks and min(steps) >= STEPS - 3:
            time.sleep(_SETTLE_S)
            return True
        if all(p.poll() is not None for p in running):
            return False
        time.sleep(0.2)
    return False


def _ask_ras(folder: Path, port: int) -> dict[str, object]:
    """RAS's own words in both forms, kept as they are, and what our client makes of them."""
    from prism.errors import BadFileError
    from prism.evidence.fusion.collector import ask_ras
    from prism.evidence.traces.ras import find_laggards, parse_ras

    told: dict[str, object] = {}
    for name, lines in {"text": (), "json": ("SET FORMAT json",)}.items():
        try:
            with socket.create_connection(("localhost", port), timeout=15) as link, link.makefile("rwb") as both:
                said = b""
                for line in ("CLIENT PROTOCOL 2", *lines):
                    both.write(line.encode() + b"\n")
                    both.flush()
                    said += both.readline()
                both.write(b"VERBOSE STATUS\n")
                both.flush()
                answer = both.read()
            (folder / f"ras_{name}.hello").write_bytes(said)
            (folder / f"ras_{name}.txt").write_bytes(answer)
            told[name] = len(answer)
        except OSError as error:
            told[name] = str(error)
    try:
        found = parse_ras(ask_ras(port), f"port {port}")
        told["communicators"] = [[c.name, c.size, [[m.rank, m.launched, m.answers] for m in c.members]] for c in found]
        told["laggards"] = [[m.rank for m in x.members] for x in find_laggards(found)]
    except BadFileError as error:
        told["error"] = str(error)
    return told


def _ask_worker(folder: Path, rank: int) -> object:
    """Flight Recorder in JSON by the rank's own debug server, on its socket."""
    path = folder / f"control_{rank}.sock"
    if not path.exists():
        return "no debug server"
    told: dict[str, object] = {}
    for name in ("dump_nccl_trace_json", "fr_trace_json", "dump_nccl_trace_pickle"):
        link = http.client.HTTPConnection("localhost", timeout=15)
        link.sock = socket.socket(socket.AF_UNIX)
        link.sock.settimeout(15)
        try:
            link.sock.connect(str(path))
            link.request("POST", f"/handler/{name}")
            answer = link.getresponse()
            data = answer.read()
            (folder / f"server_{name}_{rank}").write_bytes(data)
            told[name] = [answer.status, len(data)]
        except (OSError, http.client.HTTPException) as error:
            told[name] = str(error)
        finally:
            link.close()
    return told


def _ask_pipes(folder: Path, ranks: int) -> list[int]:
    """Dumps by the pipe, kept aside; whose came."""
    for rank in range(ranks):
        with contextlib.suppress(OSError):
            handle = os.open(folder / f"pipe_{rank}.pipe", os.O_WRONLY | os.O_NONBLOCK)
            os.write(handle, b"1\n")
            os.close(handle)
    time.sleep(4)
    aside = folder / "by_pipe"
    aside.mkdir()
    for path in (folder / "job").glob("dump_*"):
        path.rename(aside / path.name)
    return sorted(int(p.name.rpartition("_")[2]) for p in aside.iterdir())


def _prism(command: list[str], keep: Path) -> object:
    done = subprocess.run(command, capture_output=True, text=True, timeout=240, check=False)
    keep.write_text(done.stdout + done.stderr)
    try:
        verdict = json.loads(done.stdout)["verdict"]
    except (ValueError, KeyError):
        return (done.stderr.strip().splitlines() or ["no words"])[-1]
    return {"what": verdict["what"], "who": [c["id"] for c in verdict["culprits"] if c["type"] == "rank"]}


def main() -> None:
    """Make the hangs one after the other and print a line of JSON for each."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("output", type=Path)
    parser.add_argument("--kinds", default=",".join(KINDS))
    parser.add_argument("--ranks", type=int, default=4)
    parser.add_argument("--timeout", type=float, default=25.0, help="of collectives, seconds")
    parser.add_argument("--jobs", type=int, default=3, help="kinds at a time")
    parser.add_argument("--backend", default="nccl", help="gloo to try the script without a GPU")
    parser.add_argument("--rank-of", help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.rank_of:
        run_rank(given.rank_of, given.output.resolve(), given.backend, given.timeout)
        return
    kinds = given.kinds.split(",")
    with ThreadPoolExecutor(given.jobs) as pool:
        list(pool.map(lambda numbered: _try_kind(*numbered, given), enumerate(kinds)))


def _try_kind(number: int, kind: str, given: argparse.Namespace) -> None:
    port = 28028 + 40 * number  # the first kind uses RAS's usual port
    for ranks in dict.fromkeys((given.ranks, 1)):  # one alone where NCCL refuses several ranks on one GPU
        told = make_hang(kind, given.output.resolve() / f"{kind}-{ranks}", given, ranks, port)
        print(json.dumps(told), flush=True)
        if told["reached"]:
            return
        port += 20


if __name__ == "__main__":
    main()

"""Accuracy, compression and speed of `prism explain`, beside other ways to answer.

python proving/benchmarks/explain.py snippets FILE.jsonl ...     labelled snippets (fields snippet, label, source_url)
python proving/benchmarks/explain.py corpus DIR                  what proving/make_rank_corpus.py wrote
python proving/benchmarks/explain.py speed [--megabytes 400]     file to verdict, on generated logs
python proving/benchmarks/explain.py many [--logs 64 --megabytes 100]
python proving/benchmarks/explain.py ranks [--logs 1024 --megabytes 85]   many small logs, 85 MB in all
"""

from __future__ import annotations

import argparse
import hashlib
import importlib.util
import json
import os
import platform
import random
import re
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import polars as pl

import explain_answers as answers
from explain_scoreboard import Outcome, Scoreboard, restarts_by_default, score
from prism.evidence.logs import diagnose, read_job, read_text
from prism.evidence.logs.routine import template_of


def used_for_rules(url: str) -> bool:
    """The half of the examples that was read while rules were written; the other half was only scored."""
    return int(hashlib.sha256(url.encode()).hexdigest(), 16) % 2 == 0


# Of the other half, threads that whoever wrote rules has read elsewhere (hashes of their addresses).
READ_ELSEWHERE = frozenset(
    {
        "54d3a65b57",
        "7503921c8e",
        "929f651edf",
        "a337c297fa",
        "aa74425c3e",
        "b92e1c0634",
        "d0cc46a595",
        "d34b9231c4",
        "db8dc1a5c7",
        "de0ae2db86",
    }
)


def was_read(url: str) -> bool:
    """Whether a rule's author had read this thread, whatever its half."""
    return used_for_rules(url) or hashlib.sha256(url.encode()).hexdigest()[:10] in READ_ELSEWHERE


def machine() -> str:
    """The machine in words."""
    return f"{os.cpu_count()} cores, {platform.machine()}, Python {platform.python_version()}"


def show_score(name: str, board: Scoreboard) -> None:
    print(
        f"  {name:<28} reason {board.reason_macro:6.1%} macro {board.reason_micro:6.1%} micro | "
        f"category {board.category:6.1%} | action {board.action:6.1%} | "
        f"false stop {board.false_stop:5.1%} | false restart {board.false_restart:5.1%}"
    )


def bench_snippets(files: list[Path], show_confusion: bool) -> None:
    """Score every way to answer on the same snippets."""
    rows = [json.loads(line) for file in files for line in file.read_text().splitlines() if line.strip()]
    halves = {
        "used while writing rules": [r for r in rows if used_for_rules(r["source_url"])],
        "never read by an author of rules": [r for r in rows if not was_read(r["source_url"])],
        "held out, but its thread was read elsewhere": [
            r for r in rows if was_read(r["source_url"]) and not used_for_rules(r["source_url"])
        ],
        "all": rows,
    }
    ways: dict[str, answers.Answer | None] = {
        "Prism": answers.prism_rules,
        "last exception named": answers.last_exception,
        "first exception named": answers.first_exception,
        "Drain3 + the same rules": answers.drain_and_rules if importlib.util.find_spec("drain3") else None,
        "logsage's word lists": answers.logsage_words(),
    }
    for half, chosen in halves.items():
        print(f"{half}: {len(chosen)} snippets")
        for name, answer in ways.items():
            if answer is None:
                print(f"  {name:<28} not installed")
                continue
            outcomes = []
            for row in chosen:
                reason, action = answer(row["snippet"])
                outcomes.append(Outcome(truth=row["label"], reason=reason, action=action,
                                        should_restart=restarts_by_default(row["label"])))  # fmt: skip
            board = score(outcomes)
            show_score(name, board)
            if name == "Prism" and show_confusion:
                with pl.Config(tbl_rows=60, tbl_hide_dataframe_shape=True):
                    print(board.classes, board.confusion)
    timed = [r["snippet"] for r in rows]
    started = time.perf_counter()
    for text in timed:
        diagnose(read_text(text))
    print(f"  {1000 * (time.perf_counter() - started) / max(1, len(timed)):.2f} ms per snippet, warm")


def bench_corpus(folder: Path) -> None:
    """Faulty rank or host, lines dropped, evidence kept, on full multi-rank logs."""
    outcomes, located, named, dropped, kept_roots = [], 0, 0, [], 0
    jobs = sorted(p.parent for p in folder.glob("*/truth.json"))
    for job in jobs:
        truth = json.loads((job / "truth.json").read_text())
        diagnosis = diagnose(read_job(str(job / "logs")))
        verdict = diagnosis.verdict
        outcomes.append(
            Outcome(
                truth=truth["reason"], reason=verdict.reason, action=verdict.action, should_restart=truth["restarts"]
            )
        )
        where_ok: bool | None = None
        if truth["faulty_rank"] is not None:
            named += 1
            where_ok = verdict.first_rank == truth["faulty_rank"] or truth["faulty_host"] in verdict.hosts
            located += where_ok
        share = 1 - verdict.lines_kept / max(1, verdict.lines_read)
        dropped.append(share)
        lost = lost_roots(job / "logs", truth["root"], {template_of(ln.text) for ln in diagnosis.kept})
        kept_roots += not lost
        ok = "ok " if verdict.reason == truth["reason"] else "BAD"
        print(
            f"  {ok} {truth['job']:<28} {verdict.reason:<20} {verdict.action:<20} rank {verdict.first_rank} "
            f"{'' if where_ok is None else 'right' if where_ok else 'WRONG, is ' + str(truth['faulty_rank'])} "
            f"dropped {share:.2%} of {verdict.lines_read}{' LOST ' + lost if lost else ''}"
        )
    show_score("corpus", score(outcomes))
    print(f"  faulty rank or host right: {located}/{named} = {located / max(1, named):.1%}")
    total = sum(dropped) / max(1, len(dropped))
    print(
        f"  lines dropped: {total:.2%} mean, {min(dropped, default=0):.2%} least; "
        f"root lines kept in {kept_roots}/{len(jobs)}"
    )


def lost_roots(logs: Path, root: str, kept: set[str]) -> str:
    """A root-cause line whose kind is not among the kept ones, or nothing."""
    from prism.evidence.logs.origins import parse_line

    pattern = re.compile(root)
    for file in logs.iterdir():
        for line in file.read_text(errors="replace").splitlines():
            text = parse_line(line).text
            if (
                pattern.search(text)
                and not text.lstrip().startswith(("raise", "File"))
                and template_of(text) not in kept
            ):
                return text[:80]
    return ""


def write_log(path: Path, megabytes: float, seed: int = 0) -> None:
    """A training log of the given size: progress, timers, warnings, and at its end one failed rank."""
    rng = random.Random(seed)
    block = []
    for i in range(20_000):
        rank = i % 8
        block.append(
            f"[default{rank}]: iteration {i}/ 500000 | consumed samples: {i * 512} | elapsed time per "
            f"iteration (ms): {rng.random() * 1000:.1f} | learning rate: 1.0E-04 | lm loss: "
            f"{rng.random() * 3:.6E} | grad norm: {rng.random():.3f} | skipped: 0 |"
        )
        if i % 50 == 0:
            block.append(
                f"[default{rank}]:node-1:77:99 [{rank}] NCCL INFO Channel {i % 16} : {rank}[0] -> 1[1] via P2P/IPC"
            )
        if i % 997 == 0:
            block.append(f"[default{rank}]:WARNING: failed to send metrics {i}, will retry")
    data = ("\n".join(block) + "\n").encode()
    tail = b"[default3]:NVRM: Xid (PCI:0000:3b:00): 79, pid=2201, GPU has fallen off the bus.\n" + b"".join(
        f"[default{r}]:[E ProcessGroupNCCL.cpp:475] [Rank {r}] Watchdog caught collective operation timeout: "
        f"WorkNCCL(SeqNum=881, OpType=ALLREDUCE, Timeout(ms)=600000)\n".encode()
        for r in range(8)
        if r != 3
    )
    with path.open("wb") as out:
        while out.tell() < megabytes * 1e6:
            out.write(data)
        out.write(tail)


def bench_speed(megabytes: float) -> None:
    """File to verdict, three times, in this process; the file's pages are warm after it was written."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "train.log"
        write_log(path, megabytes)
        size = path.stat().st_size / 1e6
        read_job(str(path))  # compiles the scanner, or loads it from its cache
        for _ in range(3):
            started, busy = time.perf_counter(), time.process_time()
            verdict = diagnose(read_job(str(path))).verdict
            seconds, cpu = time.perf_counter() - started, time.process_time() - busy
            print(
                f"  prism: {size:.0f} MB in {seconds:.2f} s = {size / seconds:.0f} MB/s ({cpu:.2f} CPU-seconds: "
                f"{2 * size / cpu:.0f} MB/s on two free cores; load {os.getloadavg()[0]:.1f}) "
                f"-> {verdict.reason}"
            )
        started = time.perf_counter()
        subprocess.run(["grep", "-ciE", "error|exception|fail|xid", str(path)], check=False, stdout=subprocess.PIPE)
        peer = time.perf_counter() - started
        print(f"  grep -ciE 'error|exception|fail|xid': {size / peer:.0f} MB/s; prism/grep {peer / seconds:.2f}x")
        text = "\n".join(path.read_bytes()[-40_000:].decode().splitlines()[-100:])
    diagnose(read_text(text))
    started, busy = time.perf_counter(), time.process_time()
    for _ in range(20):
        diagnose(read_text(text))
    wall_ms, cpu_ms = 50 * (time.perf_counter() - started), 50 * (time.process_time() - busy)
    print(f"  100-line snippet: {wall_ms:.1f} ms ({cpu_ms:.1f} ms CPU)")


def bench_many(num_logs: int, megabytes: float) -> None:
    """Many large logs as one job, in a process of its own so that its peak memory is its own."""
    with tempfile.TemporaryDirectory() as folder:
        first = Path(folder) / "rank_0.log"
        write_log(first, megabytes)
        for rank in range(1, num_logs):
            os.link(first, Path(folder) / f"rank_{rank}.log")
        code = (
            "import sys,time,resource; from prism.evidence.logs import diagnose, read_job; t=time.perf_counter(); "
            "v=diagnose(read_job(sys.argv[1])).verdict; "
            "print(v.reason, round(time.perf_counter()-t,1), round(time.process_time(),1), "
            "resource.getrusage(resource.RUSAGE_SELF).ru_maxrss//1024)"
        )
        done = subprocess.run([sys.executable, "-c", code, folder], capture_output=True, text=True, check=True)
    reason, seconds, cpu, peak = done.stdout.split()
    print(f"  {num_logs} logs of {megabytes:.0f} MB: {seconds} s ({cpu} CPU-seconds), peak {peak} MB -> {reason}")


def _steps(rank: int, num_bytes: int) -> list[str]:
    line = "[2024-05-01 10:00:00,000] iteration {i}/ 500000 | lm loss: {loss:.6E} | grad norm: 1.200 | rank {rank}"
    count = num_bytes // len(line)
    return [line.format(i=i, loss=2 + 1 / (1 + i), rank=rank) for i in range(count)]


def bench_ranks(num_logs: int, megabytes: float) -> None:
    """One job of many ranks, a log each; one rank raises, the others time out. Read twice, the second time warm."""
    with tempfile.TemporaryDirectory() as folder:
        for rank in range(num_logs):
            timed_out = f"[rank{rank}]:[E ProcessGroupNCCL.cpp:475] Watchdog caught collective operation timeout"
            end = "KeyError: 'labels'" if rank == num_logs // 2 else timed_out
            lines = [*_steps(rank, int(megabytes * 1e6 / num_logs)), end]
            (Path(folder) / f"node-{rank // 8}_rank_{rank}.log").write_text("\n".join(lines) + "\n")
        for _ in range(2):
            started, busy = time.perf_counter(), time.process_time()
            verdict = diagnose(read_job(folder)).verdict
            seconds, cpu = time.perf_counter() - started, time.process_time() - busy
            print(f"  {num_logs} logs, {megabytes:.0f} MB: {seconds:.1f} s, {cpu:.1f} CPU-seconds")
            print(f"    -> {verdict.reason}, rank {verdict.first_rank}")


def main() -> None:
    """Run one part."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("part", choices=("snippets", "corpus", "speed", "many", "ranks"))
    parser.add_argument("paths", nargs="*", type=Path)
    parser.add_argument("--megabytes", type=float)
    parser.add_argument("--logs", type=int)
    parser.add_argument("--confusion", action="store_true")
    args = parser.parse_args()
    print(f"{args.part}: {machine()}")
    if args.part == "snippets":
        bench_snippets(args.paths, args.confusion)
    elif args.part == "corpus":
        bench_corpus(args.paths[0])
    elif args.part == "speed":
        bench_speed(args.megabytes or 400)
    elif args.part == "many":
        bench_many(args.logs or 64, args.megabytes or 100)
    else:
        bench_ranks(args.logs or 1024, args.megabytes or 85)
    print(f"  peak memory of this process: {resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024:.0f} MB")


if __name__ == "__main__":
    main()

"""Parquet to findings: flows per second, processor seconds and memory over sizes; and a stream, watched for minutes.

    python proving/benchmarks/observe_speed.py                          the curve up to 20 million flows, a 10,000-GPU
    minute
    python proving/benchmarks/observe_speed.py --most 2                 up to 2 million flows
    python proving/benchmarks/observe_speed.py --most 0 --stream-s 600  `prism watch` fed IPFIX at 200,000 flows/s

A cluster of twelve tenants on 1,024 GPUs is simulated once and laid side by side under other addresses. Every size is
diagnosed in a process of its own, after three small diagnoses that compile what has to be compiled; LLMPrism's
published method (--method paper) runs beside it on the smaller sizes. Times are of the whole way that `prism diagnose`
goes: reading the files, jobs, layouts, steps, findings.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from multiprocessing import get_context
from pathlib import Path
from typing import Any

from machine import describe_machine, peak_rss_bytes

SECONDS = 44.0  # of a tile: two million flows
SIZES = ((0.5, 1, 11.0), (1, 1, 22.0), (2, 1, 44.0), (4, 2, 44.0), (10, 5, 44.0), (20, 10, 44.0))
"""Million flows (about), tiles of 1,024 GPUs, seconds of each."""
STAGES = (
    "prepare_traffic", "recognise_jobs", "find_message_streams", "label_pairs", "cut_steps", "find_stages",
    "relabel_ties",
    "infer_layout", "choose_kind", "find_routes", "open_case", "find_all",
)  # fmt: skip
WANTED_PER_S, WANTED_S, WANTED_GB = 1e6, 30.0, 8.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """What one diagnosis took."""

    flows: int
    jobs: int
    findings: int
    wall_s: float
    cpu_s: float
    peak_gb: float
    stages: dict[str, float]  # processor seconds of the threads that run them, without those of Polars


def make_tiles(folder: Path) -> None:
    """One simulated cluster, written once."""
    from prism.lab.scenarios import load_scenario, make_scenario

    made = make_scenario(replace(load_scenario("twelve-tenants-1024"), duration_s=SECONDS), 0)
    made.flows.write_parquet(folder / "tile.parquet")
    made.topology.write_parquet(folder / "topology.parquet")


def lay_tiles(folder: Path, tiles: int, seconds: float) -> Path:
    """A folder of flow files and a topology: the cluster several times over, each under addresses of its own."""
    import polars as pl

    target = folder / f"{tiles}x{seconds:g}"
    (target / "flows").mkdir(parents=True)
    flows = pl.read_parquet(folder / "tile.parquet")
    begin = int(flows["start_ns"].min())  # type: ignore[arg-type]
    flows = flows.filter(pl.col("start_ns") < begin + seconds * 1e9)
    topology = pl.read_parquet(folder / "topology.parquet")
    places = []
    for tile in range(tiles):
        moved = [pl.col(c).str.replace(r"^10\.", f"{10 + tile}.").alias(c) for c in ("src", "dst")]
        # No two clusters keep time with each other.
        shifted = [pl.col(c) + tile * 37_000_003 for c in ("start_ns", "end_ns")]
        flows.with_columns(*moved, *shifted).write_parquet(target / "flows" / f"{tile}.parquet")
        places.append(
            topology.with_columns(
                pl.col("address").str.replace(r"^10\.", f"{10 + tile}."),
                *((pl.lit(f"t{tile}-") + pl.col(c)).alias(c) for c in ("host", "switch")),
            )
        )
    pl.concat(places).write_csv(target / "topology.csv")
    return target


def measure(target: Path, method: str) -> Run:
    """Diagnose a folder in a process of its own."""
    command = [sys.executable, __file__, "--child", str(target), "--method", method]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(f"{method} on {target.name} ended with {done.returncode}:\n{done.stderr[-2000:]}")
    return Run(**json.loads(done.stdout.splitlines()[-1]))


def run_child(target: Path, method: str) -> None:
    """The measured process: warm up, then read and diagnose with every stage timed."""
    from prism.collect.tables import load_flows
    from prism.lab.scenarios import load_scenario, make_scenario
    from prism.observe.llmprism import diagnose_as_published
    from prism.records import TOPOLOGY, read_table

    module = sys.modules["prism.observe.diagnose"]
    run = diagnose_as_published if method == "paper" else module.diagnose
    for name in ("dense-dp-16", "two-tenants-128", "moe-64"):
        small = make_scenario(load_scenario(name), 0)
        run(small.flows, small.topology)
    stages: dict[str, float] = {}
    for name in STAGES:
        if hasattr(module, name) and method == "prism":
            setattr(module, name, _timed(getattr(module, name), name, stages))
    del small
    Path("/proc/self/clear_refs").write_text("5")  # the peak begins anew, without what the warm-up took
    begin, cpu = time.perf_counter(), _cpu_s()
    read = load_flows([target / "flows"])
    stages["read"] = _cpu_s() - cpu
    found = run(read.flows, read_table(target / "topology.csv", TOPOLOGY))
    wall_s, cpu_s = time.perf_counter() - begin, _cpu_s() - cpu
    document = {
        "flows": read.flows.height, "jobs": len(found.jobs), "findings": len(found.findings), "wall_s": wall_s,
        "cpu_s": cpu_s, "peak_gb": peak_rss_bytes() / 1e9, "stages": stages,
    }  # fmt: skip
    print(json.dumps(document))


def _timed(function: Callable[..., Any], name: str, stages: dict[str, float]) -> Callable[..., Any]:
    def call(*args: Any, **kwargs: Any) -> Any:
        begin = time.thread_time()
        try:
            return function(*args, **kwargs)
        finally:
            stages[name] = stages.get(name, 0.0) + time.thread_time() - begin

    return call


def _cpu_s() -> float:
    usage = resource.getrusage(resource.RUSAGE_SELF)
    return usage.ru_utime + usage.ru_stime


def bench_batch(most: float, paper_most: float, jobs_of_tile: int = 12) -> list[tuple[str, Run]]:
    """The curve."""
    done = []
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        make_tiles(folder)
        print(
            f"{'method':8}{'M flows':>9}{'GPUs':>8}{'wall s':>9}{'CPU s':>9}{'M flows/s':>11}{'per CPU s':>11}"
            f"{'peak GB':>9}{'jobs':>6}"
        )
        for size, tiles, seconds in SIZES:
            if size > most:
                continue
            target = lay_tiles(folder, tiles, seconds)
            for method in ("prism", "paper"):
                if method == "paper" and size > paper_most:
                    continue
                run = measure(target, method)
                done.append((method, run))
                print(
                    f"{method:8}{run.flows / 1e6:9.2f}{1024 * tiles:8,}{run.wall_s:9.1f}{run.cpu_s:9.1f}"
                    f"{run.flows / run.wall_s / 1e6:11.2f}{run.flows / run.cpu_s / 1e6:11.2f}{run.peak_gb:9.2f}"
                    f"{run.jobs:6} of {jobs_of_tile * tiles}",
                    flush=True,
                )
    return done


def print_stages(runs: list[tuple[str, Run]]) -> None:
    """Where the time of the largest run went, and how the smallest and the largest compare with the wanted figures."""
    ours = [run for method, run in runs if method == "prism"]
    if not ours:
        return
    last = max(ours, key=lambda run: run.flows)
    print(f"\nstages of {last.flows / 1e6:.1f} M flows, processor seconds (share)")
    rest = last.cpu_s - sum(last.stages.values())
    ordered = sorted(last.stages.items(), key=lambda s: -s[1])
    for name, seconds in [*ordered, ("Polars' own threads, and between them", rest)]:
        print(f"  {name:40}{seconds:8.2f}  {100 * seconds / last.cpu_s:5.1f} %")
    rate, per_cpu = last.flows / last.wall_s, last.flows / last.cpu_s
    print(
        f"\n1 million flows/s on 2 cores: {rate / 1e6:.2f} M/s ({per_cpu / 1e6:.2f} M per processor second): "
        f"{'yes' if rate >= WANTED_PER_S else 'NO'}"
    )
    if last.flows > 15e6:
        fine = last.wall_s < WANTED_S and last.peak_gb < WANTED_GB
        print(
            f"a 10,000-GPU minute under {WANTED_S:.0f} s and {WANTED_GB:.0f} GB: {last.wall_s:.1f} s, "
            f"{last.peak_gb:.1f} GB: {'yes' if fine else 'NO'}"
        )
    first = min(ours, key=lambda run: run.flows)
    print(f"time per flow, largest against smallest: {last.cpu_s / last.flows / (first.cpu_s / first.flows):.2f} x")


def bench_stream(rate: int, seconds: float) -> None:
    """`prism watch` in a process of its own, fed a training cluster's flows as IPFIX over loopback."""
    from observe_sources import send_stream

    program = [sys.executable, "-m", "prism.cli.main", "watch", "ipfix://127.0.0.1:14739", "--metrics", "19108"]
    watch = subprocess.Popen(program, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
    drain = threading.Thread(target=lambda: [None for _ in watch.stderr or ()], daemon=True)
    try:
        _await_metrics()
        drain.start()
        context = get_context("spawn")
        sent = context.Value("q", 0)
        sender = context.Process(target=send_stream, args=(("127.0.0.1", 14739), rate, seconds, sent))
        begin = time.monotonic()
        sender.start()
        print("\n     s         sent        taken  lost %  watch MB  looks MB  cores   looks  look s")
        peaks = []
        while sender.is_alive():
            sender.join(max(seconds / 20, 5))
            peaks.append(_print_stream(watch.pid, sent.value, time.monotonic() - begin))
        half = len(peaks) // 2
        if seconds >= 240:  # The window fills in the first minute.
            grown = max(peaks[half:]) / max(peaks[:half]) - 1
            print(f"memory, second half against first: {100 * grown:+.1f} %: {'flat' if grown < 0.05 else 'NOT flat'}")
    finally:
        watch.terminate()
        try:
            watch.wait(60)
        except subprocess.TimeoutExpired:  # It is still at its last look.
            watch.kill()


def _await_metrics() -> None:
    for _ in range(120):
        try:
            _metrics()
            return
        except OSError:
            time.sleep(0.5)
    raise SystemExit("prism watch did not start")


def _metrics() -> dict[str, float]:
    import urllib.request

    with urllib.request.urlopen("http://127.0.0.1:19108/metrics", timeout=5) as answer:
        lines = answer.read().decode().splitlines()
    return {k: float(v) for k, _, v in (line.rpartition(" ") for line in lines if not line.startswith("#"))}


def _print_stream(pid: int, sent: int, after_s: float) -> float:
    """One line; returns the megabytes that the watch and its looks hold together."""
    now = _metrics()
    taken = now["prism_watch_flows_total"]
    own, family = _rss_mb(pid), sum(_rss_mb(child) for child in _children(pid))
    cores = sum(_cpu_of(p) for p in (pid, *_children(pid))) / after_s
    print(
        f"{after_s:6.0f} {sent:12,} {taken:12,.0f} {100 * (1 - taken / max(sent, 1)):7.2f} {own:9.0f} {family:9.0f} "
        f"{cores:6.2f} {now['prism_watch_looks_total']:7.0f} {now['prism_watch_look_seconds']:7.2f}",
        flush=True,
    )
    return own + family


def _rss_mb(pid: int) -> float:
    try:
        return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE") / 1e6
    except OSError:
        return 0.0


def _cpu_of(pid: int) -> float:
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return 0.0
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def _children(pid: int) -> list[int]:
    try:
        return [int(c) for c in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
    except OSError:
        return []


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--most", type=float, default=20, help="million flows of the largest size; 0: no curve")
    parser.add_argument("--paper-most", type=float, default=4, help="the same, for the published method")
    parser.add_argument("--stream-s", type=float, default=600, help="seconds to watch a stream; 0: not at all")
    parser.add_argument("--rate", type=int, default=200_000, help="flows/s of the stream")
    parser.add_argument("--child", type=Path, help=argparse.SUPPRESS)
    parser.add_argument("--method", default="prism", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.child:
        run_child(arguments.child, arguments.method)
        return
    print(describe_machine())
    if arguments.most:
        print_stages(bench_batch(arguments.most, arguments.paper_most))
    if arguments.stream_s:
        bench_stream(arguments.rate, arguments.stream_s)


if __name__ == "__main__":
    main()

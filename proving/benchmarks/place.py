"""Sharing clusters: policies side by side on a real trace, against queueing theory, and how fast the scheduler is.

    python proving/benchmarks/place.py --data ../shared/data [--only philly,quarters,helios,coverage,theory,acme,speed]

Philly's trace does not publish the size of its virtual clusters. Here each has a share of the 99th percentile of what
its jobs would hold at once, and at least its largest job (or twice that): every size tried is printed.
"""

from __future__ import annotations

import argparse
import heapq
import math
import sys
import time
from pathlib import Path

import numpy as np
import polars as pl

from machine import describe_machine
from prism.datacenter.characterize import GeneratorOptions, generate_trace
from prism.datacenter.place import (
    POLICIES,
    Cluster,
    Finished,
    Job,
    RunTimes,
    Scheduler,
    Submitted,
    compare,
    read_jobs,
    simulate,
)

# Nodes of each virtual cluster in S-Lab-System-Group/HeliosArtifact (MIT), framework/QSSF Service/data/philly_vc.csv.
HELIOS_NODES = {
    "6214e9": 64,
    "7f04ca": 32,
    "11cb48": 16,
    "b436b2": 64,
    "ee9e8c": 64,
    "e13805": 16,
    "6c71a0": 32,
    "2869ce": 16,
    "ed69ec": 8,
    "103959": 8,
    "0e4a51": 32,
}
SIZES = ((0.34, 1), (0.38, 1), (0.38, 2), (0.45, 1), (0.60, 1))


def read_philly(data: Path) -> tuple[list[Job], list[float], pl.DataFrame]:
    """Jobs, run times and the table of virtual clusters."""
    jobs, seconds = read_jobs(data / "philly" / "jobs.parquet")
    return jobs, seconds, pl.read_csv(data / "philly" / "virtual_clusters.csv")


def size_clusters(table: pl.DataFrame, share: float, floor: int) -> list[Cluster]:
    """A share of each p99, and at least so many times the largest job."""
    return [
        Cluster(name=r["virtual_cluster"], gpus=max(math.ceil(r["p99"] * share), floor * r["largest_job"]))
        for r in table.iter_rows(named=True)
    ]


def print_philly(data: Path) -> None:
    """Every policy at every size."""
    jobs, seconds, table = read_philly(data)
    print(f"\nPhilly, {len(jobs):,} jobs of {table.height} virtual clusters; waits in s (worst owner: slowdown")
    print("of a cluster's own users over having it to themselves, highest of all clusters; goal 1.05)")
    for share, floor in SIZES:
        clusters = size_clusters(table, share, floor)
        print(f"  {share:.0%} of p99, at least {floor} x the largest job: {sum(c.gpus for c in clusters):,} GPUs")
        alone = simulate(jobs, seconds, clusters, POLICIES["static-easy"])
        for name, policy in POLICIES.items():
            start = time.process_time()
            outcome = simulate(jobs, seconds, clusters, policy)
            cpu_s = time.process_time() - start
            told, owner = outcome.to_json(), compare(outcome, alone)
            print(
                f"    {name:<23} mean {told['mean_queue_s']:>8,.0f} p99 {told['p99_queue_s']:>9,.0f} "
                f"idle while waiting {told['idle_gpu_h']:>8,.0f} GPU-h ({told['fragmented_gpu_h']:,.0f} fragmented) "
                f"away {told['moved_pct']:>4.1f} % worst owner {owner.slowdown_ratio:.2f} "
                f"p99 longer for {len(owner.p99_worse)}; {cpu_s:.1f} s of CPU",
                flush=True,
            )


def print_quarters(data: Path) -> None:
    """Every policy on four parts of the trace with as many jobs each: mean wait, and the worst owner."""
    jobs, seconds, table = read_philly(data)
    order = sorted(range(len(jobs)), key=lambda i: jobs[i].submit_s)
    size = len(order) // 4
    for share in (0.34, 0.38, 0.45, 0.60):
        clusters = size_clusters(table, share, 1)
        for quarter in range(4):
            chosen = order[quarter * size : (quarter + 1) * size]
            part, lengths = [jobs[i] for i in chosen], [seconds[i] for i in chosen]
            alone = simulate(part, lengths, clusters, POLICIES["static-easy"])
            told = [f"static-easy {alone.to_json()['mean_queue_s']:,.0f}"]
            for name in ("fair-share", "multikueue-all", "prism", "pooled"):
                outcome = simulate(part, lengths, clusters, POLICIES[name])
                owner = compare(outcome, alone)
                told.append(f"{name} {outcome.to_json()['mean_queue_s']:,.0f} ({owner.slowdown_ratio:.2f})")
            print(f"  {share:.0%} of p99, quarter {quarter + 1}: {', '.join(told)}", flush=True)


def print_helios(data: Path) -> None:
    """First come first served with the sizes of a public simulator, job by job against its rules."""
    table = pl.read_parquet(data / "philly" / "jobs.parquet").filter(pl.col("seconds") > 0).sort("time")
    print(
        "\nPhilly with the sizes of HeliosArtifact's simulator (Hu et al., SC '21): nodes of 8 GPUs, first come first"
    )
    print(
        "served, a job of up to 8 GPUs in one node, a larger one in whole nodes; mean waits by its rules and by Prism"
    )
    for share in (1.0, 0.4):
        total = differ = 0
        means = []
        for name, nodes in HELIOS_NODES.items():
            rows = table.filter(pl.col("virtual_cluster") == name)
            nodes = max(4, int(nodes * share))
            at = rows["time"].dt.epoch("s").to_list()
            needs = list(zip(at, rows["seconds"].to_list(), rows["gpus"].to_list(), strict=True))
            jobs = [
                Job(id=str(i), submit_s=float(t), gpus=gpus, home=name, one_leaf=gpus <= 8)
                for i, (t, _, gpus) in enumerate(needs)
            ]
            seconds = [float(length) for _, length, _ in needs]
            cluster = Cluster(name=name, gpus=8 * nodes, leaf_gpus=8)
            ours = np.array(simulate(jobs, seconds, [cluster], POLICIES["static"]).queue_s)
            theirs = wait_in_nodes(needs, nodes)
            total, differ = total + len(jobs), differ + int((ours != theirs).sum())
            means.append((theirs.sum(), ours.sum()))
        rules, prism = np.sum(means, axis=0) / total
        print(f"  {share:.0%} of its nodes: {rules:,.1f} s and {prism:,.1f} s; {differ} of {total:,} jobs differ")


def wait_in_nodes(needs: list[tuple[int, int, int]], nodes: int) -> np.ndarray:
    """Waits of jobs (time, seconds, GPUs) in order: the fullest node that fits, or as many empty nodes as it takes."""
    free = [8] * nodes
    ends: list[tuple[int, int, list[tuple[int, int]]]] = []
    waits, now = np.empty(len(needs)), 0
    for number, (at, length, gpus) in enumerate(needs):
        now = max(now, at)
        while True:
            while ends and ends[0][0] <= now:
                for node, used in heapq.heappop(ends)[2]:
                    free[node] += used
            if gpus <= 8:
                fits = min((f, n) for n, f in enumerate(free) if f >= gpus) if max(free) >= gpus else None
                parts = [] if fits is None else [(fits[1], gpus)]
            else:
                empty = [n for n, f in enumerate(free) if f == 8][: -(-gpus // 8)]
                parts = [(n, min(8, gpus - 8 * k)) for k, n in enumerate(empty)] if len(empty) * 8 >= gpus else []
            if parts:
                break
            now = ends[0][0]
        for node, used in parts:
            free[node] -= used
        heapq.heappush(ends, (now + length, number, parts))
        waits[number] = now - at
    return waits


def print_coverage(data: Path) -> None:
    """How often jobs end within the 90 % quantile that was predicted when they were submitted; goal 88 to 92 %."""
    jobs, seconds, _ = read_philly(data)
    times = RunTimes()
    due: list[tuple[float, int, float]] = []
    hits, expected = [], {}
    for number, (job, length) in enumerate(zip(jobs, seconds, strict=True)):
        while due and due[0][0] <= job.submit_s:
            _, past, seen = heapq.heappop(due)
            times.learn(jobs[past], expected.pop(past), seen)
        told = expected[number] = times.expect(job)
        hits.append(length <= told.seconds)
        # A job is counted when it ends, or when it outlives what was expected, whichever comes first.
        seen = min(length, told.seconds * 1.001)
        heapq.heappush(due, (job.submit_s + seen, number, seen))
    print(f"\nrun times on Philly: {np.mean(hits):.1%} of {len(hits):,} jobs end within their 90 % quantile;", end=" ")
    print("by tenth of the trace: " + " ".join(f"{part.mean():.0%}" for part in np.array_split(np.array(hits), 10)))


def erlang_wait(rate: float, service_s: float, servers: int) -> float:
    """Mean wait of an M/M/c queue."""
    load = rate * service_s
    below = sum(load**k / math.factorial(k) for k in range(servers))
    last = load**servers / math.factorial(servers) * servers / (servers - load)
    return last / (below + last) * service_s / (servers - load)


def print_theory(count: int, checked: int = 50_000) -> None:
    """Mean waits against M/M/c and M/G/1; goal within 1 %.

    A mean wait needs millions of jobs to be known within 1 %. The simulation is compared job by job with the exact
    recursion on the first of them, and the recursion with theory on all.
    """
    print(f"\nqueueing theory: {count:,} jobs by the exact recursion, of which {checked:,} also by the simulation")
    rng = np.random.default_rng(0)
    for name, servers, rate in (("M/M/1", 1, 0.5), ("M/M/4", 4, 2.4), ("M/G/1 (log-normal)", 1, 0.5)):
        plain = name.startswith("M/M")
        service = rng.exponential(1.0, count) if plain else rng.lognormal(-0.125, 0.5, count)  # mean 1
        at = np.cumsum(rng.exponential(1 / rate, count))
        # Theory at the rate and the run time that were drawn, since a wait follows small changes of the load closely.
        drawn, mean_s = count / float(at[-1]), float(service.mean())
        theory = erlang_wait(drawn, mean_s, servers)
        if not plain:  # Pollaczek and Khinchine
            theory = drawn * float(np.mean(service**2)) / (2 * (1 - drawn * mean_s))
        exact = exact_waits(at, service, servers)
        jobs = [Job(id=str(i), submit_s=t, gpus=1, home="a") for i, t in enumerate(at[:checked].tolist())]
        outcome = simulate(jobs, service[:checked].tolist(), [Cluster(name="a", gpus=servers)], POLICIES["static"])
        apart = float(np.abs(np.array(outcome.queue_s) - exact[:checked]).max())
        print(
            f"  {name}: mean wait {exact.mean():.4f}, theory {theory:.4f} ({exact.mean() / theory - 1:+.2%}); "
            f"no job's wait differs from the simulation's by more than {apart:.0e} s",
            flush=True,
        )


def exact_waits(at: np.ndarray, service: np.ndarray, servers: int) -> np.ndarray:
    """Waits of first come first served by Lindley's and by Kiefer and Wolfowitz's recursion."""
    if servers == 1:
        walk = np.concatenate([[0.0], np.cumsum(service[:-1] - np.diff(at))])
        waits: np.ndarray = walk - np.minimum.accumulate(walk)
        return waits
    free = [0.0] * servers
    waits = np.empty(len(at))
    for number, (arrival, length) in enumerate(zip(at.tolist(), service.tolist(), strict=True)):
        start = max(arrival, heapq.heappop(free))
        waits[number] = start - arrival
        heapq.heappush(free, start + length)
    return waits


def read_acme(name: str, days: float) -> tuple[list[Job], list[float]]:
    """The first days of a synthetic trace with the statistics of one of Acme's clusters; pretraining goes first."""
    trace = generate_trace(GeneratorOptions(cluster=name, seed=1))
    at = pl.col("submit_time").str.to_datetime(time_zone="UTC").dt.timestamp("ms") / 1e3
    trace = trace.with_columns(at=at - at.min()).filter((pl.col("at") < days * 86_400.0) & (pl.col("gpu_num") > 0))
    jobs = [
        Job(
            id=f"{name}-{row['job_id']}",
            submit_s=row["at"],
            gpus=row["gpu_num"],
            home=name,
            user=row["user"],
            type=row["type"],
            priority=int(row["type"] == "Pretrain"),
        )
        for row in trace.iter_rows(named=True)
    ]
    return jobs, trace["duration"].cast(pl.Float64).to_list()


def print_acme() -> None:
    """Two clusters like Acme's: waits by type before and after sharing; evaluation must not delay pretraining."""
    jobs, seconds = [], {}
    sizes = {"seren": 2_288, "kalos": 2_416}  # GPUs of the paper's two clusters
    for name in sizes:
        made, lengths = read_acme(name, days=14.0)
        jobs += made
        seconds |= {job.id: length for job, length in zip(made, lengths, strict=True)}
    jobs.sort(key=lambda job: job.submit_s)
    for share in (1.0, 0.5):
        clusters = [Cluster(name=name, gpus=round(gpus * share)) for name, gpus in sizes.items()]
        print(f"\nAcme-like, two clusters at {share:.0%} of their GPUs, {len(jobs):,} jobs, 14 days: mean waits in s")
        for name in ("static-easy", "multikueue-all", "prism"):
            outcome = simulate(jobs, [seconds[j.id] for j in jobs], clusters, POLICIES[name])
            cells = [f"{kind} {told['mean_queue_s']:,.0f}" for kind, told in outcome.to_json()["by_type"].items()]
            print(f"  {name}: " + ", ".join(cells) + f"; {outcome.left_out} fit nowhere", flush=True)


def print_speed() -> None:
    """Placements per second of CPU with 100 clusters and many jobs that wait; goal 10,000 with 100,000."""
    print("\n100 clusters of 256 GPUs, all full: placements per second of CPU")
    for waiting in (25_000, 100_000):
        rng = np.random.default_rng(0)
        scheduler = Scheduler([Cluster(name=f"c{i}", gpus=256) for i in range(100)], POLICIES["prism"])
        sizes = rng.choice([1, 2, 4, 8, 16, 32], waiting + 30_000, p=[0.4, 0.2, 0.15, 0.15, 0.05, 0.05]).tolist()
        running: list[str] = []
        for number, gpus in enumerate(sizes):
            job = Job(id=str(number), submit_s=number, gpus=gpus, home=f"c{number % 100}", user=f"u{number % 500}")
            running += [d.job.id for d in scheduler.handle(Submitted(job, float(number)))]
            if scheduler.num_waiting >= waiting:
                break
        now, placed = float(len(sizes)), 0
        start = time.process_time()
        while placed < 20_000:
            now += 1.0
            decided = scheduler.handle(Finished(running.pop(int(rng.integers(len(running)))), now))
            running += [d.job.id for d in decided]
            placed += len(decided)
        cpu_s = time.process_time() - start
        print(f"  {waiting:,} waiting: {placed / cpu_s:,.0f} placements/s", flush=True)


def main() -> int:
    """Print everything that is asked for."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, help="folder with philly/")
    parser.add_argument("--only", default="philly,quarters,helios,coverage,theory,acme,speed")
    parser.add_argument("--jobs", type=int, default=3_000_000, help="per queue of theory")
    options = parser.parse_args()
    chosen = options.only.split(",")
    print(describe_machine())
    if options.data is not None and "philly" in chosen:
        print_philly(options.data)
    if options.data is not None and "quarters" in chosen:
        print_quarters(options.data)
    if options.data is not None and "helios" in chosen:
        print_helios(options.data)
    if options.data is not None and "coverage" in chosen:
        print_coverage(options.data)
    if "theory" in chosen:
        print_theory(options.jobs)
    if "acme" in chosen:
        print_acme()
    if "speed" in chosen:
        print_speed()
    return 0


if __name__ == "__main__":
    sys.exit(main())

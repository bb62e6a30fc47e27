"""Check captures against what must hold on any wire.

python -m proving.benchmarks.world_c.check [--seed N] [--only NAME]
"""

from __future__ import annotations

import argparse
import zlib
from dataclasses import replace

import numpy as np
import polars as pl

from .capture import Made, simulate
from .fabric import Fabric
from .jobs import Job, Life
from .kinds import KINDS
from .wire import ROCE_PORT

BIN_SECONDS = 0.05


def busiest_nic(made: Made, fabric: Fabric) -> float:
    """Bytes in the fullest window of any NIC, sent or received, as a share of what its line carries."""
    rdma = made.messages.filter(pl.col("dst_port") == ROCE_PORT)
    worst = 0.0
    for side in ("src", "dst"):
        pieces = (
            rdma.with_columns(
                low=(pl.col("start") / BIN_SECONDS).floor().cast(pl.Int64),
                high=(pl.col("end") / BIN_SECONDS).floor().cast(pl.Int64),
            )
            .with_columns(bin=pl.int_ranges("low", pl.col("high") + 1))
            .explode("bin")
        )
        left = pl.max_horizontal("start", pl.col("bin") * BIN_SECONDS)
        right = pl.min_horizontal("end", (pl.col("bin") + 1) * BIN_SECONDS)
        share = ((right - left) / (pl.col("end") - pl.col("start")).clip(1e-9)).clip(0, 1)
        load = pieces.with_columns(part=pl.col("size") * share).group_by(side, "bin").agg(pl.col("part").sum())
        worst = max(worst, float(load["part"].max() or 0) / (fabric.rate * BIN_SECONDS))  # type: ignore[arg-type]
    return worst


def expected_bytes(job: Job) -> float | None:
    """Bytes that a rail's ring edge carries in a step, where one formula says it."""
    ranks = len(job.hosts) * job.gpus
    share = (ranks - 1) / ranks * job.gigabytes * 1e9 / len(job.rails)
    if job.program == "ddp" and not job.tree:
        return 2 * share
    if job.program in ("fsdp", "rlhf"):
        return (2 - 1 / job.buckets) * job.accumulate * share + job.accumulate * share
    return None


def byte_error(made: Made, life: Life) -> float:
    """Largest relative error of an edge's bytes per step against the formula; nan where there is none."""
    job, fabric = life.job, life.wire.fabric
    want = expected_bytes(job)
    if want is None or not life.steps or job.start < 0:
        return float("nan")
    own = [fabric.address(e) for e in {e for pair in life.talk.pairs for e in pair}]
    begin, end = life.steps[0][0], life.steps[-1][1]
    sent = made.messages.filter(
        pl.col("dst_port") == ROCE_PORT, pl.col("src").is_in(own), pl.col("dst").is_in(own),
        pl.col("start") >= begin, pl.col("end") <= end + 1e-3,
    )  # fmt: skip
    per_edge = sent.group_by("src", "dst").agg(pl.col("size").sum())["size"].to_numpy() / len(life.steps)
    return float(np.abs(per_edge / want - 1).max())


def pipeline_order(made: Made, life: Life) -> int:
    """How often a stage sends its n-th output before its n-th input has come (plain 1F1B only)."""
    job, fabric = life.job, life.wire.fabric
    if job.program != "pipeline" or job.chunks > 1 or job.pp < 3:
        return 0
    replicas = len(job.hosts) // job.pp
    wrong = 0
    per_step = job.microbatches
    for stage in range(1, job.pp - 1):
        for replica in range(replicas):
            a, b, c = (job.hosts[s * replicas + replica] for s in (stage - 1, stage, stage + 1))
            into, out = (_messages(made, life, fabric, x, y) for x, y in ((a, b), (b, c)))
            # The norm's few bytes travel on the same pairs.
            count = min(len(into), len(out)) // per_step * per_step
            wrong += int((out["start"].to_numpy()[:count] < into["end"].to_numpy()[:count]).sum())
    return wrong


def _messages(made: Made, life: Life, fabric: Fabric, src: int, dst: int) -> pl.DataFrame:
    rail = life.job.rails[0]
    ends = [fabric.address(h * fabric.num_nics + rail) for h in (src, dst)]
    size = life.job.activation_mb * 1e6 / len(life.job.rails)
    near = (pl.col("size") - size).abs() < 2
    return made.messages.filter(pl.col("src") == ends[0], pl.col("dst") == ends[1], near).sort("start")


def clean_copy(name: str, seed: int) -> Made:
    """The same kind without its faults."""
    rng = np.random.default_rng([seed, zlib.crc32(name.encode())])
    capture = KINDS[name](rng)
    capture.fabric.compute_faults.clear()
    capture.fabric.net_faults.clear()
    capture.crowded = ()
    capture.jobs = [replace(job, stage_weights=(), uneven=0.0) for job in capture.jobs]
    return simulate(capture, rng)


def mean_step(life: Life) -> float:
    """Mean duration of a job's steps."""
    return float(np.mean([b - a for a, b in life.steps])) if life.steps else float("nan")


def check(name: str, seed: int) -> bool:
    """Print a line per job and tell whether all holds."""
    rng = np.random.default_rng([seed, zlib.crc32(name.encode())])
    capture = KINDS[name](rng)
    made = simulate(capture, rng)
    busiest = busiest_nic(made, capture.fabric)
    good = busiest < 1.05 and bool((made.messages["end"] >= made.messages["start"]).all())
    seen = {*made.flows["src"].unique(), *made.flows["dst"].unique()}
    planted = any(job.culprit for job in capture.jobs)
    clean = clean_copy(name, seed) if planted else None
    print(f"{name}: {made.flows.height} records, busiest NIC {busiest:.2f} of line rate")
    for number, (life, true) in enumerate(zip(made.lives, made.truth["jobs"], strict=True)):
        error, wrong = byte_error(made, life), pipeline_order(made, life)
        good &= not error > 0.01 and wrong == 0 and set(true["endpoints"]) <= seen
        durations = np.array([b - a for a, b in life.steps])
        spread = durations.std() / durations.mean() if len(durations) else float("nan")
        line = f"  {life.job.name}: dp {true['dp']} pp {true['pp']} steps {len(durations)} of {mean_step(life):.3f} s"
        line += f" (spread {spread:.3f}), bytes off by {error:.4f}, order wrong {wrong}"
        if clean is not None:
            ratio = mean_step(life) / mean_step(clean.lives[number])
            line += f", {ratio:.3f} times as long as without faults"
            kind = (life.job.culprit or {}).get("kind", "")
            expected = bool(kind) and not kind.startswith("hang")
            good &= ratio > 1.03 if expected else 0.97 < ratio < 1.03
        print(line)
    print("  ok" if good else "  NOT OK", flush=True)
    return good


def main() -> None:
    """Check kinds, and fail if one does not hold."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--only", default="")
    arguments = parser.parse_args()
    results = [check(name, arguments.seed) for name in KINDS if name.startswith(arguments.only)]
    raise SystemExit(0 if all(results) else 1)


if __name__ == "__main__":
    main()

"""`prism compare` on pairs of timelines with one planted difference, and on pairs that differ by nothing but noise.

    python proving/benchmarks/compare_pairs.py [--pairs 50] [--equal 10]

Timelines are those of simulated clusters, with 1 % noise on compute and 3 % on communication and another seed on either
side. Planted: a slow rank, a slow rank in one step, a slower link, a bigger batch, a lost overlap, a new kernel.
A pair is right where the largest part has the right op kind, rank and step, and the parts add up to the difference of
the step times to 1 %.
"""

from __future__ import annotations

import argparse
import time
from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np
import polars as pl

from machine import describe_machine
from prism.evidence.fusion import Comparison, compare_timelines
from prism.lab.scenarios import Scenario, load_scenario, make_scenario
from prism.lab.scenarios.fault import Fault

BASES = ("dense-dp-16", "dense-3d-64", "fsdp-64")
STEPS_S = {"dense-dp-16": 8.0, "dense-3d-64": 12.0, "fsdp-64": 12.0}


@dataclass(frozen=True, slots=True, kw_only=True)
class Truth:
    """Where the difference lies."""

    kinds: tuple[str, ...]  # how the part's kind begins
    ranks: tuple[int, ...] = ()  # empty: all ranks
    step: int | None = None


def num_ranks(base: Scenario) -> int:
    """Ranks of the only job."""
    job = base.jobs[0]
    return job.dp * job.tp * job.pp * job.cp


def slow_rank(base: Scenario, rng: np.random.Generator) -> tuple[pl.DataFrame, Truth]:
    """One GPU computes slower all the time."""
    rank = int(rng.integers(num_ranks(base)))
    fault = Fault(kind="slow_gpu", job="job-1", rank=rank, speed=float(rng.uniform(0.6, 0.85)))
    return spans_of(replace(base, faults=(fault,)), rng), Truth(kinds=("compute",), ranks=(rank,))


def slow_once(base: Scenario, rng: np.random.Generator) -> tuple[pl.DataFrame, Truth]:
    """One GPU computes slower during one step."""
    rank = int(rng.integers(num_ranks(base)))
    steps = spans_of(base, rng).filter((pl.col("kind") == "step") & (pl.col("rank") == rank)).sort("start_ns")
    chosen = int(rng.integers(2, steps.height - 2))
    begin, end = steps["start_ns"][chosen], steps["end_ns"][chosen]
    zero = base.epoch_s * 10**9
    fault = Fault(
        kind="slow_gpu", job="job-1", rank=rank, speed=0.2, start_s=(begin - zero) / 1e9, end_s=(end - zero) / 1e9
    )
    return spans_of(replace(base, faults=(fault,)), rng), Truth(kinds=("compute",), ranks=(rank,), step=chosen)


def slow_link(base: Scenario, rng: np.random.Generator) -> tuple[pl.DataFrame, Truth]:
    """One NIC is slower; every rank that waits for it sees a longer collective."""
    host = int(rng.integers(base.cluster.num_hosts))
    fault = Fault(kind="slow_link", host=host, nic=int(rng.integers(8)), speed=float(rng.uniform(0.1, 0.3)))
    return spans_of(replace(base, faults=(fault,)), rng), Truth(kinds=("dp", "pp", "tp", "unknown"), ranks=(-1,))


def bigger_batch(base: Scenario, rng: np.random.Generator) -> tuple[pl.DataFrame, Truth]:
    """More sequences in a micro-batch."""
    job = replace(base.jobs[0], micro_batch=base.jobs[0].micro_batch + 1)
    return spans_of(replace(base, jobs=(job,)), rng), Truth(kinds=("compute",))


def lost_overlap(base: Scenario, rng: np.random.Generator) -> tuple[pl.DataFrame, Truth]:
    """Gradients are summed after the backward pass instead of beside it."""
    return spans_of(replace(base, jobs=(replace(base.jobs[0], overlap=False),)), rng), Truth(kinds=("dp",))


def new_kernel(base: Scenario, rng: np.random.Generator) -> tuple[pl.DataFrame, Truth]:
    """Every rank runs one more kernel at the start of its step."""
    spans = spans_of(base, rng)
    extra = int(
        0.06 * spans.filter(pl.col("kind") == "step").select((pl.col("end_ns") - pl.col("start_ns")).mean()).item()
    )
    moved = spans.filter(pl.col("step").is_not_null()).with_columns(
        start_ns=pl.col("start_ns") + extra * (pl.col("step") + (pl.col("kind") != "step").cast(pl.Int64)),
        end_ns=pl.col("end_ns") + extra * (pl.col("step") + 1),
    )
    steps = moved.filter(pl.col("kind") == "step")
    added = steps.with_columns(
        lane=pl.lit("compute"),
        kind=pl.lit("compute").cast(spans.schema["kind"]),
        name=pl.lit("new_kernel"),
        end_ns=pl.col("start_ns") + extra,
    )
    return pl.concat([moved, added]), Truth(kinds=("compute",))


PLANTS: dict[str, Callable[[Scenario, np.random.Generator], tuple[pl.DataFrame, Truth]]] = {
    "slow rank": slow_rank,
    "slow rank in one step": slow_once,
    "slower link": slow_link,
    "bigger batch": bigger_batch,
    "lost overlap": lost_overlap,
    "new kernel": new_kernel,
}


def spans_of(scenario: Scenario, rng: np.random.Generator) -> pl.DataFrame:
    """The timeline of a scenario, without its last step, which the end of the run may cut."""
    spans = make_scenario(scenario, seed=int(rng.integers(1 << 30))).spans
    last = spans["step"].max()
    return spans.filter(pl.col("step").is_not_null() & (pl.col("step") < last))


def is_right(found: Comparison, truth: Truth) -> bool:
    """Whether the largest part lies where the difference was planted."""
    if not found.parts:
        return False
    top = found.parts[0]
    kind = any(top.kind.startswith(k) for k in truth.kinds)
    # A slow link makes its collective longer for all its members: either all or one of them may be named.
    rank = truth.ranks == (-1,) or (top.rank in truth.ranks if truth.ranks else top.rank is None)
    return kind and rank and top.step == truth.step


def adds_up(found: Comparison, expected: pl.DataFrame, observed: pl.DataFrame) -> bool:
    """Whether the parts sum to the difference of mean step times, to 1 %."""
    difference = mean_step_ms(observed) - mean_step_ms(expected)
    return abs(sum(p.ms for p in found.parts) - difference) <= 0.01 * abs(difference) + 1e-6


def mean_step_ms(spans: pl.DataFrame) -> float:
    """Mean length of the step spans."""
    steps = spans.filter(pl.col("kind") == "step")
    return float(steps.select(((pl.col("end_ns") - pl.col("start_ns")) / 1e6).mean()).item())


def main() -> None:
    """Print how many pairs are right, by what was planted."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--pairs", type=int, default=50)
    parser.add_argument("--equal", type=int, default=10)
    parser.add_argument("--seed", type=int, default=0, help="the first pair's; others follow")
    given = parser.parse_args()
    print(describe_machine())
    score: dict[str, list[bool]] = defaultdict(list)
    sums, begin = [], time.process_time()
    for pair in range(given.pairs + given.equal):
        rng = np.random.default_rng(given.seed + pair)
        name = BASES[pair % len(BASES)]
        base = replace(load_scenario(name), duration_s=STEPS_S[name], faults=())
        expected = spans_of(base, rng)
        if pair >= given.pairs:
            found = compare_timelines(expected, spans_of(base, rng))
            score["nothing differs"].append(found.is_noise)
            continue
        plant = list(PLANTS)[pair // len(BASES) % len(PLANTS)]
        observed, truth = PLANTS[plant](base, rng)
        found = compare_timelines(expected, observed)
        score[plant].append(is_right(found, truth))
        sums.append(adds_up(found, expected, observed))
        if not score[plant][-1]:
            parts = [(p.kind, p.rank, p.step, round(p.ms, 2)) for p in found.parts[:3]]
            print(f"  pair {pair} ({name}, {plant}): expected {truth}, told {parts}, noise {found.noise_ms:.2f} ms")
    for plant, right in score.items():
        print(f"{plant}: {sum(right)} of {len(right)} right")
    planted = [r for plant, right in score.items() if plant != "nothing differs" for r in right]
    print(f"all planted: {sum(planted)} of {len(planted)}; sums right to 1 %: {sum(sums)} of {len(sums)}")
    print(f"{time.process_time() - begin:.0f} s of processor time")


if __name__ == "__main__":
    main()

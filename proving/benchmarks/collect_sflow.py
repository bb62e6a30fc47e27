"""sFlow samples of random jobs, diagnosed beside the truth.

    python proving/benchmarks/collect_sflow.py [RATE...] [--seeds A:B]

A random scenario of 64 to 512 GPUs is run for some steps of each job, and those steps are repeated for ten minutes.
Every message is cut into packets, one packet in N is kept at a moment spread over the message, and the samples are put
together as `prism diagnose` does with a capture of sFlow datagrams. A degree that is given as unknown is not right, but
not wrong either. Captures of more than --most samples are cut short, which makes them harder.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Iterable
from dataclasses import replace
from typing import Any

import numpy as np
import polars as pl

from observe_score import DEGREES, Score, score
from prism.collect.tables.samples import put_together
from prism.lab.scenarios import make_scenario
from prism.lab.scenarios.random_family import RandomConfig, random_scenario
from prism.lab.scenarios.run import ScenarioRun
from prism.observe.diagnose import diagnose
from prism.observe.sampled import keep_certain

PACKET_BYTES = 4096
CAPTURE_S = 600.0
_FEWEST_STEPS = 3  # of a job that are repeated


def sample(run: ScenarioRun, rate: int, seconds: float, seed: int) -> pl.DataFrame:
    """FLOWS of single packets, one in `rate`, of every job's steps repeated for so many seconds."""
    rng = np.random.default_rng(seed)
    begin = int(run.truth["start_ns"])
    parts = [_sample_job(run.flows, job, rate, seconds, begin, rng) for job in run.truth["jobs"]]
    return pl.concat(parts).sort("start_ns")


def _sample_job(
    flows: pl.DataFrame, job: dict[str, Any], rate: int, seconds: float, begin_ns: int, rng: np.random.Generator
) -> pl.DataFrame:
    own = pl.Series(job["endpoints"]).implode()
    flows = flows.filter(pl.col("src").is_in(own) | pl.col("dst").is_in(own))
    first, last = _whole_steps(job)
    flows = flows.filter((pl.col("start_ns") >= first) & (pl.col("start_ns") < last))
    copies = max(1, int(seconds * 1e9 / (last - first)))
    size, start, end = (flows[c].to_numpy() for c in ("bytes", "start_ns", "end_ns"))
    packets = np.maximum(1, -(-size // PACKET_BYTES))
    row = np.repeat(np.arange(flows.height), rng.binomial(packets * copies, 1 / rate))
    moment = start[row] + (rng.random(len(row)) * (end - start)[row]).astype(np.int64)
    moment += rng.integers(0, copies, len(row)) * (last - first) + (begin_ns - first) + (first - begin_ns) % 10**9
    columns = [c for c in ("src", "dst", "src_port", "dst_port", "qp") if c in flows.columns]
    return flows.select(columns)[row].with_columns(
        start_ns=pl.Series(moment),
        end_ns=pl.Series(moment),
        bytes=pl.Series(np.minimum(size[row], PACKET_BYTES) * rate),
        packets=pl.lit(rate, pl.Int64),
        sampling_rate=pl.lit(rate, pl.Int64),
    )


def _whole_steps(job: dict[str, Any]) -> tuple[int, int]:
    """From the second step, where the first was cut, to the start of the last."""
    starts = [s["start_ns"] for s in job["steps"]]
    return starts[1 if len(starts) > _FEWEST_STEPS else 0], starts[-1]


def count_samples(run: ScenarioRun, rate: int) -> float:
    """Samples of a second of all jobs together, about."""
    seconds = (run.truth["end_ns"] - run.truth["start_ns"]) / 1e9
    return float(run.flows["bytes"].sum()) / PACKET_BYTES / rate / seconds


def judge(run: ScenarioRun, samples: pl.DataFrame) -> tuple[Score, dict[str, int], list[tuple[str, str]], list[str]]:
    """The score, jobs by right, unknown and wrong degrees, findings told that were not planted, and what is wrong."""
    transfers, notes = put_together(samples)
    found = keep_certain(diagnose(transfers, run.topology), transfers, notes)  # as `prism diagnose` does
    document = found.to_json()
    one = score(document, run.truth)
    planted = {(f["kind"], f["culprit"]["id"]) for f in run.truth["faults"]}
    false = [(f.kind, f.culprit.id) for f in found.findings if (f.kind, f.culprit.id) not in planted]
    tally = {"right": 0, "unknown": 0, "wrong": 0}
    for job in run.truth["jobs"]:
        got = max(document["jobs"], key=lambda j: len(set(job["endpoints"]) & set(j["endpoints"])), default=None)
        degrees = [(job["layout"].get(d, 1), got["layout"][d] if got else None) for d in DEGREES]
        wrong = any(value is not None and value != wanted for wanted, value in degrees)
        tally["wrong" if wrong else "right" if all(v is not None for _, v in degrees) else "unknown"] += 1
    return one, tally, false, [w for w in one.wrong if "steps" not in w]


COUNTED = ("jobs", "exact", "right", "unknown", "wrong", "false")


def add_up(lines: Iterable[str]) -> None:
    """Print a table of what was counted, by rate."""
    rows = [json.loads(line) for line in lines if line.startswith("{")]
    print("rate      scenarios  jobs  exact jobs  degrees right / unknown / wrong  false findings  CPU-s")
    for rate in sorted({row["rate"] for row in rows}):
        own = [row for row in rows if row["rate"] == rate]
        jobs, exact, right, unknown, wrong, false = (sum(row[name] for row in own) for name in COUNTED)
        cpu_s = sum(row["cpu_s"] for row in own)
        print(
            f"1:{rate:<7} {len(own):>9} {jobs:>5} {exact:>6} ({exact / max(1, jobs):.1%}) "
            f"{right:>10} / {unknown} / {wrong} {false:>18} {cpu_s:>14.0f}"
        )


def main() -> None:
    """Print jobs, degrees and findings for every seed and rate."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("rates", nargs="*", type=int, default=[1000, 10_000])
    parser.add_argument("--seeds", default="0:8", help="first and one past the last")
    parser.add_argument("--gpus", default="64:512", help="least and most of a scenario")
    parser.add_argument("--most", type=int, default=1_000_000, help="samples of a capture")
    parser.add_argument("--sum", action="store_true", help="only add up the lines of earlier runs on stdin")
    asked = parser.parse_args()
    if asked.sum:
        add_up(sys.stdin)
        return
    first, last = map(int, asked.seeds.split(":"))
    low, high = map(int, asked.gpus.split(":"))
    config = RandomConfig(min_gpus=low, max_gpus=high, max_tenants=3, degraded_share=0.0, fault_share=0.0, steps=12)
    lines = []
    for seed in range(first, last):
        run = make_scenario(replace(random_scenario(seed, config)), seed)
        for rate in asked.rates:
            begin = time.process_time()
            seconds = min(CAPTURE_S, asked.most / count_samples(run, rate))
            one, tally, false, wrong = judge(run, sample(run, rate, seconds, seed))
            add = {"jobs": one.jobs, "exact": one.jobs_exact, **tally, "false": len(false)}
            line = {"seed": seed, "rate": rate, "seconds": round(seconds), **add, "cpu_s": time.process_time() - begin}
            lines.append(json.dumps({**line, "told": false, "not_right": wrong}))
            print(lines[-1], flush=True)
    add_up(lines)


if __name__ == "__main__":
    main()

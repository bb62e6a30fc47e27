"""Which planted faults of random clusters no reader of the records can name, by the truth alone.

    python proving/benchmarks/observe_knowable.py --seeds 10602 10612 10631

A fault counts as not knowable where one of these holds, each computed from the truth and the records and not from a
diagnosis:

- below noise: steps with it are longer than without it by less than three standard errors of the healthy ones;
- like an end: the job stopped for good and sent nothing after its last whole step, which is how a job ends;
- all alike: a link is slow and the transfers of all pairs of the job that do not pass it take longer by as much.

It is an upper bound: a fault that passes may be hidden for another reason.
"""

from __future__ import annotations

import argparse
from collections import Counter
from dataclasses import replace
from typing import Any

import numpy as np
import polars as pl

ERRORS = 3.0  # standard errors
ALIKE = 0.9  # of how much slower the pairs of the culprit are


def find_reason(truth: dict[str, Any], flows: pl.DataFrame, fault: dict[str, Any]) -> str | None:
    """Why a fault cannot be known, None where nothing speaks against it."""
    reasons = [_judge(truth, flows, fault, effect) for effect in fault["effects"]]
    return reasons[0] if reasons and None not in reasons else None


def _judge(truth: dict[str, Any], flows: pl.DataFrame, fault: dict[str, Any], effect: dict[str, Any]) -> str | None:
    job = next(j for j in truth["jobs"] if j["id"] == effect["job"])
    own = flows.filter(pl.col("src").is_in(job["endpoints"]) & pl.col("dst").is_in(job["endpoints"]))
    if fault["kind"] == "hang":
        return _judge_stop(job, own, fault)
    if _is_below_noise(job, fault, effect):
        return "below noise"
    is_link = fault["culprit"]["type"] == "link"
    return "all alike" if is_link and _is_all_alike(own, fault) else None


def _judge_stop(job: dict[str, Any], own: pl.DataFrame, fault: dict[str, Any]) -> str | None:
    over_ns = job["steps"][-1]["end_ns"]
    went_on = over_ns > fault["end_ns"] or own.filter(pl.col("start_ns") >= over_ns).height > 0
    return None if went_on else "like an end"


def _is_below_noise(job: dict[str, Any], fault: dict[str, Any], effect: dict[str, Any]) -> bool:
    healthy = [s for s in job["steps"] if s["end_ns"] <= fault["start_ns"] or s["start_ns"] >= fault["end_ns"]]
    lengths = np.array([s["end_ns"] - s["start_ns"] for s in healthy], np.float64)
    if len(lengths) < 2 or not effect["num_steps"]:
        return False
    spread = 1.4826 * np.median(np.abs(lengths - np.median(lengths)))  # a step that saves does not count
    error = spread * np.sqrt(1 / effect["num_steps"] + 1 / len(lengths))
    return bool(effect["step_ns_with"] - effect["step_ns_without"] < ERRORS * error)


def _is_all_alike(own: pl.DataFrame, fault: dict[str, Any]) -> bool:
    """Whether no pair of the job is clearly less slowed than those of the culprit."""
    names = {part for c in (fault["culprit"], *fault["accepted"]) for part in str(c["id"]).split(">")}
    during = (pl.col("start_ns") >= fault["start_ns"]) & (pl.col("start_ns") < fault["end_ns"])
    took = pl.col("end_ns") - pl.col("start_ns")
    slower = own.group_by("src", "dst").agg(
        (took.filter(during).mean() / took.filter(~during).mean() - 1).alias("slower")
    ).drop_nulls()  # fmt: skip
    touches = pl.col("src").is_in(list(names)) | pl.col("dst").is_in(list(names))
    culprit, others = slower.filter(touches)["slower"], slower.filter(~touches)["slower"]
    if culprit.is_empty() or others.is_empty():
        return False
    return float(others.min()) >= ALIKE * float(culprit.median())  # type: ignore[arg-type]


def main() -> None:
    from prism.lab.scenarios import make_scenario, random_scenario
    from prism.lab.scenarios.measurement import Measurement

    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, nargs="+", required=True)
    found: Counter[str] = Counter()
    for seed in parser.parse_args().seeds:
        clean = replace(random_scenario(seed), measurement=Measurement(with_exporter=True))
        made = make_scenario(clean, seed)
        for fault in made.truth["faults"]:
            if fault["fired"]:
                reason = find_reason(made.truth, made.flows, fault)
                found[reason or "may be known"] += 1
                print(f"seed {seed}: {fault['cause']} {fault['culprit']['id']}: {reason or 'may be known'}", flush=True)
    print(", ".join(f"{reason} {number}" for reason, number in found.most_common()))


if __name__ == "__main__":
    main()

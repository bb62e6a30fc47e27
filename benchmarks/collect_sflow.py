"""sFlow samples of scenarios, rebuilt and diagnosed beside the truth: python benchmarks/collect_sflow.py [RATE...].

Every message of a scenario is cut into packets, one packet in N is kept at a moment spread over the message, and the
samples are put together as `prism diagnose` does with a capture of sFlow datagrams.
"""

from __future__ import annotations

import argparse
import json

import numpy as np
import polars as pl

from observe_score import Score, score
from prism.observe.diagnose import diagnose
from prism.records.flow_samples import are_sparse, put_together
from prism.scenarios import load_scenario, make_scenario

NAMES = ("dense-3d-64", "fsdp-64", "two-tenants-128", "slow-gpu-64")
PACKET_BYTES = 4096


def sample(flows: pl.DataFrame, rate: int, seed: int) -> pl.DataFrame:
    """FLOWS of single packets, one in `rate`, as sFlow agents report them."""
    rng = np.random.default_rng(seed)
    size = flows["bytes"].to_numpy()
    seen = rng.binomial(np.maximum(1, -(-size // PACKET_BYTES)), 1 / rate)
    row = np.repeat(np.arange(flows.height), seen)
    start = flows["start_ns"].to_numpy()[row]
    length = flows["end_ns"].fill_null(pl.col("start_ns")).to_numpy()[row] if flows["end_ns"].null_count() else None
    end = flows["end_ns"].to_numpy()[row] if length is None else length
    moment = start + (rng.random(len(row)) * (end - start)).astype(np.int64)
    kept = flows[row].select(c for c in ("src", "dst", "src_port", "dst_port", "qp") if c in flows.columns)
    packet = np.minimum(size[row], PACKET_BYTES)
    return kept.with_columns(
        start_ns=pl.Series(moment),
        end_ns=pl.Series(moment),
        bytes=pl.Series(packet * rate),
        packets=pl.lit(rate, pl.Int64),
        sampling_rate=pl.lit(rate, pl.Int64),
    ).sort("start_ns")


def main() -> None:
    """Print jobs, degrees and findings for every scenario and rate."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("rates", nargs="*", type=int, default=[1000, 10_000])
    parser.add_argument("--scenarios", nargs="*", default=list(NAMES))
    asked = parser.parse_args()
    for rate in asked.rates:
        total, false = Score(), 0
        for name in asked.scenarios:
            run = make_scenario(load_scenario(name), 0)
            transfers, notes = put_together(sample(run.flows, rate, 1))
            found = diagnose(transfers, run.topology)
            one = score(found.to_json(), run.truth)
            planted = {(f["kind"], f["culprit"]["id"]) for f in run.truth["faults"]}
            drawn = () if are_sparse(transfers, notes) else found.findings  # as `prism diagnose` does
            told = [(f.kind, f.culprit.id) for f in drawn]
            false += sum(t not in planted for t in told)
            total.add(one)
            line = {
                "rate": rate,
                "scenario": name,
                "transfers": transfers.height,
                "jobs": f"{one.jobs_exact}/{one.jobs}",
            }
            line |= {
                "degrees": f"{one.layouts_right}/{one.layouts}",
                "told": told,
                "planted": sorted(planted),
                "wrong": one.wrong[:3],
            }
            print(json.dumps({**line, "notes": notes}), flush=True)
        print(
            f"1 in {rate:,}: jobs {total.jobs_exact}/{total.jobs}, degrees {total.layouts_right}/{total.layouts}, "
            f"false findings {false}"
        )


if __name__ == "__main__":
    main()

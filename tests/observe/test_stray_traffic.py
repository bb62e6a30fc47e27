"""What touches a training host besides training, and where a capture happens to end, changes nothing."""

from __future__ import annotations

import numpy as np
import polars as pl
import pytest
from plain_jobs import Made, PlainJob, make_jobs

from prism.observe import diagnose

DDP = PlainJob(
    dp=16, gpus_per_host=1, microbatches=1, forward_s=0.1, idle_s=0.05, buckets=3, steps=30, queue_pairs=1, seed=1
)
PIPE = PlainJob(dp=2, pp=4, microbatches=6, steps=30, first_host=30, queue_pairs=1, seed=2)


@pytest.fixture(scope="module")
def made() -> Made:
    return make_jobs(DDP, PIPE)


def write_strays(flows: pl.DataFrame, count: int, size: float) -> pl.DataFrame:
    """Flows between a shell or a store, neither of which is in the topology, and hosts of both jobs."""
    rng = np.random.default_rng(5)
    hosts = flows["src"].unique().sort().gather_every(9).to_list()
    begin, until = int(flows["start_ns"].min()), int(flows["end_ns"].max())  # type: ignore[arg-type]
    start = rng.integers(begin, until, count)
    ends = [(str(rng.choice(["10.250.0.1", "10.250.0.2"])), str(rng.choice(hosts))) for _ in range(count)]
    ends = [e if rng.random() < 0.7 else e[::-1] for e in ends]
    rows = {
        "start_ns": start,
        "end_ns": start + 300_000,
        "src": [e[0] for e in ends],
        "dst": [e[1] for e in ends],
        "bytes": np.ceil(rng.lognormal(np.log(size), 1.2, count)).astype(np.int64),
    }
    return pl.concat([flows, pl.DataFrame(rows)], how="diagonal").sort("start_ns")


@pytest.mark.parametrize("size", [2e3, 2e4], ids=["shells", "files"])
def test_shells_and_copies_of_files_tie_no_jobs_together(made: Made, size: float) -> None:
    sound = diagnose(made.flows, made.topology)
    found = diagnose(write_strays(made.flows, 50, size), made.topology)
    assert [job.endpoints for job in found.jobs] == [job.endpoints for job in sound.jobs]
    assert found.findings == ()


@pytest.mark.parametrize("share", [0.3, 0.5, 0.8])
def test_a_capture_that_ends_in_the_middle_of_transfers_shows_no_stop(made: Made, share: float) -> None:
    ring = made.flows.filter(pl.col("bytes") > 10**6, pl.col("src").str.contains(r"^10\.0\.([0-9]|1[0-5])\.")).sort(
        "start_ns"
    )
    start, end = ring.select("start_ns", "end_ns").row(int(0.9 * ring.height))
    moment = int(start + share * (end - start))
    seen = (moment - pl.col("start_ns")) / (pl.col("end_ns") - pl.col("start_ns")).clip(1)
    cut = made.flows.filter(pl.col("start_ns") < moment).with_columns(
        end_ns=pl.min_horizontal("end_ns", pl.lit(moment)),
        bytes=(pl.col("bytes") * seen.clip(0.01, 1.0)).cast(pl.Int64),
    )
    found = diagnose(cut, made.topology)
    assert found.findings == ()
    assert {job.life.state for job in found.jobs} == {"running"}

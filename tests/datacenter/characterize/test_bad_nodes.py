"""Nodes are named by rate and not for being busy: worlds where all are alike name nobody, planted bad nodes are found."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path

import numpy as np
import polars as pl
import pytest

from prism.datacenter.characterize import CharacterizeOptions, characterize
from prism.datacenter.characterize.failures import name_bad_nodes
from prism.datacenter.characterize.tally import merge_tallies, tally_jobs

NODES, JOBS = 60, 1500
BEGIN_NS = int(datetime(2024, 1, 1, tzinfo=UTC).timestamp()) * 1_000_000_000


def make_world(seed: int, kind: str, bad: tuple[int, ...] = (), times: float = 1.0) -> pl.DataFrame:
    """Jobs on nodes of which some are ten times as busy; failures come per job, per node-hour or on one bad day."""
    rng = np.random.default_rng(seed)
    popularity = rng.pareto(1.5, NODES) + 0.3
    rows = []
    for number in range(JOBS):
        size = int(rng.choice([1, 1, 1, 2, 4, 8]))
        nodes = rng.choice(NODES, size, replace=False, p=popularity / popularity.sum())
        hours = float(rng.lognormal(0, 1.5))
        day = int(rng.integers(60))
        worst = times if set(nodes) & set(bad) else 1.0
        per = {"per job": 0.1, "per hour": 1 - np.exp(-0.02 * hours * size), "one bad day": 0.02 + 0.9 * (day == 7)}[
            kind
        ]
        state, reason = "completed", None
        if rng.random() < min(1.0, per * worst):
            state, reason = "failed", "NVLinkError"
        elif rng.random() < 0.25:
            state, reason = "failed", "KeyError"  # faults of the jobs themselves say nothing about nodes
        end = BEGIN_NS + day * 86_400_000_000_000 + number
        rows.append(
            (
                state,
                reason,
                f"u{rng.integers(20)}",
                8.0 * size,
                hours * 3600,
                8.0 * size * hours * 3600,
                end,
                ",".join(f"n{n:03d}" for n in nodes),
            )
        )
    names = ["state", "reason", "user", "gpus", "duration_s", "gpu_time_s", "end_ns", "node_list"]
    frame = pl.DataFrame(rows, schema=names, orient="row")
    none = {name: pl.lit(None, pl.Int64) for name in ("submit_ns", "start_ns")}
    return frame.with_columns(pl.lit("job").alias("type"), pl.lit(None, pl.Float64).alias("queue_s"), **none)


def named(frame: pl.DataFrame) -> list[str]:
    from prism.records.jobs import JOB_STATES

    jobs = frame.with_columns(pl.col("state").cast(pl.Enum(JOB_STATES)))
    half = tally_jobs(jobs[: JOBS // 2]), tally_jobs(jobs[JOBS // 2 :])
    return name_bad_nodes(merge_tallies(half).on_nodes)["node"].to_list()


@pytest.mark.parametrize("kind", ["per job", "per hour", "one bad day"])
def test_where_all_nodes_are_alike_nobody_is_named(kind: str) -> None:
    """The slow test has 200 seeds of each."""
    assert sum(bool(named(make_world(seed, kind))) for seed in range(8)) <= 1


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["per job", "per hour", "one bad day"])
def test_200_worlds_of_nodes_alike_name_somebody_in_at_most_one_of_twenty(kind: str) -> None:
    assert sum(bool(named(make_world(seed, kind))) for seed in range(1000, 1200)) <= 10


@pytest.mark.parametrize("kind", ["per job", "per hour"])
def test_planted_bad_nodes_are_named(kind: str) -> None:
    found = [named(make_world(seed, kind, bad=(5, 17), times=8.0)) for seed in range(8)]
    busy = [{f"n{n:03d}" for n in (5, 17)} for _ in found]
    hit = sum(len(set(names) & bad) for names, bad in zip(found, busy, strict=True))
    wrong = sum(len(set(names) - bad) for names, bad in zip(found, busy, strict=True))
    assert hit >= 8 and wrong == 0, (hit, wrong)  # of 16; some of them ran hardly any jobs


def test_a_busy_node_is_not_named_and_a_job_that_fails_again_and_again_is_one_failure(tmp_path: Path) -> None:
    rows = ["job_id,user,gpu_num,state,start_time,end_time,reason,node_list"]
    for n in range(400):
        node = "n000" if n % 2 else f"n{n % 40:03d}"
        failed = n % 4 in (0, 1)
        rows.append(
            f"{n},u{n % 7},8,{'FAILED' if failed else 'COMPLETED'},2024-01-{1 + n % 28:02d} 00:00:00,2024-01-{1 + n % 28:02d} 05:00:00,{'ECCError' if failed else ''},{node}"
        )
    again = "u9,8,FAILED,2024-01-09 00:00:00,2024-01-09 00:10:00,ECCError,n002"
    rows += [f"x{n},{again}" for n in range(30)]  # one user, one node, one day
    path = tmp_path / "t.csv"
    path.write_text("\n".join(rows) + "\n")
    report = characterize(path, CharacterizeOptions(gpus=320))
    assert report.study.node_failures["node"][0] == "n000" and report.study.bad_nodes.is_empty()
    assert not any("Drain" in action.what for action in report.overview.actions)

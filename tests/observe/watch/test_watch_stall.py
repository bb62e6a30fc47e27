"""A job that stops between two steps is told while it stands, and not once its scheduler says that it is over."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import polars as pl
import pytest
from watch_parts import FrameSource

from prism.observe.watch.analysis import InlineAnalyst
from prism.observe.watch.given_source import GivenSource
from prism.observe.watch.stream import Watch, WatchConfig
from prism.records import FLOWS

sys.path.insert(0, str(Path(__file__).parent.parent))
from test_delays import ring_flows

S = 10**9


def watch(flows: pl.DataFrame, topology: pl.DataFrame, given: GivenSource | None = None) -> list[dict[str, Any]]:
    """What a watch of a job of steps of about a second tells, beside one that goes on."""
    told: list[dict[str, Any]] = []
    Watch(
        FrameSource(FLOWS.conform(flows)), topology, WatchConfig(), told.append, analyst=InlineAnalyst(), given=given
    ).run(lambda: False)
    return told


def beside(stands: bool) -> tuple[pl.DataFrame, pl.DataFrame]:
    """A job that falls silent after 35 s, and one that runs for a minute longer."""
    flows, topology = ring_flows(3)
    goes_on, more = ring_flows(3, first=10)
    last = int(flows["end_ns"].max())  # type: ignore[arg-type]
    again = goes_on.with_columns(pl.col("start_ns", "end_ns") + (last - 10**18) + S // 10)
    parts: Sequence[pl.DataFrame] = [flows, goes_on, again] if stands else [goes_on, again]
    return pl.concat(parts), pl.concat([topology, more])


def test_a_stall_is_told_within_half_a_minute_and_says_that_the_job_may_be_over():
    told = [t for t in watch(*beside(stands=True)) if t["kind"] == "stall"]
    last = ring_flows(3)[0]["end_ns"].max()
    assert len(told) >= 1
    assert told[0]["reported_ns"] - last < 30 * S  # type: ignore[operator]
    assert told[0]["score"] <= 0.5
    assert "--jobs" in told[0]["evidence"]
    assert len({t["id"] for t in told}) == 1
    assert [t for t in watch(*beside(stands=False)) if t["kind"] == "stall"] == []


@pytest.mark.parametrize("state", ["RUNNING", "COMPLETED"])
def test_what_the_scheduler_says_decides(state: str, tmp_path: Path):
    table = tmp_path / "jobs.csv"
    end = "" if state == "RUNNING" else str((10**18 + 40 * S) // S)
    table.write_text(
        f'job,hosts,state,start,end\na,"host-[0-2]",{state},1000000000,{end}\nb,"host-[10-12]",RUNNING,1000000000,\n'
    )
    source = GivenSource(name=str(table))
    told = [t for t in watch(*beside(stands=True), given=source) if t["kind"] == "stall"]
    source.close()
    assert bool(told) == (state == "RUNNING")
    assert all(t["score"] > 0.7 and "still runs" in t["evidence"] for t in told)


def test_a_list_that_is_written_anew_is_read_anew_and_a_bad_one_is_told(tmp_path: Path):
    table = tmp_path / "jobs.csv"
    table.write_text("job,host\na,n1\n")
    at = [0.0]
    source = GivenSource(name=str(table), now=lambda: at[0])
    assert [job.name for job in source.list_jobs()] == ["a"]
    for text, name, said in (("job,host\nb,n1\n", "b", ()), ("nonsense", "b", ("nonsense",))):
        table.write_text(text)
        at[0] += 20
        source.list_jobs()
        assert source._asked is not None
        source._asked.exception()  # waits
        assert [job.name for job in source.list_jobs()] == [name]
        assert all(word in " ".join(source.notes) for word in said)
    source.close()

"""What two ranks send to each other at once is a sum, however busy the machine; stages send in turns."""

from __future__ import annotations

from pathlib import Path

import polars as pl
import pytest

from prism.observe.diagnose import diagnose
from prism.observe.parallelism.exchanges import with_exchanges
from prism.observe.traffic.preparation import prepare_traffic

DATA = Path(__file__).parent / "data" / "gloo"
MS = 1_000_000
TENSOR = 100_000


def share_of(sent: list[tuple[float, float, bool]]) -> float:
    """The `together` of the stream that goes onward, of messages with a start and an end in ms and a way."""
    flows = pl.DataFrame(
        [
            (round(a * MS), round(b * MS), *(("h1", "h2", 1, 2) if onward else ("h2", "h1", 2, 1)), TENSOR)
            for a, b, onward in sent
        ],
        schema=["start_ns", "end_ns", "src", "dst", "src_port", "dst_port", "bytes"],
        orient="row",
    )
    traffic = prepare_traffic(flows, None)
    streams = traffic.streams.join(traffic.pairs.select("pair", "src", "dst"), on="pair").with_columns(
        unit=pl.col("connection"), answered=1.0, together=0.2
    )
    onward = streams.filter(pl.col("src_port") == 1)
    return float(with_exchanges(traffic, onward.vstack(streams.filter(pl.col("src_port") == 2)))["together"][0])


def test_messages_that_are_under_way_at_once_are_together_though_they_end_apart() -> None:
    assert share_of([(t + s, t + e, way) for t in range(0, 2000, 100)
                     for s, e, way in ((0, 12, True), (9, 21, False))]) == 1.0  # fmt: skip


def test_answers_that_come_at_once_are_not_together() -> None:
    assert share_of([(t + s, t + e, way) for t in range(0, 2000, 100)
                     for s, e, way in ((0, 5, True), (5.2, 10, False))]) == 0.2  # fmt: skip


def test_stages_that_exchange_in_one_call_send_one_alone_at_either_end_of_a_step() -> None:
    at_once = [(10 * k, 10 * k + 4, way) for k in range(1, 4) for way in (True, False)]
    step = [(0, 4, True), *at_once, (40, 44, False)]
    assert share_of([(t + s, t + e, way) for t in range(0, 2000, 100) for s, e, way in step]) == 0.75


@pytest.mark.parametrize(("name", "dp", "pp"), [("waits_for_a_core", 2, 1), ("pipeline_of_replicas", 2, 2)])
def test_sums_of_two_ranks_on_a_busy_machine_are_no_pipeline(name: str, dp: int, pp: int) -> None:
    (job,) = diagnose(pl.read_parquet(DATA / f"{name}.parquet")).jobs
    assert (job.layout.dp.value, job.layout.pp.value) == (dp, pp)
    assert job.layout.confidence > 0.9

"""What `prism flows check` says of records that hide steps: those a timer cuts, and those that are never cut."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path

import polars as pl
import pytest
from typer.testing import CliRunner

from prism.cli.main import app
from prism.collect.flow_check import check_flows
from prism.collect.tables import write_flows
from prism.records import FLOWS

T = 1_700_000_000 * 10**9
MS = 10**6
STEP_MS = 850
BURST_MS = 400
NUM_STEPS = 60


def packets_of(rank: int) -> list[int]:
    """Times in ms at which a rank of a ring sends on its one connection: a burst in every step."""
    return [step * STEP_MS + 7 * rank + k for step in range(NUM_STEPS) for k in range(0, BURST_MS, 4)]


def cut_by_timer(times: list[int], life_ms: int, check_ms: int) -> list[tuple[int, int, int]]:
    """First, last and number of packets of each record, where records older than their life end at the next check."""
    records, first, last, num, check = [], times[0], times[0], 0, check_ms
    for time in times:
        if time >= check:
            check += check_ms * (1 + (time - check) // check_ms)
            if time - first >= life_ms:
                records.append((first, last, num))
                first, num = time, 0
        last, num = time, num + 1
    return [*records, (first, last, num)]


def cut_at_pauses(times: list[int], pause_ms: int) -> list[tuple[int, int, int]]:
    """The same of bursts, as a capture gives them."""
    begins = [0, *(i for i in range(1, len(times)) if times[i] - times[i - 1] >= pause_ms), len(times)]
    return [(times[a], times[b - 1], b - a) for a, b in pairwise(begins)]


def make_flows(records: dict[int, list[tuple[int, int, int]]]) -> pl.DataFrame:
    rows = [
        (T + first * MS, T + last * MS, f"10.0.0.{rank}", f"10.0.0.{(rank + 1) % 4}", num * 36_000, 40_000 + rank, 6000)
        for rank, own in records.items()
        for first, last, num in own
    ]
    columns = ["start_ns", "end_ns", "src", "dst", "bytes", "src_port", "dst_port"]
    types = dict.fromkeys(("src_port", "dst_port"), pl.Int32)
    return pl.DataFrame(rows, schema=columns, schema_overrides=types, orient="row")


def test_records_of_differing_length_that_continue_each_other_are_cut_by_a_timer(tmp_path: Path) -> None:
    flows = make_flows({rank: cut_by_timer(packets_of(rank), 1000, 1000) for rank in range(4)})
    found = check_flows(flows)
    assert found.active_timeout_ms == 1894, "the usual length of a record that the next one continues"
    assert found.shortest_step_ms == 5 * found.active_timeout_ms, "steps of 850 ms are hidden"
    assert len(found.problems) == 1 and "steps below" in found.problems[0] and found.change == ("packets",)
    write_flows(flows, tmp_path / "f.parquet")
    run = CliRunner().invoke(app, ["flows", "check", str(tmp_path / "f.parquet"), "--exporter", "softflowd"])
    assert run.exit_code == 0 and "tcpdump -i INTERFACE -s 96 -w capture.pcap tcp" in run.output


def test_bursts_of_the_same_traffic_show_its_steps() -> None:
    found = check_flows(make_flows({rank: cut_at_pauses(packets_of(rank), 5) for rank in range(4)}))
    assert found.problems == () and found.active_timeout_ms is None and found.shortest_step_ms == 5


def test_long_transfers_with_pauses_between_them_are_not_cut() -> None:
    stretched = {rank: [2 * time for time in packets_of(rank)] for rank in range(4)}
    found = check_flows(make_flows({rank: cut_at_pauses(own, 10) for rank, own in stretched.items()}))
    assert found.longest_ms == 792 and found.problems == () and found.active_timeout_ms is None


@pytest.mark.parametrize("ranks", [4, 400])
def test_a_connection_in_one_record_hides_every_step(ranks: int) -> None:
    whole = {rank: cut_by_timer(packets_of(rank % 4), 10**9, 60_000) for rank in range(ranks)}
    found = check_flows(make_flows(whole))
    assert found.change == ("shorter_records",) and "export them sooner" in found.problems[0]
    assert found.shortest_step_ms == 5 * ((NUM_STEPS - 1) * STEP_MS + BURST_MS - 4), "as long as the capture"


def test_no_records_are_said_to_be_none() -> None:
    found = check_flows(FLOWS.empty())
    assert found.problems == ("there are no records",) and found.change == ()


def interface_records(shift_s: int) -> pl.DataFrame:
    """A cloud flow log of ten minutes: both interfaces of two connections, whose windows may begin at other times."""
    rows = [
        (T + (60 * k + shift_s * side) * 10**9, T + (60 * k + 59 + shift_s * side) * 10**9, src, dst, 80_000_000, by)
        for k in range(10)
        for src, dst in (("10.0.0.1", "10.0.0.2"), ("10.0.0.3", "10.0.0.4"))
        for side, by in enumerate((f"eni-{src[-1]}", f"eni-{dst[-1]}"))
    ]
    table = pl.DataFrame(rows, schema=["start_ns", "end_ns", "src", "dst", "bytes", "exporter"], orient="row")
    return table.with_columns(src_port=pl.lit(40_000, pl.Int32), dst_port=pl.lit(5000, pl.Int32))


@pytest.mark.parametrize("shift_s", [0, 7])
def test_both_interfaces_of_a_connection_in_a_cloud_are_two_exporters(shift_s: int) -> None:
    flows = interface_records(shift_s)
    assert check_flows(flows).double_export_pct == 100.0
    assert check_flows(flows.filter(pl.col("exporter").is_in(["eni-1", "eni-3"]))).double_export_pct == 0.0


def test_a_connection_that_another_interface_reports_later_is_not_exported_twice() -> None:
    flows = interface_records(0).filter(pl.col("exporter").is_in(["eni-1", "eni-3"]))
    moved = pl.col("start_ns") >= T + 300 * 10**9
    flows = flows.with_columns(exporter=pl.when(moved).then(pl.lit("eni-9")).otherwise("exporter"))
    assert check_flows(flows).double_export_pct == 0.0

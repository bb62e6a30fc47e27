"""Measurement: what exporters do to records keeps the laws that it must."""

from __future__ import annotations

import numpy as np
import polars as pl
from hypothesis import given
from hypothesis import strategies as st

from prism.lab.scenarios.capture import capture, cut_long, merge_bursts, sample_packets, skew_clocks
from prism.lab.scenarios.measurement import Measurement

rows = st.lists(
    st.tuples(st.integers(0, 3), st.integers(0, 10**9), st.integers(0, 10**8), st.integers(1, 10**9)),
    min_size=1,
    max_size=60,
)


def frame(entries) -> pl.DataFrame:
    connection, start, length, size = (np.array(c) for c in zip(*entries, strict=True))
    return pl.DataFrame(
        {"connection": connection.astype(np.int32), "start_ns": start, "end_ns": start + length, "bytes": size}
    ).sort("start_ns", "connection")


CONNECTIONS = pl.DataFrame({"exporter": ["leaf-0", "leaf-0", "leaf-1", "leaf-2"]})
PERFECT = Measurement(byte_jitter=0)


@given(rows)
def test_a_perfect_exporter_changes_nothing(entries):
    records = frame(entries)
    assert capture(records, CONNECTIONS, PERFECT, 0, 1).equals(records)


@given(rows, st.integers(1, 10**8))
def test_merging_keeps_bytes_and_leaves_gaps_longer_than_the_timeout(entries, idle):
    records = frame(entries)
    merged = merge_bursts(records, idle)
    assert merged["bytes"].sum() == records["bytes"].sum()
    assert merged.height <= records.height
    for (_,), part in merged.sort("start_ns").group_by("connection"):
        gaps = part["start_ns"].to_numpy()[1:] - part["end_ns"].to_numpy()[:-1]
        assert (gaps > idle).all()


@given(rows, st.integers(10**5, 10**8))
def test_cutting_keeps_bytes_and_ends_and_no_piece_is_longer_than_the_timeout(entries, active):
    records = frame(entries)
    cut = cut_long(records, active)
    assert cut["bytes"].sum() == records["bytes"].sum()
    assert cut["end_ns"].max() == records["end_ns"].max()
    assert ((cut["end_ns"] - cut["start_ns"]) <= active).all()
    assert (cut["bytes"] >= 0).all()


@given(rows, st.integers(2, 50))
def test_sampled_records_lie_inside_the_real_ones_and_count_in_multiples(entries, rate):
    records = frame(entries)
    sampled = sample_packets(records, Measurement(sampling_rate=rate), 3)
    assert (sampled["bytes"] % rate == 0).all() and (sampled["packets"] % rate == 0).all()
    assert sampled.height <= records.height
    assert (sampled["start_ns"] <= sampled["end_ns"]).all()
    if sampled.height:
        assert sampled["start_ns"].min() >= records["start_ns"].min()
        assert sampled["end_ns"].max() <= records["end_ns"].max()


def test_sampling_estimates_bytes_without_bias_and_misses_small_records():
    size = np.where(np.arange(4000) % 2, 4096 * 1000, 4096)
    records = pl.DataFrame(
        {
            "connection": np.zeros(4000, np.int32),
            "start_ns": np.arange(4000) * 1000,
            "end_ns": np.arange(4000) * 1000 + 500,
            "bytes": size,
        }
    )
    sampled = sample_packets(records, Measurement(sampling_rate=100), 5)
    assert abs(sampled["bytes"].sum() / size.sum() - 1) < 0.02
    assert 1990 < sampled.height < 2100


def test_lost_records_are_about_the_stated_share():
    records = frame([(0, i, 1, 10) for i in range(5000)])
    kept = capture(records, CONNECTIONS, Measurement(byte_jitter=0, lost=0.1), 0, 2)
    assert 0.88 < kept.height / records.height < 0.92


def test_clocks_of_one_exporter_are_off_by_the_same_amount_and_drift():
    records = frame([(c, t, 10, 1) for c in range(4) for t in (0, 10**9, 2 * 10**9)])
    moved = skew_clocks(records, CONNECTIONS, Measurement(clock_offset_ms=5, clock_drift_ppm=100), 0, 1)
    shift = (moved["start_ns"] - records["start_ns"]).to_numpy()
    connection, start = records["connection"].to_numpy(), records["start_ns"].to_numpy()
    assert (shift[connection == 0] == shift[connection == 1]).all()
    assert (shift[connection == 0] != shift[connection == 2]).any()
    first, last = (shift[(connection == 3) & (start == t)][0] for t in (0, 2 * 10**9))
    assert first != last


@given(rows, st.sampled_from([1.0, 10.0, 1000.0]))
def test_times_are_cut_to_the_resolution(entries, resolution):
    out = capture(frame(entries), CONNECTIONS, Measurement(byte_jitter=0, resolution_ms=resolution), 0, 1)
    unit = int(resolution * 1e6)
    assert (out["start_ns"] % unit == 0).all() and (out["end_ns"] % unit == 0).all()
    assert (out["start_ns"] <= out["end_ns"]).all()


@given(rows)
def test_overhead_only_adds_and_only_a_little(entries):
    records = frame(entries)
    out = capture(records, CONNECTIONS, Measurement(byte_jitter=3e-4), 0, 1)
    extra = (out["bytes"] - records["bytes"]).to_numpy()
    assert (extra >= 0).all() and (extra <= records["bytes"].to_numpy() * 3e-3 + 1).all()

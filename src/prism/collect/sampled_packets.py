"""Sampled packets as FLOWS: one record each, at one moment, standing for as many packets as the rate says."""

from __future__ import annotations

import numpy as np
import polars as pl
from numpy.typing import NDArray

from prism.collect.address_text import write_addresses
from prism.collect.packets import ROCE, Packets
from prism.records import FLOWS

SAMPLED = pl.Schema({c: FLOWS.columns[c] for c in FLOWS.columns if c != "path"})
_MOST_RATE = 2**24  # Rates beyond this are damage.


def to_flows(packets: Packets, rates: NDArray[np.int64], exporters: pl.Series) -> pl.DataFrame:
    """FLOWS of dissected packets with a payload."""
    rate = np.clip(rates, 1, _MOST_RATE)
    frame = pl.DataFrame(
        {
            "start_ns": packets["time_ns"],
            "end_ns": packets["time_ns"],
            "src": write_addresses(_column(packets, "src_high"), _column(packets, "src_low")),
            "dst": write_addresses(_column(packets, "dst_high"), _column(packets, "dst_low")),
            "bytes": packets["payload"].astype(np.int64) * rate,
            "src_port": packets["src_port"],
            "dst_port": packets["dst_port"],
            "qp": np.where(packets["kind"] == ROCE, packets["qp"].astype(np.int64), -1),
            "packets": rate,
            "sampling_rate": rate,
            "exporter": exporters,
        }
    )
    return frame.with_columns(pl.col("qp").replace(-1, None)).cast(dict(SAMPLED))  # type: ignore[arg-type]


def _column(table: Packets, name: str) -> NDArray[np.uint64]:
    return np.ascontiguousarray(table[name])

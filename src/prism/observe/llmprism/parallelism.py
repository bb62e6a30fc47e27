"""Phase 2: whether a pair is data or pipeline parallel, from how many sizes its flows have in a step."""

from __future__ import annotations

import numpy as np
import polars as pl

from prism.observe.jobs.grouping import connect
from prism.observe.traffic.change_points import find_changes
from prism.observe.traffic.table import Traffic

_ONE_SIZE = 0.02  # Exact sizes never repeat: headers and retransmissions add a few in ten thousand.


def split_steps(traffic: Traffic) -> pl.DataFrame:
    """The messages with `segment`: each pair's own steps, cut where the silences between its flows change upwards."""
    ordered = traffic.messages.sort("pair", "start_ns")
    if ordered.is_empty():
        return ordered.with_columns(segment=pl.lit(0, pl.UInt32))
    pair, start, end = (ordered[c].to_numpy() for c in ("pair", "start_ns", "end_ns"))
    inner = np.concatenate([[False], pair[1:] == pair[:-1]])
    gap = (start - np.roll(end, 1)).clip(0).astype(np.float64)
    per_pair = np.bincount(pair, weights=inner).astype(np.int64)
    changed = np.zeros(len(gap), np.bool_)
    changed[inner] = find_changes(gap[inner], np.concatenate([[0], np.cumsum(per_pair)]))
    # A pause is a change, and so is the return from it; a step begins after the pause.
    begins = changed & (gap > np.roll(gap, 1))
    cuts = pl.Series("begins", begins.astype(np.uint32))
    return ordered.with_columns(cuts.cum_sum().alias("segment"))


def label_kinds(messages: pl.DataFrame, traffic: Traffic) -> pl.DataFrame:
    """pair src dst kind confidence: one size in most steps is pp, several are dp, and dp is transitive."""
    sizes = _class_sizes(messages).group_by("pair", "segment").agg(pl.col("size").n_unique().alias("sizes"))
    usual = pl.col("sizes").mode().min()
    votes = sizes.group_by("pair").agg(usual.alias("usual"), (pl.col("sizes") == usual).mean().alias("confidence"))
    labelled = traffic.pairs.select("pair", "src", "dst").join(votes, on="pair").sort("pair")
    one = labelled["usual"].to_numpy() == 1
    src, dst = (labelled[side].to_numpy().astype(np.int64) for side in ("src", "dst"))
    group = connect(traffic.endpoints.height, src[~one], dst[~one])
    kind = np.where(one & (group[src] != group[dst]), "pp", "dp")
    return labelled.select("pair", "src", "dst", pl.Series("kind", kind), "confidence")


def _class_sizes(messages: pl.DataFrame) -> pl.DataFrame:
    """Add `size`: sizes of one pair with no gap of 2 % between them are one."""
    jump = (pl.col("bytes").log1p().diff() > _ONE_SIZE) | (pl.col("pair") != pl.col("pair").shift(1))
    return messages.sort("pair", "bytes").with_columns(jump.fill_null(False).cum_sum().alias("size"))

"""Voices: the like messages of one pair (one size class), and what they do in every step, whatever its phase."""

from __future__ import annotations

import numpy as np
import polars as pl

from prism.observe.jobs import ObservedJob
from prism.observe.traffic import Traffic

_SAME_SIZE = 0.05  # relative difference up to which the two directions of a pair carry the same tensor
_PRESENT = 0.5  # share of the steps in which a voice of training is heard


def find_voices(traffic: Traffic, job: ObservedJob) -> pl.DataFrame:
    """One row per pair and size class of a job: how often it speaks per step, how large, and whether it is answered.

    Columns: pair src dst size_class bytes spread num steps first_ns duration_ns per_step presence together answered.
    `answered` is the share of messages with one of the same size coming back, `together` the share that overlaps it.
    """
    own = traffic.messages.filter(pl.col("pair").is_in(job.pairs))
    ends = traffic.pairs.select("pair", "src", "dst")
    own = own.join(ends, on="pair", how="left")
    num_steps = max(1, len(job.marks))
    edges = job.marks
    step = np.searchsorted(edges, own["start_ns"].to_numpy(), side="right")
    own = own.with_columns(pl.Series("step", step))
    voices = own.group_by("pair", "size_class").agg(
        pl.col("src", "dst").first(),
        pl.col("bytes").median(),
        (pl.col("bytes").std().fill_null(0.0) / pl.col("bytes").mean()).alias("spread"),
        pl.len().alias("num"),
        pl.col("step").n_unique().alias("steps"),
        pl.col("start_ns").min().alias("first_ns"),
        (pl.col("end_ns") - pl.col("start_ns")).median().alias("duration_ns"),
    )
    voices = voices.with_columns(
        per_step=pl.col("num") / num_steps, presence=(pl.col("steps") / num_steps).clip(upper_bound=1.0)
    )
    return voices.join(_answers(own), on=["pair", "size_class"], how="left").sort("pair", "size_class")


def _answers(own: pl.DataFrame) -> pl.DataFrame:
    """For each voice, how many messages of its size come back, and how often one does so at the same time."""
    ahead = own.select("pair", "size_class", "src", "dst", "bytes", "start_ns", "end_ns").sort("start_ns")
    back = own.select(
        src="dst", dst="src", twin_start="start_ns", twin_end="end_ns", twin_bytes="bytes", start_ns="start_ns"
    ).sort("start_ns")
    # The nearest message the other way decides; asof joins look at one neighbour, so both sides are tried.
    found = ahead
    for way in ("backward", "forward"):
        near = ahead.join_asof(back, on="start_ns", by=["src", "dst"], strategy=way, check_sortedness=False)
        same = (pl.col("twin_bytes") / pl.col("bytes") - 1).abs() <= _SAME_SIZE
        shared = pl.min_horizontal("end_ns", "twin_end") - pl.max_horizontal("start_ns", "twin_start")
        length = (pl.col("end_ns") - pl.col("start_ns")).clip(lower_bound=1)
        near = near.select(
            (same & (shared >= 0.3 * length)).fill_null(False).alias(f"together_{way}"),
            same.fill_null(False).alias(f"same_{way}"),
        )
        found = found.with_columns(near)
    return found.group_by("pair", "size_class").agg(
        (pl.col("together_backward") | pl.col("together_forward")).mean().alias("together"),
        (pl.col("same_backward") | pl.col("same_forward")).mean().alias("answered"),
    )

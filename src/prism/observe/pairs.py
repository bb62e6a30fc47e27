"""Pairs: what the traffic between two endpoints is for, from how it sounds and who else hears it."""

from __future__ import annotations

from typing import Any

import numpy as np
import polars as pl
from numpy.typing import NDArray

_HEARD = 0.5  # share of the steps in which training traffic is there
_ALONE = 0.6  # messages per step without a simultaneous answer that make an exchange a pipeline
_UNSTEADY = 0.03  # relative spread of sizes above which tokens were routed, not tensors sent
_OFTEN = 4.0  # times more messages per step that tell layer-wise traffic from gradients
_DENSE = 0.6  # share of possible pairs in use that makes a group all-to-all

LABELS = pl.Schema({"pair": pl.UInt32, "kind": pl.String, "confidence": pl.Float64})


def label_voices(voices: pl.DataFrame) -> pl.DataFrame:
    """Add `role` to each voice: pp, exchange (both ways at once), oneway (a ring), routed (all-to-all) or rare."""
    alone = (1 - pl.col("together")) * pl.col("per_step")
    # Sizes of one pair that never repeat were cut into many small classes: together they are one routed voice.
    scattered = (pl.col("presence") < _HEARD).mean().over("pair") > 0.5
    often = pl.col("num").sum().over("pair") >= pl.col("num").sum().over("pair").median()
    role = (
        pl.when(scattered & often & (pl.len().over("pair") > 4))
        .then(pl.lit("routed"))
        .when(pl.col("presence") < _HEARD)
        .then(pl.lit("rare"))
        .when((pl.col("spread") > _UNSTEADY) & (pl.col("per_step") > 1.5))
        .then(pl.lit("routed"))
        .when((pl.col("answered") >= 0.5) & (alone >= _ALONE))
        .then(pl.lit("pp"))
        .when((pl.col("answered") >= 0.5) & (pl.col("together") >= 0.5))
        .then(pl.lit("exchange"))
        .otherwise(pl.lit("oneway"))
    )
    return voices.with_columns(role.alias("role"))


def label_pairs(voices: pl.DataFrame) -> pl.DataFrame:
    """Add `role` and `kind` to each voice; embedding ties and dp are told apart by stages later."""
    voices = label_voices(voices)
    kinds = _label_collectives(voices)
    return voices.join(kinds, on=["pair", "size_class"], how="left").with_columns(
        pl.when(pl.col("role") == "pp")
        .then(pl.lit("pp"))
        .when(pl.col("role") == "rare")
        .then(pl.lit("unknown"))
        .otherwise(pl.coalesce("kind", pl.lit("unknown")))
        .alias("kind")
    )


def choose_kind(voices: pl.DataFrame) -> pl.DataFrame:
    """One kind per pair: that of most messages among the steady ones, with the share as confidence."""
    counted = voices.group_by("pair", "kind").agg(
        pl.col("num").sum(), (pl.col("num") * pl.col("bytes")).sum().alias("load")
    )
    counted = counted.with_columns(
        rank=pl.when(pl.col("kind") == "unknown").then(0).when(pl.col("kind") == "pp").then(2).otherwise(1)
    )
    best = (
        counted.sort("pair", "rank", "load", descending=[False, True, True])
        .group_by("pair", maintain_order=True)
        .first()
    )
    total = counted.group_by("pair").agg(pl.col("num").sum().alias("total"))
    return best.join(total, on="pair").select(
        "pair", "kind", (0.5 + 0.5 * pl.col("num") / pl.col("total")).clip(upper_bound=0.99).alias("confidence")
    )


def _label_collectives(voices: pl.DataFrame) -> pl.DataFrame:
    """dp, cp, tp or ep for voices that are neither pipeline nor rare, by rate and by the shape of who talks to whom."""
    talk = voices.filter(pl.col("role").is_in(["exchange", "oneway", "routed"]))
    if talk.is_empty():
        return pl.DataFrame(schema={"pair": pl.UInt32, "size_class": pl.UInt32, "kind": pl.String})
    rates = talk.group_by("pair").agg(
        pl.col("src", "dst").first(),
        pl.col("per_step").sum(),
        (pl.col("role") == "routed").any().alias("routed"),
    )
    dense = _dense_pairs(rates)
    rates = rates.with_columns(pl.Series("dense", np.isin(rates["pair"].to_numpy(), dense)))
    lowest = _lowest_rate_nearby(rates)
    rates = rates.with_columns(pl.Series("lowest", lowest))
    talk = talk.join(rates.select("pair", "routed", "dense", "lowest"), on="pair", how="left")
    frequent = pl.col("per_step") >= _OFTEN * pl.col("lowest")
    kind = (
        pl.when(pl.col("role") == "routed")
        .then(pl.lit("ep"))
        .when(pl.col("dense") & frequent)
        .then(pl.lit("ep"))
        .when(frequent)
        .then(pl.lit("cp"))
        .otherwise(pl.lit("dp"))
    )
    return talk.select("pair", "size_class", kind.alias("kind"))


def _lowest_rate_nearby(rates: pl.DataFrame) -> NDArray[Any]:
    """For each pair, the lowest rate at which either of its endpoints takes part in any collective."""
    both = pl.concat([rates.select(e="src", r="per_step"), rates.select(e="dst", r="per_step")])
    low = both.group_by("e").agg(pl.col("r").min())
    joined = rates.join(low.rename({"e": "src", "r": "a"}), on="src").join(low.rename({"e": "dst", "r": "b"}), on="dst")
    joined = joined.sort("pair")
    order = np.argsort(np.argsort(rates["pair"].to_numpy()))
    lowest: NDArray[np.float64] = np.minimum(joined["a"].to_numpy(), joined["b"].to_numpy())[order]
    return lowest


def _dense_pairs(rates: pl.DataFrame) -> NDArray[Any]:
    """Pairs whose two endpoints share most of their peers: members of an all-to-all group."""
    peers: dict[int, set[int]] = {}
    for s, d in rates.select("src", "dst").iter_rows():
        peers.setdefault(s, set()).add(d)
        peers.setdefault(d, set()).add(s)
    found = []
    for pair, s, d in rates.select("pair", "src", "dst").iter_rows():
        a, b = peers[s] - {d}, peers[d] - {s}
        if len(a) >= 2 and len(b) >= 2 and len(a & b) >= _DENSE * min(len(a), len(b)):
            found.append(pair)
    return np.array(found, dtype=np.int64)

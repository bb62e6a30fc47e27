"""Pairs: the purpose of the traffic between two endpoints, from its sizes, its times and the other participants."""

from __future__ import annotations

import numpy as np
import polars as pl
from numpy.typing import NDArray

from prism.observe import levels
from prism.observe.parallelism.layout_model import LayoutConfig
from prism.observe.traffic.numbering import nearest

_PRESENT = levels.SHARE_HALF  # share of the steps in which training traffic is there
# Messages per step that has any, without a simultaneous answer that make an exchange a pipeline.
_ALONE = levels.SHARE_MAJORITY
_PASSED = levels.SHARE_MAJORITY  # share of a job's hosts that a pipeline passes through, at least
_UNSTEADY = levels.SHARE_NEGLIGIBLE  # relative spread of sizes above which tokens were routed, not tensors sent
_OFTEN = levels.RATIO_FAR  # times more messages per step that distinguish layer-wise traffic from gradients
_LAYERWISE = levels.SAMPLED_SIZES  # messages of one pair per step: more than most pipelines have micro-batches
_THROUGHOUT = levels.SHARE_HALF  # of a step: routed tokens are never silent for longer
_SILENT = levels.SHARE_MAJORITY  # of a step: layer-wise traffic is never silent for longer
# Share of messages that begin while another one is under way: rings send one or two at a time.
_AT_ONCE = levels.SHARE_MAJORITY
_CROWD = levels.MIN_SAMPLES  # peers of an endpoint that make its exchange all-to-all
_SAME_SIZE = levels.SIZE_DIFFERENCE  # of a message that a pipeline sends; a few samples may be off by this much
_ALIKE = levels.SIZE_DIFFERENCE  # of the logarithm of bytes or messages of two connections
_LITTLE = levels.SHARE_NEGLIGIBLE  # of the bytes of the heaviest collective
_SHARD = levels.ONE_PERCENT  # by which shards that are gathered and summed differ in size: headers
_MOSTLY = levels.SHARE_LARGE  # of the bytes that replicas sum
_SIZES = levels.MIN_TWO  # of shards, at least: one may be that of activations by chance
_NUMBERS_BYTES = levels.SMALL_MESSAGE_BYTES  # what is smaller carries a few numbers, such as the norm of gradients


def label_pairs(streams: pl.DataFrame) -> pl.DataFrame:
    """Add `role` and `kind` to each stream; embedding ties and dp are distinguished by stages later.

    Roles: pp, exchange (both ways at once), oneway (a ring), routed (all-to-all), rare.
    """
    streams = label_roles(streams)
    units = _label_collectives(streams)
    kind = (
        pl.when(pl.col("role") == "pp")
        .then(pl.lit("pp"))
        .when(pl.col("role") == "rare")
        .then(pl.lit("unknown"))
        .otherwise(pl.coalesce("kind", pl.lit("unknown")))
    )
    return _with_shards(
        streams.join(units, on="unit", how="left", maintain_order="left").with_columns(kind.alias("kind"))
    )


def _with_shards(streams: pl.DataFrame) -> pl.DataFrame:
    """What is sent layer by layer, in the sizes of what replicas sum, are shards of layers: theirs are gradients, too.

    Stages and context groups send activations, whose sizes are others.
    """
    summed = streams.filter((pl.col("kind") == "dp").any().over("unit") & (pl.col("bytes") >= _NUMBERS_BYTES))
    size, load = (summed.select(c).to_series().to_numpy() for c in (pl.col("bytes"), pl.col("bytes") * pl.col("num")))
    for kind in ("pp", "cp"):
        sent = np.sort(streams.filter(pl.col("kind") == kind)["bytes"].to_numpy())
        if not len(size) or not len(sent):
            continue
        same = np.abs(sent[nearest(sent, size)] / size - 1) <= _SHARD
        if load[same].sum() >= _MOSTLY * load.sum() and len(np.unique(_cut(size[same]))) >= _SIZES:
            own = pl.col("kind") == kind
            streams = streams.with_columns(
                pl.when(own).then(pl.lit("exchange")).otherwise("role").alias("role"),
                pl.when(own).then(pl.lit("dp")).otherwise("kind").alias("kind"),
            )
    return streams


def label_roles(streams: pl.DataFrame) -> pl.DataFrame:
    """Add `role` to each stream."""
    alone = (1 - pl.col("together")) * pl.col("per_step") / pl.col("presence").clip(_PRESENT)
    # Ranks of a ring get out of step by a part of a layer; stages never meet but where they exchange on purpose.
    ring = (pl.col("per_step") > _LAYERWISE) & (pl.col("together") > 0.5)
    role = (
        pl.when((pl.col("presence") < _PRESENT) | (pl.col("bytes") < _NUMBERS_BYTES))
        .then(pl.lit("rare"))
        .when((pl.col("answered") >= 0.5) & (alone >= _ALONE) & (pl.col("together") < 0.97) & ~ring)
        .then(pl.lit("pp"))
        .when((pl.col("spread") > _UNSTEADY) & (pl.col("per_step") > 1.5))
        .then(pl.lit("routed"))
        .when((pl.col("answered") >= 0.5) & (pl.col("together") >= 0.5))
        .then(pl.lit("exchange"))
        .otherwise(pl.lit("oneway"))
    )
    return _without_strays(_with_wraps(_by_likeness(_by_connection(streams.with_columns(role.alias("role"))))))


def _by_likeness(streams: pl.DataFrame) -> pl.DataFrame:
    """Connections that carry as many messages and bytes are of one kind: ranks do alike. Most of them decide."""
    regular = streams.filter(pl.col("role") != "rare")
    load = pl.col("bytes") * pl.col("num")
    units = regular.group_by("unit", maintain_order=True).agg(
        load.sum().alias("load"), pl.col("num").sum(), (load * (pl.col("role") == "pp")).sum().alias("piped")
    )
    piped = (units["piped"] > 0.5 * units["load"]).to_numpy()
    alike = pl.DataFrame({"load": _cut(units["load"].to_numpy()), "num": _cut(units["num"].to_numpy())})
    share = alike.with_columns(pl.Series("piped", piped)).select(pl.col("piped").mean().over("load", "num"))["piped"]
    vote = units.select("unit", pl.Series("pipeline", share > 0.5), pl.Series("changed", (share > 0.5) != piped))
    told = streams.join(vote.filter("changed"), on="unit", how="left", maintain_order="left")
    changed = pl.col("pipeline").is_not_null() & (pl.col("role") != "rare")
    onward, back = changed & pl.col("pipeline"), changed & ~pl.col("pipeline") & (pl.col("role") == "pp")
    turned = pl.when(onward).then(pl.lit("pp")).when(back).then(pl.lit("exchange")).otherwise("role")
    return told.with_columns(turned.alias("role")).drop("pipeline", "changed")


def _cut(values: NDArray[np.float64]) -> NDArray[np.int64]:
    """Numbers for values that differ by little from their neighbours in size."""
    order = np.argsort(values, kind="stable")
    apart = np.diff(np.log(np.maximum(values[order], 1.0))) > _ALIKE
    number = np.empty(len(values), np.int64)
    number[order] = np.concatenate([[0], np.cumsum(apart)]) if len(values) else 0
    return number


def _with_wraps(streams: pl.DataFrame) -> pl.DataFrame:
    """What two hosts of a pipeline exchange in messages of its size is the pipeline's.

    Where stages hold several pieces of the model, the last stage leads back to the first: both then may send at once.
    """
    pipe = streams.filter(pl.col("role") == "pp")
    low, high = pl.min_horizontal("src_host", "dst_host"), pl.max_horizontal("src_host", "dst_host")
    passed = pipe.select(low.alias("low"), high.alias("high"), pl.col("bytes").alias("size"))
    sizes = passed.group_by("low", "high").agg(pl.col("size").min().alias("least"), pl.col("size").max().alias("most"))
    found = streams.select(low.alias("low"), high.alias("high"), "bytes").join(
        sizes, on=["low", "high"], how="left", maintain_order="left"
    )
    alike = found["bytes"].is_between(found["least"] * (1 - _SAME_SIZE), found["most"] * (1 + _SAME_SIZE))
    wrap = streams["role"].is_in(["exchange", "oneway"]) & alike.fill_null(False)
    return streams.with_columns(pl.when(wrap).then(pl.lit("pp")).otherwise("role").alias("role"))


def _by_connection(streams: pl.DataFrame) -> pl.DataFrame:
    """A connection of a pipeline carries nothing else, so what carries most of its bytes decides for all of it."""
    load, piped = pl.col("bytes") * pl.col("num"), pl.col("role") == "pp"
    mostly = (load * piped).sum().over("unit") >= 0.5 * load.sum().over("unit")
    regular = pl.col("role") != "rare"
    role = pl.when(regular & mostly).then(pl.lit("pp")).when(piped).then(pl.lit("exchange")).otherwise("role")
    return streams.with_columns(role.alias("role"))


def _without_strays(streams: pl.DataFrame) -> pl.DataFrame:
    """A pipeline passes through every host; what only some of them seem to have is a collective out of step."""
    pipe, regular = streams.filter(pl.col("role") == "pp"), streams.filter(pl.col("role") != "rare")
    passed, hosts = (pl.concat([v["src_host"], v["dst_host"]]).n_unique() for v in (pipe, regular))
    if pipe.is_empty() or passed >= _PASSED * hosts:
        return streams
    role = pl.when(pl.col("role") == "pp").then(pl.lit("exchange")).otherwise("role")
    return streams.with_columns(role.alias("role"))


def _label_collectives(streams: pl.DataFrame) -> pl.DataFrame:
    """dp, cp, tp or ep for units that are neither pipeline nor rare, by rate and by the shape of who talks to whom."""
    talk = streams.filter(pl.col("role").is_in(["exchange", "oneway", "routed"]))
    if talk.is_empty():
        return pl.DataFrame(schema={"unit": pl.Int64, "kind": pl.String})
    load = pl.col("bytes") * pl.col("num")
    units = talk.group_by("unit", maintain_order=True).agg(
        pl.col("src", "dst").first(),
        pl.col("per_step").sum(),
        pl.col("longest_gap").min(),
        ((pl.col("role") == "routed").cast(pl.Float64) * load).sum().alias("routed") / load.sum(),
        pl.col("overlap").max(),
        load.sum().alias("load"),
        (pl.col("bytes").max().log() / _SAME_SIZE).round().alias("size"),
    )
    # Ranks behind one NIC do alike, however their messages were dealt out to connections.
    units = units.with_columns(pl.col("per_step").mean().over("src", "dst", "size"))
    lowest = _lowest_nearby(units, staged=bool((streams["role"] == "pp").any()))
    units = units.with_columns(pl.Series("lowest", lowest), pl.Series("peers", _count_peers(units)))
    # Buckets of gradients are several too, but they leave one after the other and the rest of the step is silent.
    frequent = (pl.col("per_step") >= _OFTEN * pl.col("lowest")) & (pl.col("longest_gap") < _SILENT)
    # All ranks of a host send to all of another: several at once over one connection, or to several others. Where each
    # sends through the NIC on the rail of its receiver a NIC has one peer, but only tokens come in sizes that vary.
    many = (pl.col("overlap") >= _AT_ONCE) | (pl.col("peers") >= _CROWD)
    routed = (pl.col("routed") > 0.5) & (frequent | ((pl.col("longest_gap") < _THROUGHOUT) & many))
    kind = (
        pl.when(routed | (frequent & (pl.col("peers") >= _CROWD)))
        .then(pl.lit("ep"))
        .when(frequent)
        .then(pl.lit("cp"))
        .otherwise(pl.lit("dp"))
    )
    return units.select("unit", kind.alias("kind"))


def _lowest_nearby(units: pl.DataFrame, *, staged: bool) -> NDArray[np.float64]:
    """For each unit, the lowest rate at which either of its endpoints takes part in any collective that counts."""
    src, dst, rate = (units[c].to_numpy() for c in ("src", "dst", "per_step"))
    num = int(max(src.max(), dst.max())) + 1
    load, heaviest = units["load"].to_numpy(), np.zeros(num)
    for end in (src, dst):
        np.maximum.at(heaviest, end, load)
    # Gradients of a whole model are never little beside what its layers send.
    little = load < _LITTLE * np.minimum(heaviest[src], heaviest[dst])
    # Embeddings are tied once per step: where stages send more than that, it is the gradients that count.
    more = np.zeros(num, np.bool_)
    for end in (src, dst):
        more[end[rate >= 3]] = True
    tie = (rate < 1.5) & more[src] & more[dst] & staged
    low = np.full(num, np.inf)
    for end in (src, dst):
        np.minimum.at(low, end[~(tie | little)], rate[~(tie | little)])
    nearby: NDArray[np.float64] = np.minimum(low[src], low[dst])
    return nearby


def _count_peers(units: pl.DataFrame) -> NDArray[np.int64]:
    """For each unit, how many peers its sender has in units of about the same rate."""
    rate = (units["per_step"].log(2.0)).round().cast(pl.Int32)
    keyed = units.select("src", "dst").with_columns(rate.alias("rate"))
    peers = keyed.group_by("src", "rate").agg(pl.col("dst").n_unique().alias("peers"))
    return keyed.join(peers, on=["src", "rate"], how="left", maintain_order="left")["peers"].to_numpy()


def choose_kind(streams: pl.DataFrame) -> pl.DataFrame:
    """One kind per pair: the one that carries most of its bytes, however many kinds it carries.

    A pair that sends a few numbers only, such as a norm, has the kind of what goes the other way.
    """
    load = (pl.col("kind") != "unknown").cast(pl.Float64) * pl.col("num") * pl.col("bytes")
    counted = streams.group_by("pair", "src", "dst", "kind").agg(load.sum().alias("load"))
    ordered = counted.sort("pair", "load", "kind", descending=[False, True, False])
    chosen = ordered.group_by("pair", maintain_order=True).first()
    back = chosen.select(pl.col("dst").alias("src"), pl.col("src").alias("dst"), pl.col("kind").alias("kind_back"))
    chosen = chosen.join(back, on=["src", "dst"], how="left", maintain_order="left")
    silent = (pl.col("kind") == "unknown") & pl.col("kind_back").is_not_null()
    kind = pl.when(silent).then("kind_back").otherwise("kind")
    # Pairs that carry two kinds were right as often as others: all of 257 in two seeds of proving/benchmarks/world_c.
    sure = pl.when(kind == "unknown").then(levels.SHARE_HALF).otherwise(LayoutConfig().sure)
    return chosen.select("pair", kind.alias("kind"), sure.alias("confidence"))

"""What operators get to see: bursts turned into records as NICs, softflowd, nProbe and sampling switches make them."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import polars as pl

from proving.benchmarks.world.collectives import MTU, STEP_BYTES, wire_bytes
from proving.benchmarks.world.fabric import Fabric
from proving.benchmarks.world.traffic import CODE

EPOCH_NS = 1_790_000_000_000_000_000
ROCE_PORT, NFS_PORT, SSH_PORT = 4791, 2049, 22
ACK_BYTES = 20 + 8 + 12 + 4 + 4  # IP, UDP, BTH, AETH, ICRC
ACK_PACKETS = 16  # data packets that one acknowledgement covers


@dataclass(frozen=True, kw_only=True)
class ExporterConfig:
    """How records are made; `style` is transfers, messages, flows (timeouts) or minutes (sums)."""

    style: str = "transfers"
    idle: float = 0.1
    active: float = 1.0
    resolution_ns: int = 1
    sampling: int = 1
    scaled: bool = True  # the exporter has multiplied by the sampling rate
    loss: float = 0.0
    both_leaves: bool = False  # the leaf of the sender and that of the receiver export the same flow
    clock_spread: float = 0.0  # standard deviation of exporters' clocks, in seconds
    by_pair: bool = False  # one flow per pair of addresses, both directions together (biflows without ports)
    acks: bool = False
    queue_pairs: int = 1  # per connection


def export(config: ExporterConfig, bursts: pl.DataFrame, fabric: Fabric, rng: np.random.Generator) -> pl.DataFrame:
    """The FLOWS table of a capture; `bursts` has the columns of `traffic.COLUMNS` and `job`."""
    leaves = sorted(set(fabric.leaves))
    home = np.array([leaves.index(leaf) for leaf in fabric.leaves])
    clocks = _Clocks(leaves, home, rng.normal(0, config.clock_spread, len(leaves)))
    table = split_queue_pairs(bursts, config.queue_pairs)
    flows = _stamp(config, _observe(config, table, rng), fabric, clocks, "src")
    if config.both_leaves:  # each leaf samples and cuts on its own
        crossing = table.filter(pl.Series(home[table["src"]] != home[table["dst"]]))
        flows = pl.concat([flows, _stamp(config, _observe(config, crossing, rng), fabric, clocks, "dst")])
    if config.loss:
        flows = flows.filter(pl.Series(rng.random(flows.height) >= config.loss))
    if config.by_pair:
        flows = flows.drop("src_port", "dst_port")
    if config.style not in ("transfers", "messages"):
        flows = flows.drop("qp")
    if not (config.both_leaves or config.clock_spread):
        flows = flows.drop("exporter")
    return flows.sort("start_ns", "src", "dst", "bytes")


def _observe(config: ExporterConfig, table: pl.DataFrame, rng: np.random.Generator) -> pl.DataFrame:
    """The records of one exporter, in seconds by the true clock."""
    if config.style == "transfers":
        return join_transfers(table)
    return split_messages(table) if config.style == "messages" else _measure(config, table, rng)


@dataclass(frozen=True)
class _Clocks:
    """The leaf of each address number, and how far each leaf's clock is off, in seconds."""

    leaves: list[str]
    home: np.ndarray
    offset: np.ndarray


def split_queue_pairs(bursts: pl.DataFrame, count: int) -> pl.DataFrame:
    """NCCL spreads a connection's messages over several queue pairs; control traffic and storage use one."""
    if count == 1:
        return bursts.with_columns(pair=pl.lit(0))
    many = (pl.col("payload") > STEP_BYTES) & (pl.col("kind") < CODE["storage"])
    rows = bursts.with_columns(
        pair=pl.when(many).then(pl.int_ranges(0, count)).otherwise(pl.int_ranges(0, 1)), many=many
    )
    rows = rows.explode("pair")
    share = pl.when("many").then((pl.col("payload") / count).floor()).otherwise(pl.col("payload"))
    rest = pl.when(pl.col("many") & (pl.col("pair") == 0)).then(pl.col("payload") - share * count).otherwise(0.0)
    return rows.with_columns(payload=share + rest).filter(pl.col("payload") > 0).drop("many")


def join_transfers(table: pl.DataFrame) -> pl.DataFrame:
    """One record per transfer, from its first to its last packet; bytes are payload (RDMA lengths)."""
    keys = ["job", "transfer", "pair"]
    first = [pl.col(name).first() for name in ("src", "dst", "connection", "kind")]
    times = [pl.col("start").min(), pl.col("end").max(), pl.col("payload").sum().alias("bytes")]
    return table.group_by(keys, maintain_order=True).agg(*first, *times)


def split_messages(table: pl.DataFrame) -> pl.DataFrame:
    """One record per RDMA write: NCCL posts its buffer slot by slot."""
    parts = (pl.col("payload") / STEP_BYTES).ceil().clip(1).cast(pl.Int64)
    rows = table.with_columns(parts=parts, part=pl.int_ranges(0, parts)).explode("part")
    length = (pl.col("end") - pl.col("start")) / pl.col("parts")
    before = (pl.col("payload") * pl.col("part") / pl.col("parts")).round()
    after = (pl.col("payload") * (pl.col("part") + 1) / pl.col("parts")).round()
    start = pl.col("start") + length * pl.col("part")
    return rows.with_columns(start=start, end=start + length * 0.97, bytes=after - before).drop("parts", "part")


def sample_packets(table: pl.DataFrame, rate: int, rng: np.random.Generator) -> pl.DataFrame:
    """One packet in `rate` is seen; a burst's times are those of its first and last seen packet."""
    packets = table["packets"].to_numpy()
    seen = rng.binomial(packets.astype(np.int64), 1 / rate)
    count = np.maximum(seen, 1)
    low = 1 - rng.random(len(seen)) ** (1 / count)  # the least of `count` uniform numbers
    high = np.where(count > 1, low + (1 - low) * rng.random(len(seen)) ** (1 / np.maximum(count - 1, 1)), low)
    start, length = table["start"].to_numpy(), (table["end"] - table["start"]).to_numpy()
    mean = table["bytes"].to_numpy() / packets
    return table.with_columns(
        start=pl.Series(start + low * length),
        end=pl.Series(start + high * length),
        bytes=pl.Series(np.round(seen * mean)),
        packets=pl.Series(seen.astype(float)),
    ).filter(pl.col("packets") > 0)


def _measure(config: ExporterConfig, table: pl.DataFrame, rng: np.random.Generator) -> pl.DataFrame:
    """Packets are counted with their headers, sampled, and gathered by flow."""
    payload = table["payload"].to_numpy()
    rows = table.with_columns(packets=pl.Series(np.ceil(payload / MTU)), bytes=pl.Series(wire_bytes(payload)))
    if config.acks:
        rows = pl.concat([rows, _acknowledgements(rows)], how="diagonal")
    if config.sampling > 1:
        rows = sample_packets(rows, config.sampling, rng)
        if config.scaled:
            rows = rows.with_columns(pl.col("bytes") * config.sampling, pl.col("packets") * config.sampling)
    keys = ["job", "connection", "pair"]
    if config.by_pair:
        ends = [pl.min_horizontal("src", "dst"), pl.max_horizontal("src", "dst")]
        rows = rows.with_columns(job=ends[0].cast(pl.Int64), connection=ends[1].cast(pl.Int64), pair=0)
    if config.style == "minutes":
        return _sum_minutes(rows, keys)
    return cut_by_timeouts(rows, keys, config.idle, config.active)


def _acknowledgements(rows: pl.DataFrame) -> pl.DataFrame:
    """Receivers answer by a flow of their own."""
    count = (pl.col("packets") / ACK_PACKETS).ceil()
    back = rows.filter(pl.col("kind") < CODE["storage"]).with_columns(
        src=pl.col("dst"),
        dst=pl.col("src"),
        connection=pl.col("connection") + 10_000_000,
        packets=count,
        bytes=count * ACK_BYTES,
    )
    return back.with_columns(pl.col("start") + 5e-6, pl.col("end") + 5e-6)


def _sum_minutes(rows: pl.DataFrame, keys: list[str]) -> pl.DataFrame:
    """One record per flow and minute by the wall clock; a burst counts where it begins."""
    minute = (pl.col("start") / 60).floor()
    rows = rows.with_columns(minute=minute)
    total = [pl.col("bytes").sum(), pl.col("packets").sum()]
    first = [pl.col(name).first() for name in ("src", "dst", "kind")]
    summed = rows.group_by([*keys, "minute"], maintain_order=True).agg(*first, *total)
    return summed.with_columns(start=pl.col("minute") * 60, end=pl.col("minute") * 60 + 60)


def cut_by_timeouts(rows: pl.DataFrame, keys: list[str], idle: float, active: float) -> pl.DataFrame:
    """A flow's record ends after `idle` seconds of silence, or `active` seconds after its begin."""
    rows = rows.sort([*keys, "start"])
    same = pl.all_horizontal(pl.col(key) == pl.col(key).shift(1) for key in keys).fill_null(False)
    latest = pl.col("end").cum_max().over(keys)
    fresh = ~same | (pl.col("start") - latest.shift(1) > idle)
    rows = rows.with_columns(stretch=fresh.cum_sum())
    origin = pl.col("start").first().over("stretch")
    first = ((pl.col("start") - origin) / active).floor().cast(pl.Int64)
    last = ((pl.col("end") - origin) / active).floor().cast(pl.Int64)
    rows = rows.with_columns(origin=origin, length=pl.col("end") - pl.col("start"), begin=pl.col("start"))
    rows = rows.with_columns(part=pl.int_ranges(first, last + 1)).explode("part")
    left = pl.max_horizontal(pl.col("start"), pl.col("origin") + pl.col("part") * active)
    right = pl.min_horizontal(pl.col("end"), pl.col("origin") + (pl.col("part") + 1) * active)
    length = pl.col("length").clip(1e-9)
    rows = rows.with_columns(left=left, right=right)
    share = [((pl.col(edge) - pl.col("begin")) / length).clip(0, 1) for edge in ("left", "right")]
    whole = pl.col("length") <= 1e-9
    parts = [
        pl.when(whole)
        .then(pl.col(n))
        .otherwise((pl.col(n) * share[1]).round() - (pl.col(n) * share[0]).round())
        .alias(n)
        for n in ("bytes", "packets")
    ]
    rows = rows.with_columns(parts)
    cut = rows.group_by(["stretch", "part"], maintain_order=True).agg(
        *[pl.col(name).first() for name in (*keys, "src", "dst", "kind")],
        pl.col("left").min().alias("start"),
        pl.col("right").max().alias("end"),
        pl.col("bytes").sum(),
        pl.col("packets").sum(),
    )
    return cut.filter(pl.col("bytes") > 0)


def _stamp(config: ExporterConfig, records: pl.DataFrame, fabric: Fabric, clocks: _Clocks, side: str) -> pl.DataFrame:
    """Addresses, ports, clock and resolution: records as the leaf of one side writes them."""
    where = clocks.home[records[side].to_numpy()]
    step = config.resolution_ns
    times = {}
    for name in ("start", "end"):
        moved = np.round((records[name].to_numpy() + clocks.offset[where]) * 1e9).astype(np.int64)
        times[f"{name}_ns"] = EPOCH_NS + moved // step * step
    names = np.array(fabric.addresses, dtype=object)
    marks = _scramble(records["job"].to_numpy() * 64 + records["pair"].to_numpy(), records["connection"].to_numpy())
    kind = records["kind"].to_numpy()
    port = np.select([kind == CODE["storage"], kind == CODE["noise"]], [NFS_PORT, SSH_PORT], ROCE_PORT)
    table = {
        **times,
        "src": pl.Series(names[records["src"].to_numpy()], dtype=pl.String),
        "dst": pl.Series(names[records["dst"].to_numpy()], dtype=pl.String),
        "bytes": records["bytes"].cast(pl.Int64),
        "src_port": pl.Series((49152 + marks % 16384).astype(np.int32)),
        "dst_port": pl.Series(port.astype(np.int32)),
        "qp": pl.Series(np.where(port == ROCE_PORT, 256 + (marks >> np.uint64(20)).astype(np.int64) % 1_000_000, 0)),
        "exporter": pl.Series(np.array(clocks.leaves, dtype=object)[where], dtype=pl.String),
    }
    if "packets" in records.columns:
        table["packets"] = records["packets"].cast(pl.Int64)
    return pl.DataFrame(table)


def _scramble(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """A number per connection that looks random and is always the same (splitmix64)."""
    with np.errstate(over="ignore"):
        z = a.astype(np.uint64) * np.uint64(0x9E3779B97F4A7C15) + b.astype(np.uint64) * np.uint64(0xD1B54A32D192ED03)
        z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return z ^ (z >> np.uint64(31))

"""Sampled packets put together into transfers: a record of one packet in N is a sample of a transfer, not a flow.

A transfer of n packets shows n/N samples on average, so its size is known to one part in the root of its samples, and
its first and last packet were seen up to one mean gap late and early.
"""

from __future__ import annotations

from dataclasses import dataclass

import polars as pl

from prism.records.flows import FLOWS

_LEAST_ROWS = 20  # fewer records are not enough to recognise samples
_CONNECTION = ("src", "dst", "src_port", "dst_port", "qp")
_SAMPLES = "records are packet samples"
_LN_2 = 0.6931
FEW_SAMPLES = 10.0  # samples of a transfer, below which its size is not known to a third


@dataclass(frozen=True, slots=True, kw_only=True)
class SampleConfig:
    """When a pause between two samples of one connection ends a transfer."""

    # Gaps inside a transfer are exponential: sorted neighbours hardly ever differ threefold if there are many,
    # while a pause between training messages is many times the usual gap.
    least_jump: float = 3.0
    least_times_usual: float = 6.0  # multiple of the mean gap below the jump
    least_gap_ns: int = 100_000  # All samples of one datagram have the same time.
    least_below: float = 0.1  # Share of a connection's gaps that must be inside transfers; fewer are chance.
    least_gaps: int = 5
    least_spread: float = 1.5  # Deviation of gaps over their mean; 1 where samples come at random.
    rare: float = 7.0  # Times the usual gap; exponential gaps are longer once in a thousand.


def find_samples(flows: pl.DataFrame) -> pl.Series:
    """Which records are single packets of a sampled stream: all those of an exporter that sends nothing else."""
    nothing = pl.repeat(False, flows.height, eager=True)
    if flows.height < _LEAST_ROWS or not {"sampling_rate", "packets"} <= set(flows.columns):
        return nothing
    single = (pl.col("sampling_rate") > 1) & (pl.col("packets") == pl.col("sampling_rate"))
    instant = pl.col("end_ns").is_null() | (pl.col("end_ns") == pl.col("start_ns"))
    is_sample = (single & instant).fill_null(False)
    exporter = pl.col("exporter") if "exporter" in flows.columns else pl.lit("")
    marked = flows.select(is_sample.alias("single"), exporter.alias("of"))
    mask = marked.select(pl.col("single").all().over("of")).to_series()
    return mask if int(mask.sum()) >= _LEAST_ROWS else nothing


def put_together(flows: pl.DataFrame, sampled: pl.Series | None = None) -> tuple[pl.DataFrame, tuple[str, ...]]:
    """FLOWS whose samples are joined to transfers, and notes about them; other records are unchanged."""
    sampled = find_samples(flows) if sampled is None else sampled
    if not sampled.any():
        return flows, ()
    transfers = rebuild_transfers(flows.filter(sampled))
    rest = flows.filter(~sampled)
    both = pl.concat([rest, transfers], how="diagonal") if rest.height else transfers
    return both.select(c for c in FLOWS.columns if c in both.columns), describe_samples(transfers)


def rebuild_transfers(samples: pl.DataFrame, config: SampleConfig | None = None) -> pl.DataFrame:
    """FLOWS whose records are transfers; `packets / sampling_rate` is how many samples each was made of."""
    config = config or SampleConfig()
    keys = [c for c in _CONNECTION if c in samples.columns]
    samples = _share_rates(samples.with_columns(pl.struct(keys).rank("dense").alias("_of")).sort("_of", "start_ns"))
    samples = samples.with_columns(pl.col("start_ns").diff().over("_of").alias("_gap"))
    ends = _find_pauses(samples.select("_of", "_gap"), config)
    samples = samples.join(ends, on="_of", how="left", maintain_order="left")
    begins = pl.col("_gap").is_null() | (pl.col("_gap") > pl.col("_pause")).fill_null(True)
    grouped = samples.with_columns(begins.cast(pl.Int64).cum_sum().alias("_transfer")).group_by("_transfer")
    rest = [c for c in samples.columns if c in FLOWS.columns and c not in ("start_ns", "end_ns", "bytes", "packets")]
    made = grouped.agg(
        pl.col("start_ns").min(),
        pl.col("start_ns").max().alias("end_ns"),
        pl.col("bytes", "packets").sum(),
        *(pl.col(c).first() for c in rest),
    )
    return made.select(c for c in FLOWS.columns if c in made.columns).sort("start_ns")


def _share_rates(samples: pl.DataFrame) -> pl.DataFrame:
    """Divide by the exporters: a connection that k of them sample at 1 in N each is sampled at k in N."""
    if "exporter" not in samples.columns:
        return samples
    places = pl.col("exporter").n_unique().over("_of").cast(pl.Int64)
    shared = pl.max_horizontal(pl.col("sampling_rate") // places, pl.lit(1, pl.Int64))
    frame_bytes = pl.col("bytes") // pl.col("sampling_rate").clip(1)
    return samples.with_columns(sampling_rate=shared, bytes=frame_bytes * shared, packets=shared)


def _find_pauses(gaps: pl.DataFrame, config: SampleConfig) -> pl.DataFrame:
    """For each connection the gap above which a transfer has ended; null where its gaps do not fall into two kinds."""
    ordered = gaps.drop_nulls().with_columns(pl.col("_gap").clip(config.least_gap_ns).cast(pl.Float64))
    ordered = ordered.sort("_of", "_gap").with_columns(
        above=pl.col("_gap").shift(-1).over("_of"),
        below=pl.int_range(pl.len()).over("_of") + 1,
        num=pl.len().over("_of"),
    )
    ordered = ordered.with_columns(usual=pl.col("_gap").cum_sum().over("_of") / pl.col("below"))
    split = (
        (pl.col("below") >= config.least_below * pl.col("num"))
        & (pl.col("below") >= config.least_gaps)
        & (pl.col("above") >= config.least_jump * pl.col("_gap"))
        & (pl.col("above") >= config.least_times_usual * pl.col("usual"))
    )
    # The lowest jump: above it are the pauses between messages, and far above these the pauses between steps.
    clear = (
        ordered.filter(split)
        .group_by("_of", maintain_order=True)
        .agg((pl.col("_gap").first() * pl.col("above").first()).sqrt().alias("_pause"))
    )
    # Without a jump, gaps that vary more than chance still come in bursts; a pause is then a gap that chance
    # produces once in a thousand times.
    usual = pl.col("_gap").median() / _LN_2
    spread = pl.col("_gap").std() / pl.col("_gap").mean()
    bursts = ordered.group_by("_of").agg(
        pl.when((spread > config.least_spread) & (pl.len() >= config.least_gaps))
        .then(config.rare * usual)
        .alias("_pause")
    )
    return pl.concat([clear, bursts.join(clear, on="_of", how="anti")])


def describe_samples(transfers: pl.DataFrame) -> tuple[str, ...]:
    """What transfers rebuilt from samples can and cannot show, one line each."""
    if not transfers.height:
        return ()
    usual = samples_per_transfer(transfers)
    rate = int(transfers["sampling_rate"].max() or 1)  # type: ignore[arg-type]
    lines = [
        f"{_SAMPLES}, up to 1 in {rate:,}: rebuilt as {transfers.height:,} transfers of usually "
        f"{usual:,.0f} samples, so sizes are known to {100 / usual**0.5:,.0f} % and times to one gap between samples"
    ]
    if usual < FEW_SAMPLES:
        lines.append(
            f"with {usual:,.0f} samples in a transfer, the records show who talks to whom, but not steps, "
            "degrees or slow links. Sample more often, or export flow records"
        )
    return tuple(lines)


def are_samples(notes: tuple[str, ...]) -> bool:
    """Whether the notes on records say that these were put together from samples."""
    return any(line.startswith(_SAMPLES) for line in notes)


def samples_per_transfer(flows: pl.DataFrame) -> float:
    """Samples that the usual transfer was made of; half of all transfers have fewer."""
    if not flows.height or not {"sampling_rate", "packets"} <= set(flows.columns):
        return float("inf")
    sampled = flows.filter(pl.col("sampling_rate") > 1)
    usual = (sampled["packets"] / sampled["sampling_rate"]).median()
    return max(1.0, float(usual)) if isinstance(usual, (int, float)) else float("inf")

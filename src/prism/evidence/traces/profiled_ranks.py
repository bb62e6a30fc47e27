"""Profiles of all ranks together: clocks, who comes late to collectives, slow kernels, bandwidth.

A collective ends at nearly the same moment on all its members, so its ends align the clocks of ranks even where they
are hours apart. It begins when the last member has come, so that member's kernel shows how long the transfer took, and
how far it came after the others what it cost them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

import polars as pl

from prism.errors import BadFileError, InputError
from prism.evidence.traces.breakdown import (
    BREAKDOWN,
    BUBBLES,
    IDLE_BY_STREAM,
    find_bubbles,
    split_idle_by_stream,
    split_rank,
)
from prism.evidence.traces.intervals import Intervals
from prism.evidence.traces.kineto import Profile, read_profile
from prism.evidence.traces.stragglers import Straggler, find_straggler
from prism.records.calls import CALLS
from prism.records.spans import SPANS

LATENESS = pl.Schema({"rank": pl.Int32, "calls": pl.Int64, "last": pl.Int64, "held_ns": pl.Int64})
BANDWIDTH = pl.Schema(
    {
        "collective": pl.String,
        "bytes": pl.Int64,
        "group_size": pl.Int64,
        "calls": pl.Int64,
        "median_us": pl.Float64,
        "algorithm_gbps": pl.Float64,
        "bus_gbps": pl.Float64,
    }
)
SLOW_KERNELS = pl.Schema(
    {"rank": pl.Int32, "name": pl.String, "calls": pl.Int64, "mean_us": pl.Float64, "usual_us": pl.Float64}
)
_MESSAGES = ("send_recv",)  # between two ranks; the trace does not name them


@dataclass(frozen=True, slots=True, kw_only=True)
class RanksConfig:
    """When a difference between ranks is worth a word."""

    slow_kernel_ratio: float = 1.1  # of a kernel's mean time to its median over ranks
    slow_kernel_share: float = 0.02  # of the rank's compute that such a kernel must make up
    clock_off_ns: int = 1_000_000_000


@dataclass(frozen=True, slots=True, kw_only=True)
class ProfiledRank:
    """What is kept of one rank's profile: small, so that hundreds of ranks fit."""

    rank: int
    world_size: int | None
    on_gpu: bool
    breakdown: pl.DataFrame
    idle_by_stream: pl.DataFrame
    bubbles: pl.DataFrame
    collectives: pl.DataFrame
    kernels: pl.DataFrame  # of compute: name, calls, total_ns
    notes: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class ProfiledJob:
    """All ranks' profiles together."""

    ranks: tuple[int, ...]
    breakdown: pl.DataFrame
    idle_by_stream: pl.DataFrame
    bubbles: pl.DataFrame
    clock_offset_ns: dict[int, int]  # what to subtract from a rank's times
    calls: pl.DataFrame  # CALLS, on one clock
    lateness: pl.DataFrame
    straggler: Straggler | None  # the rank that comes last most, and whether that is more than chance
    bandwidth: pl.DataFrame
    slow_kernels: pl.DataFrame
    notes: tuple[str, ...]


def study_rank(profile: Profile) -> ProfiledRank:
    """Reduce one rank's profile to what comparing ranks needs."""
    compute = profile.work.filter(pl.col("what") == "compute")
    kernels = compute.group_by("name").agg(calls=pl.len(), total_ns=(pl.col("end_ns") - pl.col("start_ns")).sum())
    columns = ("step", "collective", "group", "group_size", "bytes", "start_ns", "end_ns")
    calls = profile.work.filter((pl.col("what") == "communication") & (pl.col("end_ns") > pl.col("start_ns")))
    return ProfiledRank(
        rank=profile.rank,
        world_size=profile.world_size,
        on_gpu=profile.on_gpu,
        breakdown=split_rank(profile),
        idle_by_stream=split_idle_by_stream(profile),
        bubbles=find_bubbles(profile),
        collectives=calls.select(pl.lit(profile.rank, pl.Int32).alias("rank"), *columns),
        kernels=kernels.with_columns(rank=pl.lit(profile.rank, pl.Int32)),
        notes=profile.notes,
    )


def study_files(paths: Iterable[Path], *, say: Callable[[str], None] = lambda text: None) -> ProfiledJob:
    """Read traces one after the other; a bad one among many is a note."""
    ranks: dict[int, ProfiledRank] = {}
    notes: list[str] = []
    for path in paths:
        try:
            found = study_rank(read_profile(path))
        except InputError as error:
            notes.append(str(error))
            continue
        if found.rank in ranks:
            raise BadFileError(f"{path}: rank {found.rank} has another trace here; give one folder per job")
        ranks[found.rank] = found
        say(f"profile of rank {found.rank}")
    if not ranks:
        raise BadFileError(notes[0] if notes else "no profiles")
    return compare_ranks([ranks[r] for r in sorted(ranks)], notes)


def compare_ranks(
    ranks: Sequence[ProfiledRank], notes: Sequence[str] = (), config: RanksConfig | None = None
) -> ProfiledJob:
    """Lay the profiles of all ranks side by side."""
    config = config or RanksConfig()
    told = [*notes, *(n for r in ranks for n in r.notes[:1])][:20]
    matched = _match_calls(ranks, told)
    offsets = _find_clocks(matched)
    off = [r for r, ns in offsets.items() if abs(ns) > config.clock_off_ns]
    if off:
        such = f"rank {off[0]} by {offsets[off[0]] / 1e9:.1f} s"
        told.append(
            f"clocks of {len(off)} ranks are over a second off, such as {such}; aligned by the ends of collectives"
        )
    aligned = _align(matched, offsets)
    return ProfiledJob(
        ranks=tuple(r.rank for r in ranks),
        breakdown=pl.concat([r.breakdown for r in ranks]) if ranks else pl.DataFrame(schema=BREAKDOWN),
        idle_by_stream=pl.concat([r.idle_by_stream for r in ranks]) if ranks else pl.DataFrame(schema=IDLE_BY_STREAM),
        bubbles=pl.concat([r.bubbles for r in ranks]) if ranks else pl.DataFrame(schema=BUBBLES),
        clock_offset_ns=offsets,
        calls=_write_calls(aligned),
        lateness=_find_lateness(aligned),
        straggler=find_straggler(aligned) if aligned.height else None,
        bandwidth=_find_bandwidth(matched if matched.height else pl.concat([r.collectives for r in ranks]), ranks),
        slow_kernels=_find_slow_kernels(ranks, config),
        notes=tuple(told),
    )


def _match_calls(ranks: Sequence[ProfiledRank], notes: list[str]) -> pl.DataFrame:
    """Which kernels of different ranks are one call: the n-th of a kind in a step and group."""
    calls = pl.concat([r.collectives for r in ranks])
    whole = calls.filter(~pl.col("collective").is_in(_MESSAGES).fill_null(True) | pl.col("group").is_null())
    keys = ["step", "group", "collective"]
    numbered = whole.sort("start_ns").with_columns(number=pl.int_range(pl.len()).over("rank", *keys))
    # Traces that name no groups are matched only where all ranks show the same calls, else any match would be a guess.
    counts = numbered.group_by("rank", *keys).agg(count=pl.len(), known=pl.col("group").is_not_null().all())
    even = counts.group_by(keys).agg(
        same=pl.col("count").n_unique() == 1, ranks=pl.len(), known=pl.col("known").first()
    )
    everywhere = pl.col("same") & (pl.col("ranks") == len(ranks))
    usable = even.filter((pl.col("ranks") > 1) & (pl.col("known") | everywhere))
    if len(ranks) > 1 and usable.height < even.height:
        notes.append(f"{even.height - usable.height} of {even.height} kinds of calls cannot be matched between ranks")
    matched = numbered.join(usable.select(keys), on=keys, nulls_equal=True)
    return matched.with_columns(members=pl.len().over(*keys, "number")).filter(pl.col("members") > 1)


def _find_clocks(matched: pl.DataFrame) -> dict[int, int]:
    """How far each rank's clock is from the first one's: the median difference of the ends of calls."""
    if matched.is_empty():
        return {}
    end = pl.col("end_ns") - matched["end_ns"].min()  # small numbers, of which a median is exact
    middle = end.median().over("step", "group", "collective", "number")
    found = matched.with_columns(off=end - middle).group_by("rank").agg(pl.col("off").median()).sort("rank")
    first = found["off"][0]
    return {rank: round(off - first) for rank, off in found.iter_rows()}


def _align(matched: pl.DataFrame, offsets: dict[int, int]) -> pl.DataFrame:
    if matched.is_empty():
        return matched.with_columns(last_ns=pl.lit(None, pl.Int64))
    off = pl.col("rank").replace_strict(offsets, return_dtype=pl.Int64)
    moved = matched.with_columns(pl.col("start_ns") - off, pl.col("end_ns") - off)
    return moved.with_columns(last_ns=pl.col("start_ns").max().over("step", "group", "collective", "number"))


def _write_calls(aligned: pl.DataFrame) -> pl.DataFrame:
    made = aligned.select(
        job=pl.lit("profile"),
        step="step",
        group=pl.coalesce("group", pl.lit("all")),
        kind=pl.lit("unknown"),
        member=pl.col("rank").cast(pl.String),
        ready_ns="start_ns",
        start_ns=pl.min_horizontal("last_ns", "end_ns"),
        end_ns="end_ns",
        bytes="bytes",
    )
    return made.select(pl.col(c).cast(t) for c, t in CALLS.required.items())


def _find_lateness(aligned: pl.DataFrame) -> pl.DataFrame:
    """How often each rank came last, and how long its peers, at the median, waited for it."""
    if aligned.is_empty():
        return pl.DataFrame(schema=LATENESS)
    key = ("step", "group", "collective", "number")
    is_last = pl.col("start_ns") == pl.col("last_ns")
    since = pl.col("start_ns") - aligned["start_ns"].min()
    before = since.sort().slice(0, pl.len() - 1).median().over(*key).cast(pl.Int64)
    late = aligned.with_columns(is_last=is_last, from_ns=before, to_ns=since)
    rows = []
    for (rank,), own in late.group_by(["rank"]):
        last = own.filter("is_last")
        # Two collectives that wait at once cost the peers their time only once.
        held = Intervals.union(last["from_ns"].to_numpy(), last["to_ns"].to_numpy()).total_ns
        rows.append((rank, own.height, last.height, held))
    return pl.DataFrame(rows, schema=LATENESS, orient="row").sort("held_ns", descending=True)


def _find_bandwidth(calls: pl.DataFrame, ranks: Sequence[ProfiledRank]) -> pl.DataFrame:
    """Bytes over the time of the member that waits least, as NCCL's own tests count it."""
    calls = calls.filter(pl.col("bytes").is_not_null() & (pl.col("bytes") > 0))
    if calls.is_empty():
        return pl.DataFrame(schema=BANDWIDTH)
    world = next((r.world_size for r in ranks if r.world_size), None)
    length = pl.col("end_ns") - pl.col("start_ns")
    if "number" in calls.columns:
        keys = ["step", "group", "collective", "number"]
        size = pl.coalesce("group_size", pl.lit(world, pl.Int64), "members")
        calls = (
            calls.with_columns(group_size=size)
            .group_by(keys)
            .agg(length.min().alias("ns"), pl.col("bytes").max(), pl.col("group_size").first())
        )
    else:
        calls = calls.with_columns(ns=length, group_size=pl.coalesce("group_size", pl.lit(world, pl.Int64)))
    n = pl.col("group_size")
    factor = (
        pl.when(pl.col("collective") == "all_reduce")
        .then(2 * (n - 1) / n)
        .when(pl.col("collective").is_in(["all_gather", "reduce_scatter", "all_to_all"]))
        .then((n - 1) / n)
        .otherwise(1.0)
    )
    found = calls.group_by("collective", "bytes", "group_size").agg(calls=pl.len(), ns=pl.col("ns").median())
    rate = pl.col("bytes") / pl.col("ns")  # bytes a nanosecond are gigabytes a second
    return (
        found.with_columns(median_us=pl.col("ns") / 1000, algorithm_gbps=rate, bus_gbps=rate * factor)
        .sort("bytes", descending=True)
        .select(pl.col(c).cast(t) for c, t in BANDWIDTH.items())
    )


def _find_slow_kernels(ranks: Sequence[ProfiledRank], config: RanksConfig) -> pl.DataFrame:
    """Kernels that take longer on one rank than on the median rank, where three or more ran them."""
    kernels = pl.concat([r.kernels for r in ranks])
    share = pl.col("total_ns") / pl.col("total_ns").sum().over("rank")
    usual = pl.col("mean_us").median().over("name")
    return (
        kernels.with_columns(mean_us=pl.col("total_ns") / pl.col("calls") / 1000, share=share)
        .with_columns(usual_us=usual, seen=pl.len().over("name"))
        .filter(
            (pl.col("seen") >= 3)
            & (pl.col("mean_us") > config.slow_kernel_ratio * pl.col("usual_us"))
            & (pl.col("share") > config.slow_kernel_share)
        )
        .sort((pl.col("mean_us") - pl.col("usual_us")) * pl.col("calls"), descending=True)
        .select(pl.col(c).cast(t) for c, t in SLOW_KERNELS.items())
    )


def write_spans(profile: Profile, *, job: str = "profile") -> pl.DataFrame:
    """One rank's profile as SPANS, with its steps."""
    kind = (
        pl.col("what")
        .cast(pl.String)
        .replace_strict({"compute": "compute", "communication": "unknown", "memory": "host"})
    )
    named = pl.when(pl.col("collective").is_not_null()).then("collective").otherwise("name")
    lane = pl.lit("stream ") + pl.col("lane")
    work = profile.work.select("step", "start_ns", "end_ns", "bytes", "group", kind=kind, name=named, lane=lane)
    steps = profile.steps.select(
        *("step", "start_ns", "end_ns"),
        *(pl.lit(None, pl.Int64).alias("bytes"), pl.lit(None, pl.String).alias("group")),
        *(pl.lit("step").alias("kind"), pl.format("step {}", "step").alias("name"), pl.lit("steps").alias("lane")),
    )
    both = pl.concat([steps, work], how="vertical_relaxed").with_columns(job=pl.lit(job), rank=pl.lit(profile.rank))
    return both.select(pl.col(c).cast(t) for c, t in SPANS.required.items())

"""NCCL Inspector files: one JSON object a line for each collective of each rank, with its time and bandwidth.

Written from the sources of `ext-profiler/inspector`: format v4.0 of NVIDIA/nccl, and a file of v4.3 whose repository is
not known; v4.1 and v4.2 were not seen. Up to v4.2 every line holds `header`, `metadata` and `coll_perf` or `p2p_perf`;
v4.0 writes only the last collective before each dump. In v4.3 a line with `dump_stats` holds `header` and `metadata`
for all lines that follow. The rank in a header is that of the communicator, not of the job.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

import polars as pl

from prism.errors import BadFileError
from prism.records.shape import columns

INSPECTED = columns(
    {
        "communicator": pl.String,
        "rank": pl.Int64,
        "size": pl.Int64,
        "host": pl.String,
        "pid": pl.Int64,
        "collective": pl.String,
        "number": pl.Int64,
        "bytes": pl.Int64,
        "exec_us": pl.Float64,
        "timing": pl.String,
        "bus_gbps": pl.Float64,
    }
)
WAITED_FOR = pl.Schema(
    {"rank": pl.Int64, "host": pl.String, "calls": pl.Int64, "last": pl.Int64, "held_us": pl.Float64}
)
_LINE = columns(
    {
        "header": pl.Struct({"id": pl.String, "rank": pl.Int64, "n_ranks": pl.Int64}),
        "metadata": pl.Struct({"hostname": pl.String, "pid": pl.Int64}),
        "coll_perf": pl.Struct(
            {
                "coll": pl.String,
                "coll_sn": pl.Int64,
                "coll_msg_size_bytes": pl.Int64,
                "coll_exec_time_us": pl.Float64,
                "coll_timing_source": pl.String,
                "coll_busbw_gbs": pl.Float64,
            }
        ),
    }
)


def looks_like_inspector(path: Path) -> bool:
    """Whether a file begins as Inspector's do."""
    if path.suffix not in (".log", ".json", ".jsonl"):
        return False
    with path.open("rb") as handle:
        head = handle.read(4096)
    return head.lstrip()[:1] == b"{" and (b'"coll_perf"' in head or b'"inspector_output_format_version"' in head)


def read_inspector(paths: Iterable[Path]) -> pl.DataFrame:
    """INSPECTED rows of all files; the last line of a process that died may be half."""
    frames = []
    for path in paths:
        try:
            data = path.read_bytes()
            lines = pl.read_ndjson(data[: data.rfind(b"\n") + 1], schema=_LINE, ignore_errors=True)
        except (OSError, pl.exceptions.PolarsError) as error:
            raise BadFileError(f"{path}: cannot be read as JSON lines ({str(error)[:80]})") from None
        header, place, perf = (pl.col(c).struct for c in ("header", "metadata", "coll_perf"))
        frames.append(
            lines.select(
                communicator=header.field("id").forward_fill(),
                rank=header.field("rank").forward_fill(),
                size=header.field("n_ranks").forward_fill(),
                host=place.field("hostname").forward_fill(),
                pid=place.field("pid").forward_fill(),
                collective=perf.field("coll"),
                number=perf.field("coll_sn"),
                bytes=perf.field("coll_msg_size_bytes"),
                exec_us=perf.field("coll_exec_time_us"),
                timing=perf.field("coll_timing_source").fill_null("unknown"),
                bus_gbps=perf.field("coll_busbw_gbs"),
            ).drop_nulls(["communicator", "rank", "number", "exec_us"])
        )
    return pl.concat(frames) if frames else pl.DataFrame(schema=INSPECTED)


def find_waited_for(inspected: pl.DataFrame) -> pl.DataFrame:
    """WAITED_FOR: how often a process waited least in its communicators' calls, and how long its peers waited for it.

    Its rank is that of the largest communicator, and null where it has none there.
    """
    # Times of different clocks do not compare: a kernel's begins on the GPU, a collective's with the host's call.
    call = ("communicator", "number", "collective", "timing")
    present = pl.col("rank").n_unique().over(*call)
    full = inspected.filter((present > 1) & (2 * present >= pl.col("size")))
    if full.is_empty():
        return pl.DataFrame(schema=WAITED_FOR)
    process = ("host", "pid")
    in_world = inspected.filter(pl.col("size") == pl.col("size").max())
    world = in_world.group_by(*process).agg(pl.col("rank").first(), pl.col("rank").n_unique().alias("ranks"))
    world = world.filter(pl.col("ranks") == 1).drop("ranks")  # One process may hold several ranks of a host.
    shortest = pl.col("exec_us").min().over(*call)
    others = pl.col("exec_us").median().over(*call)
    return (
        full.with_columns(is_last=pl.col("exec_us") == shortest, held=others - shortest)
        .group_by(*process)
        .agg(calls=pl.len(), last=pl.col("is_last").sum(), held_us=pl.col("held").filter("is_last").sum())
        .join(world, on=process, how="left", nulls_equal=True)
        .sort("held_us", descending=True)
        .select(*WAITED_FOR)
        .cast(dict(WAITED_FOR))  # type: ignore[arg-type]
    )

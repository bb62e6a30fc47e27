"""NCCL Inspector files: one JSON object a line for each collective of each rank, with its time and bandwidth."""

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
        "collective": pl.String,
        "number": pl.Int64,
        "bytes": pl.Int64,
        "exec_us": pl.Float64,
        "bus_gbps": pl.Float64,
    }
)
WAITED_FOR = pl.Schema(
    {"rank": pl.Int64, "host": pl.String, "calls": pl.Int64, "last": pl.Int64, "held_us": pl.Float64}
)
_LINE = columns(
    {
        "header": pl.Struct({"id": pl.String, "rank": pl.Int64, "n_ranks": pl.Int64}),
        "metadata": pl.Struct({"hostname": pl.String}),
        "coll_perf": pl.Struct(
            {
                "coll": pl.String,
                "coll_sn": pl.Int64,
                "coll_msg_size_bytes": pl.Int64,
                "coll_exec_time_us": pl.Float64,
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
    return head.lstrip()[:1] == b"{" and b'"coll_perf"' in head


def read_inspector(paths: Iterable[Path]) -> pl.DataFrame:
    """INSPECTED rows of all files; the last line of a process that died may be half."""
    frames = []
    for path in paths:
        try:
            data = path.read_bytes()
            lines = pl.read_ndjson(data[: data.rfind(b"\n") + 1], schema=_LINE, ignore_errors=True)
        except (OSError, pl.exceptions.PolarsError) as error:
            raise BadFileError(f"{path}: cannot be read as JSON lines ({str(error)[:80]})") from None
        header, perf = pl.col("header").struct, pl.col("coll_perf").struct
        frames.append(
            lines.select(
                communicator=header.field("id"),
                rank=header.field("rank"),
                size=header.field("n_ranks"),
                host=pl.col("metadata").struct.field("hostname"),
                collective=perf.field("coll"),
                number=perf.field("coll_sn"),
                bytes=perf.field("coll_msg_size_bytes"),
                exec_us=perf.field("coll_exec_time_us"),
                bus_gbps=perf.field("coll_busbw_gbs"),
            ).drop_nulls(["communicator", "rank", "number", "exec_us"])
        )
    return pl.concat(frames) if frames else pl.DataFrame(schema=INSPECTED)


def find_waited_for(inspected: pl.DataFrame) -> pl.DataFrame:
    """WAITED_FOR: how often a rank waited least in its communicator's calls, and how long its peers waited for it."""
    call = ("communicator", "number", "collective")
    full = inspected.filter(pl.col("rank").n_unique().over(*call) > 1)
    if full.is_empty():
        return pl.DataFrame(schema=WAITED_FOR)
    shortest = pl.col("exec_us").min().over(*call)
    others = pl.col("exec_us").median().over(*call)
    return (
        full.with_columns(is_last=pl.col("exec_us") == shortest, held=others - shortest)
        .group_by("rank", "host")
        .agg(calls=pl.len(), last=pl.col("is_last").sum(), held_us=pl.col("held").filter("is_last").sum())
        .sort("held_us", descending=True)
        .cast(dict(WAITED_FOR))  # type: ignore[arg-type]
    )

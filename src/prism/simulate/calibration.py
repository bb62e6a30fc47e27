"""Measured collectives: a table of points, read from Parquet, CSV, JSON or what nccl-tests prints."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

import polars as pl

from prism.errors import BadFileError, BadRowError
from prism.records.shape import Shape
from prism.simulate.transfer_model import TRANSFER_KINDS

CALIBRATION = Shape(
    name="calibration",
    required=pl.Schema(
        {
            "backend": pl.String(),
            "kind": pl.Enum(TRANSFER_KINDS),
            "num_ranks": pl.Int32(),
            "num_hosts": pl.Int32(),
            "bytes": pl.Int64(),  # as OPS counts them; nccl-tests prints the same in its size column
            "duration_ns": pl.Int64(),
        }
    ),
)

# What the programs of nccl-tests measure, by the name each announces.
NCCL_TESTS = {
    "all_reduce": "all_reduce",
    "all_gather": "all_gather",
    "reduce_scatter": "reduce_scatter",
    "broadcast": "broadcast",
    "reduce": "reduce",
    "alltoall": "all_to_all",
    "sendrecv": "send",
    "gather": "gather",
    "scatter": "scatter",
}


@dataclass(frozen=True, eq=False)
class Calibration:
    """Measured points of one backend, in the shape CALIBRATION."""

    backend: str
    points: pl.DataFrame


def calibration_of(points: pl.DataFrame, where: str = "calibration") -> Calibration:
    """Check a table of points and wrap it."""
    frame = CALIBRATION.conform(points, where)
    if frame.is_empty():
        raise BadFileError(f"{where}: no measured points; run `prism calibrate` or nccl-tests and give its output")
    checks = {
        "num_ranks": pl.col("num_ranks") >= 1,
        "num_hosts": (pl.col("num_hosts") >= 1) & (pl.col("num_hosts") <= pl.col("num_ranks")),
        "bytes": pl.col("bytes") >= 0,
        "duration_ns": pl.col("duration_ns") > 0,
    }
    for column, good in checks.items():
        row = frame.select((~good).arg_max()).item()
        if not frame.select(good.all()).item():
            raise BadRowError(f"{where} row {row + 1}: '{column}' is {frame[column][row]}, which cannot be")
    backends = frame["backend"].unique(maintain_order=True).to_list()
    if len(backends) > 1:
        raise BadRowError(f"{where}: measured on {backends[0]} and on {backends[1]}; keep one backend per file")
    return Calibration(backends[0], frame)


def read_calibration(path: str | Path, *, kind: str | None = None) -> Calibration:
    """Read measured points; `kind` says what an nccl-tests output measured where it does not say so itself."""
    path = Path(path)
    if not path.is_file():
        raise BadFileError(f"{path}: no such calibration file")
    try:
        match path.suffix.lower():
            case ".parquet":
                frame = pl.read_parquet(path)
            case ".csv":
                frame = pl.read_csv(path, comment_prefix="#")
            case ".json":
                frame = pl.read_json(path)
            case _:
                frame = parse_nccl_tests(path.read_text("utf-8"), str(path), kind=kind)
    except (pl.exceptions.PolarsError, OSError, UnicodeDecodeError, RuntimeError) as error:
        reason = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise BadFileError(f"{path}: not a {path.suffix.removeprefix('.') or 'text'} file ({reason})") from None
    return calibration_of(frame, str(path))


def write_calibration(calibration: Calibration, path: str | Path) -> None:
    """Write measured points as Parquet, CSV or JSON, by the file's ending."""
    path = Path(path)
    frame = calibration.points
    match path.suffix.lower():
        case ".parquet":
            frame.write_parquet(path)
        case ".csv":
            frame.write_csv(path)
        case ".json":
            frame.write_json(path)
        case _:
            raise BadFileError(f"{path}: a calibration is written as .parquet, .csv or .json")


def parse_nccl_tests(text: str, where: str = "nccl-tests", *, kind: str | None = None) -> pl.DataFrame:
    """The points in what an nccl-tests program printed; out-of-place times."""
    kind = kind or _measured_kind(text) or _measured_kind(Path(where).name)
    if kind is None:
        raise BadFileError(f"{where}: does not say which collective it measured; pass its kind, such as all_reduce")
    ranks = re.findall(r"^#\s+Rank\s+\d+\s.*?\bon\s+(\S+)\s+device", text, re.MULTILINE)
    if not ranks:
        raise BadFileError(f"{where}: no '# Rank ...' lines, so not what nccl-tests prints")
    rows, time_column = [], None
    for number, line in enumerate(text.splitlines(), 1):
        words = line.lstrip("#").split()
        if line.startswith("#") and words[:2] == ["size", "count"] and "time" in words:
            time_column = words.index("time")
        elif time_column is not None and words and words[0].isdecimal() and not line.startswith("#"):
            rows.append(_point(words, time_column, f"{where} line {number}"))
    points = pl.DataFrame(rows, schema={"bytes": pl.Int64, "duration_ns": pl.Int64}, orient="row")
    return points.filter(pl.col("duration_ns") > 0).with_columns(
        backend=pl.lit("nccl"),
        kind=pl.lit(kind),
        num_ranks=pl.lit(len(ranks)),
        num_hosts=pl.lit(len(set(ranks))),
    )


def _measured_kind(text: str) -> str | None:
    """The collective of a program name such as all_reduce_perf in `text`."""
    for program in re.findall(r"([a-z_]+?)_perf", text):
        if program in NCCL_TESTS:
            return NCCL_TESTS[program]
    return None


def _point(words: list[str], time_column: int, where: str) -> tuple[int, int]:
    try:
        size, microseconds = int(words[0]), float(words[time_column])
    except (IndexError, ValueError):
        found = " ".join(words)[:60]
        raise BadRowError(f"{where}: expected a size and a time in microseconds, found {found!r}") from None
    if not 0 <= microseconds < 1e12 or size >= 2**63:
        raise BadRowError(f"{where}: {words[0]} bytes in {words[time_column]} microseconds cannot be")
    return size, round(microseconds * 1000)


def bus_bandwidth_to_ns(kind: str, num_ranks: int, num_bytes: int, gb_per_s: float) -> int:
    """The duration behind a bus bandwidth as nccl-tests defines it."""
    factor = {"all_reduce": 2 * (num_ranks - 1) / num_ranks, "broadcast": 1.0, "reduce": 1.0, "send": 1.0}
    return round(factor.get(kind, (num_ranks - 1) / num_ranks) * num_bytes / gb_per_s)

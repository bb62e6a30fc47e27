"""Table files: their format recognised, scanned lazily, written; what is wrong with one is said in a line."""

from __future__ import annotations

import gzip
import json
from collections.abc import Iterable
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from typing import Any

import polars as pl

from prism.errors import BadFileError

_SNIFF_BYTES = 1 << 16


class Format(Enum):
    """A table format and the endings it goes by."""

    PARQUET = (".parquet", ".pq")
    CSV = (".csv", ".csv.gz", ".tsv", ".txt")
    JSONL = (".jsonl", ".ndjson", ".json")
    ARROW = (".arrow", ".ipc", ".feather")

    @property
    def first_row(self) -> tuple[str, int]:
        """How a row is named to a user, and the number of the first one."""
        return {Format.CSV: ("line", 2), Format.JSONL: ("line", 1)}.get(self, ("row", 1))


def expand(paths: str | Path | Iterable[str | Path]) -> list[Path]:
    """The table files meant by files and folders, in name order; a folder counts every table file below it."""
    given = [paths] if isinstance(paths, (str, Path)) else list(paths)
    files: list[Path] = []
    for entry in map(Path, given):
        if entry.is_dir():
            inside = sorted(p for p in entry.rglob("*") if p.is_file() and _format_by_name(p))
            if not inside:
                raise BadFileError(f"{entry}: no table files in this folder; expected {_endings()}")
            files.extend(inside)
        elif entry.exists():
            files.append(entry)
        else:
            raise BadFileError(f"{entry}: no such file; check the path")
    if not files:
        raise BadFileError("no files given; name at least one file or folder")
    return files


def recognise(path: Path) -> Format:
    """The format of a file, by its first and last bytes rather than its name; raises on what cannot be a table."""
    try:
        size = path.stat().st_size
        with path.open("rb") as handle:
            head = handle.read(_SNIFF_BYTES)
            handle.seek(max(0, size - 8))
            tail = handle.read(8)
    except OSError as error:
        raise BadFileError(f"{path}: cannot be read ({error.strerror}); check its permissions") from None
    if size == 0:
        raise BadFileError(f"{path}: the file is empty; export it again")
    named = _format_by_name(path)
    if head.startswith(b"PAR1") or named is Format.PARQUET:
        if not head.startswith(b"PAR1"):
            raise BadFileError(f"{path}: not a Parquet file (it does not start with PAR1); export it again")
        if not tail.endswith(b"PAR1"):
            raise BadFileError(f"{path}: truncated Parquet file (its footer is missing); copy or export it again")
        return Format.PARQUET
    if head.startswith(b"ARROW1"):
        if not tail.endswith(b"ARROW1"):
            raise BadFileError(f"{path}: truncated Arrow file (its footer is missing); copy or export it again")
        return Format.ARROW
    if named is Format.ARROW:
        raise BadFileError(f"{path}: not an Arrow IPC file (it does not start with ARROW1); export it again")
    if head.startswith(b"\x1f\x8b"):
        head = _first_gzip_bytes(path)
    if b"\0" in head:
        place = head.index(b"\0")
        raise BadFileError(f"{path} byte {place}: a zero byte where text was expected; this is not a CSV or JSON file")
    if b"\n" not in head and size > len(head):
        raise BadFileError(
            f"{path}: no line break in the first {len(head)} bytes; this is not a CSV or JSON Lines file"
        )
    return Format.JSONL if head.lstrip(b"\xef\xbb\xbf \t\r\n").startswith(b"{") else Format.CSV


def scan(path: Path, fmt: Format, schema: dict[str, Any] | None = None) -> pl.LazyFrame:
    """A lazy frame over one file; text columns of CSV stay text unless `schema` types them."""
    if fmt is Format.PARQUET:
        return pl.scan_parquet(path, glob=False)
    if fmt is Format.ARROW:
        return pl.scan_ipc(path)
    if fmt is Format.JSONL:
        return pl.scan_ndjson(path, schema_overrides=schema, infer_schema_length=10_000)
    separator = "\t" if path.suffix == ".tsv" else ","
    return pl.scan_csv(
        path,
        separator=separator,
        infer_schema=False,
        schema_overrides=schema,
        truncate_ragged_lines=True,
        glob=False,
    )


def read_columns(path: Path, fmt: Format) -> pl.Schema:
    """The columns of a file; raises BadFileError where it cannot be opened as what it claims to be."""
    try:
        schema = scan(path, fmt).collect_schema()
    except (pl.exceptions.PolarsError, OSError) as error:
        raise BadFileError(f"{path}: {_first_line(error)}; export it again") from None
    if len(schema) == 0:
        raise BadFileError(f"{path}: no columns; the first line must name them")
    return schema


def collect(lazy: pl.LazyFrame, path: Path) -> pl.DataFrame:
    """Collect, turning what the engine says of a broken file into one line."""
    try:
        return lazy.collect()
    except (pl.exceptions.PolarsError, OSError) as error:
        raise BadFileError(f"{path}: {_first_line(error)}; export it again") from None


@dataclass(frozen=True, slots=True, kw_only=True)
class JsonLines:
    """Objects of a JSON Lines file as text columns, their line numbers, and the lines that are not objects."""

    frame: pl.DataFrame
    lines: list[int]
    bad_lines: list[tuple[int, str]]


def read_json_lines(path: Path) -> JsonLines:
    """Read JSON Lines one by one, to find the lines that a whole-file parser only complains about."""
    rows: list[dict[str, str | None]] = []
    lines: list[int] = []
    bad: list[tuple[int, str]] = []
    with path.open(encoding="utf-8-sig", errors="replace") as handle:
        for number, line in enumerate(handle, start=1):
            if not line.strip():
                continue
            try:
                record = json.loads(line)
            except (ValueError, RecursionError) as error:
                bad.append((number, f"not valid JSON ({getattr(error, 'msg', 'nested too deeply')})"))
                continue
            if not isinstance(record, dict):
                bad.append((number, "not a JSON object"))
                continue
            lines.append(number)
            rows.append({k: v if v is None or isinstance(v, str) else json.dumps(v) for k, v in record.items()})
    names = dict.fromkeys(key for row in rows for key in row)
    frame = pl.DataFrame({name: pl.Series([row.get(name) for row in rows], dtype=pl.String) for name in names})
    return JsonLines(frame=frame, lines=lines, bad_lines=bad)


def write(frame: pl.DataFrame, path: Path) -> None:
    """Write a frame in the format its name asks for."""
    fmt = _format_by_name(path)
    if fmt is None:
        raise BadFileError(f"{path}: unknown ending '{path.suffix}'; use one of {_endings()}")
    if fmt is Format.CSV and any(isinstance(t, (pl.List, pl.Struct)) for t in frame.schema.values()):
        raise BadFileError(f"{path}: this table holds lists, which CSV cannot; write .parquet or .jsonl")
    path.parent.mkdir(parents=True, exist_ok=True)
    if fmt is Format.PARQUET:
        frame.write_parquet(path)
    elif fmt is Format.ARROW:
        frame.write_ipc(path, compression="zstd")
    elif fmt is Format.JSONL:
        frame.write_ndjson(path)
    else:
        frame.write_csv(path, separator="\t" if path.suffix == ".tsv" else ",")


def _format_by_name(path: Path) -> Format | None:
    name = path.name.lower()
    return next((f for f in Format if name.endswith(f.value)), None)


def _endings() -> str:
    return ", ".join(ending for f in Format for ending in f.value)


def _first_gzip_bytes(path: Path) -> bytes:
    try:
        with gzip.open(path) as handle:
            return handle.read(_SNIFF_BYTES)
    except (OSError, EOFError) as error:
        raise BadFileError(f"{path}: broken gzip file ({error}); copy it again") from None


def _first_line(error: Exception) -> str:
    text = str(error).strip()
    return text.splitlines()[0] if text else type(error).__name__

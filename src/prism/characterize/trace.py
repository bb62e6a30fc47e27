"""A job trace on disk: what kind of file it is, which columns it has, and its rows in batches of text."""

from __future__ import annotations

import hashlib
import mmap
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import polars as pl

from prism.characterize.columns import PAI_TASK_COLUMNS, ColumnMap, map_columns, squash
from prism.characterize.philly import read_philly_json
from prism.errors import BadFileError, BadRowError

BATCH_ROWS = 1_250_000
HASHED_BYTES = 1 << 30  # larger files are not hashed: no public job trace is that large

# Job traces whose bytes are known. The Kalos digest is pinned in a public script that uses the AcmeTrace release.
KNOWN_TRACES = {
    "7c5a7845da1d66448fa668342e4ecb622fd9a005118080660ec3ad2788d4c9bf": "AcmeTrace trace_kalos.csv, public release",
}

_FOREIGN = (
    (b"PK\x03\x04", "a zip archive or spreadsheet"),
    (b"\x89PNG", "an image"),
    (b"%PDF", "a PDF"),
    (b"SQLite format", "a database"),
    (b"\x80\x04", "a pickle"),
    (b"\x80\x05", "a pickle"),
    (b"version https://git-lfs", "a Git LFS pointer, not the file itself"),
)
_PACKED = (b"\x1f\x8b", b"\x28\xb5\x2f\xfd")  # gzip, zstd: Polars unpacks both


@dataclass(frozen=True, slots=True, kw_only=True)
class Trace:
    """An opened job trace; nothing but its first lines has been read."""

    path: Path
    kind: str  # csv, parquet or philly-json
    columns: ColumnMap
    table: pl.DataFrame | None = None  # rows of a format that can only be read whole
    separator: str = ","
    header: tuple[str, ...] | None = None  # given where the file has no header line
    quoted: bool = True  # False: no cell is in quotes, so that rows can be split faster
    lossy: bool = False  # text that is not UTF-8 is read with its bad bytes replaced
    sha256: str | None = None  # filled in by who has the time to hash the file

    @property
    def known_as(self) -> str | None:
        """The public trace that this file is, byte for byte."""
        return KNOWN_TRACES.get(self.sha256 or "")


def open_trace(path: Path, *, lossy: bool = False) -> Trace:
    """Look at a file's first bytes and header, and map its columns."""
    if path.is_dir():
        raise BadFileError(f"{path}: is a folder; give the job table itself")
    try:
        with path.open("rb") as file:
            head = file.read(65_536)
    except OSError as error:
        raise BadFileError(f"{path}: cannot be read ({error.strerror}); check the path") from None
    if head.startswith(b"PAR1"):
        try:
            names = pl.read_parquet_schema(path)
        except (pl.exceptions.PolarsError, OSError) as error:
            raise BadFileError(f"{path}: broken Parquet file ({_first_line(error)}); export it again") from None
        return Trace(path=path, kind="parquet", columns=map_columns(list(names), str(path)))
    if head.lstrip()[:1] in (b"[", b"{"):
        table = read_philly_json(path)
        columns = map_columns(table.columns, str(path))
        return Trace(path=path, kind="philly-json", columns=columns, table=table)
    packed = head.startswith(_PACKED)
    separator, header, named = _sniff(_unpack_head(path) if packed else head, path, lossy)
    return Trace(
        path=path,
        kind="csv",
        columns=map_columns(header, str(path)),
        separator=separator,
        header=None if named else tuple(header),
        quoted=packed or _has_quotes(path),
        lossy=lossy,
    )


def read_batches(
    trace: Trace, *, skip_bad_rows: bool = False, without: frozenset[str] = frozenset(), rows: int | None = None
) -> Iterator[pl.DataFrame]:
    """The trace's mapped columns as text, named by field, in batches; `rows` stops after the first so many."""
    column_of = {field: column for field, column in trace.columns.column_of.items() if field not in without}
    fields = [pl.col(column).cast(pl.String).alias(field) for field, column in column_of.items()]
    try:
        if trace.table is not None:
            yield trace.table.head(rows or trace.table.height).select(fields)
            return
        lazy = pl.scan_parquet(trace.path) if trace.kind == "parquet" else _scan_csv(trace, skip_bad_rows)
        lazy = lazy if rows is None else lazy.head(rows)
        yield from lazy.select(fields).collect_batches(chunk_size=BATCH_ROWS, maintain_order=True, engine="streaming")
    except (pl.exceptions.PolarsError, OSError) as error:
        raise _explain(trace, error) from None


def hash_file(path: Path) -> str | None:
    """SHA-256 of a file's bytes; None for one larger than any public job trace."""
    if path.stat().st_size > HASHED_BYTES:
        return None
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


class NotUtf8Error(BadFileError):
    """Text in another encoding; reading again with `lossy` gets through it."""


def _has_quotes(path: Path) -> bool:
    """Whether a text file holds a double quote anywhere; a very large one is taken to."""
    if path.stat().st_size > HASHED_BYTES:
        return True
    with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as text:
        return text.find(b'"') >= 0


def _scan_csv(trace: Trace, skip_bad_rows: bool) -> pl.LazyFrame:
    return pl.scan_csv(
        trace.path,
        separator=trace.separator,
        has_header=trace.header is None,
        new_columns=list(trace.header) if trace.header else None,
        infer_schema=False,
        quote_char='"' if trace.quoted else None,
        encoding="utf8-lossy" if trace.lossy else "utf8",
        truncate_ragged_lines=skip_bad_rows,
        glob=False,
    )


def _sniff(head: bytes, path: Path, lossy: bool) -> tuple[str, list[str], bool]:
    """The separator and column names of a text table, and whether its first line is the header."""
    if head.startswith((b"\xff\xfe", b"\xfe\xff")):
        raise BadFileError(f"{path}: is UTF-16 text; save it as UTF-8, for example with: iconv -f UTF-16 -t UTF-8")
    foreign = next((what for magic, what in _FOREIGN if head.startswith(magic)), None)
    if foreign is None and b"\x00" in head:
        foreign = "binary"
    if foreign is None and head.lstrip()[:9].lower().startswith((b"<!doctype", b"<html", b"<?xml")):
        foreign = "a web page or XML"
    if foreign:
        raise BadFileError(f"{path}: is {foreign}, not a job table; give a CSV or Parquet file")
    if not head.strip():
        raise BadFileError(f"{path}: is empty; export the job table again")
    line = head.split(b"\n", 1)[0].rstrip(b"\r")
    try:
        text = line.decode("utf-8-sig", errors="replace" if lossy else "strict")
    except UnicodeDecodeError:
        raise NotUtf8Error(f"{path} line 1: the header is not UTF-8 text; save the file as UTF-8") from None
    separator = max(",|\t;", key=text.count)
    names = [name.strip().strip('"') for name in text.split(separator)]
    if len(names) == len(PAI_TASK_COLUMNS) and squash(names[3]) in ("terminated", "failed", "running", "waiting"):
        return separator, list(PAI_TASK_COLUMNS), False
    if len(names) < 3:
        raise BadFileError(
            f"{path} line 1: {text[:60]!r} is not a header of a job table; give a CSV with named columns"
        )
    return separator, names, True


def _unpack_head(path: Path) -> bytes:
    """First lines of a compressed CSV, as text again."""
    try:
        rows = (
            pl.scan_csv(path, has_header=False, separator="\x01", quote_char=None, infer_schema=False).head(2).collect()
        )
    except (pl.exceptions.PolarsError, OSError) as error:
        raise BadFileError(f"{path}: cannot be unpacked ({_first_line(error)}); unpack it and give the CSV") from None
    return "\n".join(row or "" for row in rows.to_series()).encode()


def _explain(trace: Trace, error: Exception) -> BadFileError | BadRowError:
    """Polars' reasons in a user's words."""
    text = str(error)
    if "utf-8" in text.lower() or "utf8" in text.lower():
        return NotUtf8Error(f"{trace.path}: holds text that is not UTF-8; save it as UTF-8")
    if "more fields than defined" in text or "ragged" in text:
        return BadRowError(
            f"{trace.path}: a row has more fields than the header has columns; mend it or pass --skip-bad-rows"
        )
    return BadFileError(f"{trace.path}: cannot be read as a table ({_first_line(error)}); export it again")


def _first_line(error: Exception) -> str:
    return (str(error).strip().splitlines() or ["no reason given"])[0][:200]

"""A job trace on disk: its kind of file, its columns, and its rows in batches of text."""

from __future__ import annotations

import hashlib
import mmap
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import polars as pl

from prism.datacenter.characterize import accounting, pai, slurm, swf
from prism.datacenter.characterize.columns import Choices, ColumnMap, count_known, map_columns, squash
from prism.datacenter.characterize.documents import read_json_table
from prism.errors import BadFileError, MissingExtraError, say_install
from prism.records.long_rows import find_extra_values

BATCH_ROWS = 1_250_000
EXTRA = "_extra"  # the first value of a row that has no column
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
    """An opened job trace; only its first lines have been read."""

    path: Path
    kind: str  # csv, parquet, or the name of a format that can only be read whole
    columns: ColumnMap
    table: pl.DataFrame | None = None  # rows of a format that can only be read whole
    separator: str = ","
    header: tuple[str, ...] | None = None  # given where the file has no header line
    quoted: bool = True  # False: no cell is in quotes, so that rows can be split faster
    lossy: bool = False  # text that is not UTF-8 is read with its bad bytes replaced
    extra: pl.Series | None = None  # by row, the first value that has no column; None where no row has one
    strict: bool = False  # rows with more values than columns could not be looked for; one stops the reading
    sha256: str | None = None  # filled in by who has the time to hash the file

    @property
    def known_as(self) -> str | None:
        """The public trace that this file is, byte for byte."""
        return KNOWN_TRACES.get(self.sha256 or "")


@dataclass(frozen=True, slots=True, kw_only=True)
class OpenOptions:
    """A user's settings for a table's columns."""

    choices: Choices = field(default_factory=dict)  # --map
    columns: tuple[str, ...] = ()  # names of the columns of a table without a header line
    names: Mapping[str, tuple[str, ...]] = field(default_factory=dict)  # a caller's own fields and what they are called
    lossy: bool = False

    def map(self, header: Sequence[str], path: Path) -> ColumnMap:
        """The columns of a header."""
        return map_columns(header, str(path), self.choices, self.names)


def open_trace(path: Path, options: OpenOptions | None = None) -> Trace:
    """Read a file's first bytes and header, and map its columns."""
    options = options or OpenOptions()
    if path.is_dir():
        if not pai.is_pai_folder(path):
            raise BadFileError(f"{path}: is a folder; give the job table itself")
        return _hold(path, "pai-tables", pai.read_pai_folder(path), options, pai.NOTE)
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
        return Trace(path=path, kind="parquet", columns=options.map(list(names), path))
    if head.lstrip(b"\xef\xbb\xbf \t\r\n")[:1] in (b"[", b"{"):
        return _hold(path, "json", read_json_table(path), options)
    packed = head.startswith(_PACKED)
    if packed:
        head = _unpack_head(path)
    _refuse_foreign(head, path)
    if not packed and slurm.has_ruler(head):
        return _hold(path, "fixed-width", slurm.read_fixed_width(_read_text(path), str(path)), options)
    if not packed and accounting.looks_like_pbs(head):
        return _hold(path, "pbs", accounting.read_pbs(_read_text(path), str(path)), options, accounting.NOTE)
    if not packed and swf.looks_like_swf(head):
        table, parts = swf.read_swf(_read_text(path), str(path))
        said = (
            f" {parts:,} lines are stretches of jobs that other lines give as a whole, and were left out."
            if parts
            else ""
        )
        return _hold(path, "swf", table, options, swf.NOTE + said)
    separator, header, named = _sniff(head, path, options)
    strict, extra = False, None
    try:
        extra = find_extra_values(path, separator, len(header) - (header[-1] == ""), named=named)
    except MissingExtraError:
        strict = True  # zstd, which only Polars can unpack here
    return Trace(
        path=path,
        kind="csv",
        columns=options.map(header, path),
        separator=separator,
        header=None if named else tuple(header),
        quoted=packed or _has_quotes(path),
        lossy=options.lossy,
        extra=extra,
        strict=strict,
    )


def _hold(path: Path, kind: str, table: pl.DataFrame, options: OpenOptions, note: str | None = None) -> Trace:
    """A trace that was read whole."""
    columns = options.map(table.columns, path)
    if note:
        columns = replace(columns, format=kind, note=note, unit_stated=True)
    return Trace(path=path, kind=kind, columns=columns, table=table)


def _read_text(path: Path) -> str:
    return path.read_bytes().decode("utf-8-sig", errors="replace")


def read_batches(
    trace: Trace, *, without: frozenset[str] = frozenset(), rows: int | None = None
) -> Iterator[pl.DataFrame]:
    """The trace's mapped columns as text, named by field, in batches; `rows` stops after the first so many.

    A table with rows that have more values than columns gets the column `EXTRA`.
    """
    column_of = {field: column for field, column in trace.columns.column_of.items() if field not in without}
    fields = [_pick(name, column, trace.columns) for name, column in column_of.items()]
    try:
        if trace.table is not None:
            yield trace.table.head(rows or trace.table.height).select(fields)
            return
        lazy = pl.scan_parquet(trace.path) if trace.kind == "parquet" else _scan_csv(trace)
        lazy = lazy if rows is None else lazy.head(rows)
        batches = lazy.select(fields).collect_batches(chunk_size=BATCH_ROWS, maintain_order=True, engine="streaming")
        if trace.extra is None:
            yield from batches
            return
        begin = 0
        for batch in batches:
            yield batch.with_columns(trace.extra[begin : begin + batch.height].alias(EXTRA))
            begin += batch.height
    except (pl.exceptions.PolarsError, OSError) as error:
        raise _explain(trace, error) from None


def _pick(name: str, column: str, columns: ColumnMap) -> pl.Expr:
    """A field's column as text; for a Slurm job without allocated GPUs, the requested ones."""
    text = pl.col(column).cast(pl.String)
    asked = next((other for other in columns.outranked if squash(other) == "reqtres"), None)
    if name == "gpus" and squash(column) == "alloctres" and asked is not None:
        text = pl.coalesce(pl.when(text != "").then(text), pl.col(asked).cast(pl.String))
    return text.alias(name)


def hash_file(path: Path) -> str | None:
    """SHA-256 of a file's bytes; None for a folder, or a file larger than any public job trace."""
    if path.is_dir() or path.stat().st_size > HASHED_BYTES:
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


def _scan_csv(trace: Trace) -> pl.LazyFrame:
    return pl.scan_csv(
        trace.path,
        separator=trace.separator,
        has_header=trace.header is None,
        new_columns=list(trace.header) if trace.header else None,
        infer_schema=False,
        quote_char='"' if trace.quoted else None,
        encoding="utf8-lossy" if trace.lossy else "utf8",
        truncate_ragged_lines=not trace.strict,  # `extra` says where
        glob=False,
    )


def _refuse_foreign(head: bytes, path: Path) -> None:
    """The kind of a file that is not a table, for the error message."""
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


def _sniff(head: bytes, path: Path, options: OpenOptions) -> tuple[str, list[str], bool]:
    """The separator and column names of a text table, and whether its first line is the header."""
    lines = head.split(b"\n")
    try:
        text = lines[0].rstrip(b"\r").decode("utf-8-sig", errors="replace" if options.lossy else "strict")
    except UnicodeDecodeError:
        raise NotUtf8Error(f"{path} line 1: the header is not UTF-8 text; save the file as UTF-8") from None
    separator = max(",|\t;^", key=text.count)
    names = [name.strip().strip('"') for name in text.split(separator)]
    if options.columns:
        if len(options.columns) not in (len(names), len(names) - 1):
            raise BadFileError(
                f"{path} line 1: has {len(names)} columns, but --columns names {len(options.columns)}; name them all"
            )
        first_is_header = [squash(name) for name in names[: len(options.columns)]] == [
            squash(c) for c in options.columns
        ]
        # `sacct --parsable` ends every line with a separator, which makes one more column.
        return separator, [*options.columns, *[""] * (len(names) - len(options.columns))], first_is_header
    if len(names) == len(pai.TASK_COLUMNS) and squash(names[3]) in pai.STATES:
        return separator, list(pai.TASK_COLUMNS), False
    if (len(names) == len(pai.JOB_COLUMNS) and squash(names[3]) in pai.STATES) or names == list(pai.JOB_COLUMNS):
        raise BadFileError(
            f"{path}: is PAI's job table, which has no GPU counts; give the folder that also holds {pai.TASK_FILE}"
        )
    if len(names) < 2:
        raise BadFileError(
            f"{path} line 1: {text[:60]!r} is not a header of a job table; give a CSV with named columns"
        )
    if slurm.is_header(names) or count_known(names) > 1:
        return separator, names, True
    whole = lines[:-1] if len(lines) > 1 else lines
    rows = [line.rstrip(b"\r").decode("utf-8", errors="replace").split(separator) for line in whole[:500]]
    found = slurm.name_columns([row for row in rows if len(row) == len(names)], str(path))
    return separator, found, False


def _unpack_head(path: Path) -> bytes:
    """First lines of a compressed CSV, as text again."""
    try:
        rows = (
            pl.scan_csv(path, has_header=False, separator="\x01", quote_char=None, infer_schema=False)
            .head(200)
            .collect()
        )
    except (pl.exceptions.PolarsError, OSError) as error:
        raise BadFileError(f"{path}: cannot be unpacked ({_first_line(error)}); unpack it and give the CSV") from None
    return "\n".join(row or "" for row in rows.to_series()).encode()


def _explain(trace: Trace, error: Exception) -> BadFileError:
    """Polars' error messages in terms of the file."""
    text = str(error)
    if "utf-8" in text.lower() or "utf8" in text.lower():
        return NotUtf8Error(f"{trace.path}: holds text that is not UTF-8; save it as UTF-8")
    if trace.strict and "more fields than" in text:
        return BadFileError(
            f"{trace.path}: has rows with more values than columns; to see which, unpack the file,"
            f" or: {say_install('zstd')}"
        )
    return BadFileError(f"{trace.path}: cannot be read as a table ({_first_line(error)}); export it again")


def _first_line(error: Exception) -> str:
    return (str(error).strip().splitlines() or ["no reason given"])[0][:200]

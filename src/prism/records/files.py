"""Table files: recognises their format, scans them lazily, writes them, and explains broken ones in one line."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from typing import Any

import polars as pl

from prism.errors import BadFileError, BadRowError
from prism.records import compression
from prism.records.delimited import is_delimited_protobuf
from prism.records.json_tables import flatten, read_json
from prism.records.long_rows import describe_extra, find_extra_values
from prism.records.text_tables import TextTable, find_text_table

_SNIFF_BYTES = 1 << 16


class Format(Enum):
    """How a file holds its records."""

    PARQUET = "parquet"
    CSV = "csv"  # and every other text of rows and separators
    JSONL = "jsonl"
    JSON = "json"  # one array of objects, or objects over several lines
    ARROW = "arrow"
    ARROW_STREAM = "arrow stream"
    PACKETS = "packets"  # pcap, pcapng
    NFCAPD = "nfcapd"  # what nfcapd and nfdump -w write
    SFLOWTOOL = "sflowtool"
    GOFLOW = "goflow2 protobuf"


_ENDINGS = {
    Format.PARQUET: (".parquet", ".pq"),
    Format.CSV: (".csv", ".tsv", ".txt", ".log"),
    Format.JSONL: (".jsonl", ".ndjson", ".json"),
    Format.ARROW: (".arrow", ".ipc", ".feather", ".arrows"),
    Format.PACKETS: (".pcap", ".pcapng", ".cap"),
    Format.GOFLOW: (".pb", ".bin"),
}
_WRITTEN = (Format.PARQUET, Format.CSV, Format.JSONL, Format.ARROW)
_MAGIC = {
    b"\xd4\xc3\xb2\xa1": Format.PACKETS,
    b"\xa1\xb2\xc3\xd4": Format.PACKETS,
    b"\x4d\x3c\xb2\xa1": Format.PACKETS,
    b"\xa1\xb2\x3c\x4d": Format.PACKETS,
    b"\x0a\x0d\x0d\x0a": Format.PACKETS,
    b"\x0c\xa5\x01\x00": Format.NFCAPD,
    b"\x0c\xa5\x02\x00": Format.NFCAPD,
    b"\xa5\x0c\x00\x01": Format.NFCAPD,
    b"\xff\xff\xff\xff": Format.ARROW_STREAM,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Expanded:
    """The files to read, and one line for each file of the folders that holds no records."""

    files: list[Path]
    left_out: tuple[str, ...] = ()


def expand(paths: str | Path | Iterable[str | Path]) -> Expanded:
    """The files given, and those below the folders given, in order of name."""
    given = [paths] if isinstance(paths, (str, Path)) else list(paths)
    files: list[Path] = []
    left_out: list[str] = []
    for entry in map(Path, given):
        if entry.is_dir():
            everything = sorted(p for p in entry.rglob("*") if p.is_file())
            inside = [p for p in everything if holds_records(p)]
            left_out += [
                f"{p}: neither its name nor its content is that of flow records"
                for p in everything
                if p not in set(inside)
            ]
            if not inside:
                raise BadFileError(f"{entry}: no table files in this folder; expected {_all_endings()}")
            files.extend(inside)
        elif entry.exists():
            files.append(entry)
        else:
            raise BadFileError(f"{entry}: no such file; check the path")
    if not files:
        raise BadFileError("no files given; name at least one file or folder")
    return Expanded(files=files, left_out=tuple(left_out))


def holds_records(path: Path) -> bool:
    """Whether to read a file of a folder: judged by its ending, or by content that only records have."""
    if _format_by_name(path) is not None:
        return True
    try:
        fmt = recognise(path)
    except BadFileError:
        return False
    return fmt is not Format.CSV or find_text_table(_head_text(path), str(path)).columns is not None


def recognise(path: Path) -> Format:
    """The format of a file, by its first and last bytes rather than its name; raises on what cannot be records."""
    try:
        size = path.stat().st_size
        with path.open("rb") as handle:
            head = handle.read(_SNIFF_BYTES)
            handle.seek(max(0, size - 8))
            tail = handle.read(8)
    except IsADirectoryError:
        raise BadFileError(f"{path}: is a folder; give the file itself") from None
    except OSError as error:
        raise BadFileError(f"{path}: cannot be read ({error.strerror}); check the path and its permissions") from None
    if size == 0:
        raise BadFileError(f"{path}: the file is empty; export it again")
    if compression.is_compressed(head):
        head = compression.unpack(path, _SNIFF_BYTES)
        tail = b""  # The end is checked when the whole is read.
    named = _format_by_name(path)
    if head.startswith(b"PAR1") or named is Format.PARQUET:
        if not head.startswith(b"PAR1"):
            raise BadFileError(f"{path}: not a Parquet file (it does not start with PAR1); export it again")
        if tail and not tail.endswith(b"PAR1"):
            raise BadFileError(f"{path}: truncated Parquet file (its footer is missing); copy or export it again")
        return Format.PARQUET
    if head.startswith(b"ARROW1"):
        if tail and not tail.endswith(b"ARROW1"):
            raise BadFileError(f"{path}: truncated Arrow file (its footer is missing); copy or export it again")
        return Format.ARROW
    known = next((fmt for magic, fmt in _MAGIC.items() if head.startswith(magic)), None)
    if known is not None:
        return known
    if named is Format.ARROW:
        raise BadFileError(f"{path}: not an Arrow IPC file (it does not start with ARROW1); export it again")
    if is_delimited_protobuf(head):
        return Format.GOFLOW
    return _recognise_text(path, head, size)


def _recognise_text(path: Path, head: bytes, size: int) -> Format:
    if head.startswith((b"\xff\xfe", b"\xfe\xff")):
        raise BadFileError(f"{path}: UTF-16 text; convert it: iconv -f utf-16 -t utf-8 {path.name}")
    if b"\0" in head:
        place = head.index(b"\0")
        raise BadFileError(f"{path} byte {place}: a zero byte where text was expected; this is not a CSV or JSON file")
    text = head.lstrip(b"\xef\xbb\xbf \t\r\n")
    if not text and size == len(head):
        raise BadFileError(f"{path}: the file is empty; export it again")
    if text.startswith(b"startDatagram =") or (text.startswith((b"{", b"[")) and b'"datagramSourceIP"' in text[:2000]):
        return Format.SFLOWTOOL
    if text.startswith(b"["):
        return Format.JSON
    if b"\n" not in head and b"\r" in head:
        raise BadFileError(
            f"{path}: its lines end with carriage returns only; convert it: tr '\\r' '\\n' < {path.name}"
        )
    if b"\n" not in head and size > len(head):
        raise BadFileError(
            f"{path}: no line break in the first {len(head)} bytes; this is not a CSV or JSON Lines file"
        )
    if not text.startswith(b"{"):
        return Format.CSV
    first_line = text.partition(b"\n")[0].strip()
    return Format.JSONL if first_line.endswith(b"}") or b"\n" not in text.strip() else Format.JSON


def scan(path: Path, fmt: Format, schema: dict[str, Any] | None = None) -> pl.LazyFrame:
    """A lazy frame over one file; text columns of CSV stay text unless `schema` types them."""
    source: Path | bytes = path
    if _is_packed(path):
        source = compression.unpack(path)
    if fmt is Format.PARQUET:
        return pl.scan_parquet(source, glob=False)
    if fmt is Format.ARROW:
        return pl.scan_ipc(source)
    if fmt is Format.ARROW_STREAM:
        return pl.read_ipc_stream(source).lazy()
    if fmt is Format.JSONL:
        return flatten(pl.scan_ndjson(source, schema_overrides=schema, infer_schema_length=10_000))
    if fmt is Format.JSON:
        return read_json(path, source if isinstance(source, bytes) else path.read_bytes()).lazy()
    if fmt is not Format.CSV:
        raise BadFileError(f"{path}: {fmt.value} is no table; read it with prism flows, prism diagnose or prism watch")
    return _scan_text(source, find_text_table(_head_text(path), str(path)), schema)


def _scan_text(source: Path | bytes, table: TextTable, schema: dict[str, Any] | None) -> pl.LazyFrame:
    lazy = pl.scan_csv(
        source,
        separator=table.separator,
        has_header=table.columns is None,
        new_columns=list(table.columns) if table.columns else None,
        comment_prefix=table.comment,
        null_values=list(table.absent) or None,
        quote_char=table.quote,
        infer_schema=False,
        schema_overrides=None if table.padded else schema,
        truncate_ragged_lines=True,
        glob=False,
    )
    if not table.padded:
        return lazy
    names = [n for n in lazy.collect_schema().names() if n.strip() and not n.startswith("_duplicated_")]
    return lazy.select(pl.col(n).str.strip_chars().alias(n.strip()) for n in names)


def first_row(path: Path, fmt: Format) -> tuple[str, int]:
    """The word for a row of a file in messages ("line" or "row"), and the number of the first row."""
    if fmt is Format.CSV:
        return "line", find_text_table(_head_text(path), str(path)).first_line
    return ("line", 1) if fmt is Format.JSONL else ("row", 1)


def ends_cut(path: Path) -> bool:
    """Whether a text table stops inside its last row: it has no line end there, and fewer values than columns."""
    if _is_packed(path):
        return False  # A compressed file that was cut cannot be unpacked.
    head = _head_text(path)
    with path.open("rb") as handle:
        handle.seek(max(0, path.stat().st_size - _SNIFF_BYTES))
        last = handle.read().decode("utf-8", errors="replace").rpartition("\n")[2]
    table = find_text_table(head, str(path))
    if not last.strip() or (table.comment and last.startswith(table.comment)):
        return False
    return table.count_values(last) < table.count_columns(head)


def find_long_rows(path: Path) -> pl.Series | None:
    """By row of a text table, the first value that has no column; None where no row has one."""
    head = _head_text(path)
    table = find_text_table(head, str(path))
    first_line = head.lstrip("\r\n").partition("\n")[0].rstrip("\r ")
    unnamed = table.columns is None and first_line.endswith(table.separator)
    return find_extra_values(
        path,
        table.separator,
        table.count_columns(head) - unnamed,
        named=table.columns is None,
        quote=table.quote,
        comment=table.comment,
    )


def read_whole(path: Path) -> pl.DataFrame:
    """All rows of a table; a row of a text table that has more values than columns is refused."""
    fmt = recognise(path)
    rows = collect(scan(path, fmt), path)
    extra = find_long_rows(path) if fmt is Format.CSV else None
    if extra is not None:
        row = int(extra.is_not_null().arg_true()[0])
        raise BadRowError(f"{path} line {first_row(path, fmt)[1] + row}: {describe_extra(extra[row])}; fix the row")
    return rows


def read_text(path: Path) -> str:
    """The whole of a text file, unpacked."""
    return read_content(path).decode("utf-8-sig", errors="replace")


def read_content(path: Path) -> bytes:
    """The whole of a file, unpacked."""
    return compression.unpack(path) if _is_packed(path) else path.read_bytes()


def _is_packed(path: Path) -> bool:
    with path.open("rb") as handle:
        return compression.is_compressed(handle.read(8))


def _head_text(path: Path) -> str:
    if _is_packed(path):
        head = compression.unpack(path, _SNIFF_BYTES)
    else:
        with path.open("rb") as handle:
            head = handle.read(_SNIFF_BYTES)
    return head.decode("utf-8-sig", errors="replace")


def read_columns(path: Path, fmt: Format) -> pl.Schema:
    """The columns of a file; raises BadFileError where it cannot be opened as what it claims to be."""
    try:
        schema = scan(path, fmt).collect_schema()
    except (pl.exceptions.PolarsError, OSError) as error:
        raise BadFileError(_explain(error, path)) from None
    if len(schema) == 0:
        raise BadFileError(f"{path}: no columns; the first line must name them")
    return schema


def collect(lazy: pl.LazyFrame, path: Path) -> pl.DataFrame:
    """Collect; an error of the engine on a broken file becomes one line."""
    try:
        return lazy.collect()
    except (pl.exceptions.PolarsError, OSError) as error:
        raise BadFileError(_explain(error, path)) from None


def write(frame: pl.DataFrame, path: Path) -> None:
    """Write a frame in the format its name asks for."""
    fmt = next((f for f in _WRITTEN if path.name.lower().endswith(_ENDINGS[f])), None)
    if fmt is None:
        written = ", ".join(e for f in _WRITTEN for e in _ENDINGS[f])
        raise BadFileError(f"{path}: unknown ending '{path.suffix}'; use one of {written}")
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
    name = compression.without_ending(path.name.lower())
    return next((fmt for fmt, endings in _ENDINGS.items() if name.endswith(endings)), None)


def _all_endings() -> str:
    return ", ".join(ending for endings in _ENDINGS.values() for ending in endings)


def _explain(error: Exception, path: Path) -> str:
    """What is wrong with a file, in one line: the first line of the parser's error, or the place of bad text."""
    text = str(error).strip()
    if "utf-8" in text.lower():
        try:
            read_content(path).decode()
        except UnicodeDecodeError as broken:
            line = broken.object.count(b"\n", 0, broken.start) + 1
            return f"{path} line {line}: not UTF-8 text; convert it, for example: iconv -f latin1 -t utf-8 {path.name}"
    return f"{path}: {text.splitlines()[0] if text else type(error).__name__}; export it again"

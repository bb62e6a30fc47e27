"""Tables in JSON: lines, arrays, objects over several lines; nested objects become columns with dotted names."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import polars as pl

from prism.errors import BadFileError

_DEEPEST = 4  # GCP nests three deep: jsonPayload.connection.src_ip
_MOST_COLUMNS = 2_000


@dataclass(frozen=True, slots=True, kw_only=True)
class JsonLines:
    """Objects of a JSON Lines file as text columns, their line numbers, and the lines that are not objects."""

    frame: pl.DataFrame
    lines: list[int]
    bad_lines: list[tuple[int, str]]


def read_json_lines(text: str) -> JsonLines:
    """Read JSON Lines one by one, to find the bad lines that a whole-file parser does not name."""
    rows: list[dict[str, str | None]] = []
    lines: list[int] = []
    bad: list[tuple[int, str]] = []
    for number, line in enumerate(text.split("\n"), start=1):
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
        rows.append(_to_text(record))
    return JsonLines(frame=_to_frame(rows), lines=lines, bad_lines=bad)


def read_json(path: Path, data: bytes) -> pl.DataFrame:
    """An array of objects, or objects one after the other, as text columns."""
    text = data.decode("utf-8-sig", errors="replace").strip()
    decoder = json.JSONDecoder()
    records: list[Any] = []
    at = 0
    try:
        while at < len(text):
            found, at = decoder.raw_decode(text, at)
            records.extend(found if isinstance(found, list) else [found])
            at = _past_space(text, at)
    except (ValueError, RecursionError) as error:
        line = text.count("\n", 0, getattr(error, "pos", at)) + 1
        reason = getattr(error, "msg", "nested too deeply")
        raise BadFileError(f"{path} line {line}: not valid JSON ({reason}); write it again whole") from None
    odd = next((n for n, r in enumerate(records, start=1) if not isinstance(r, dict)), None)
    if odd is not None:
        raise BadFileError(f"{path} entry {odd}: not a JSON object; expected one object for every flow")
    if not records:
        raise BadFileError(f"{path}: an empty array; there are no flows in it")
    return _to_frame([_to_text(record) for record in records])


def flatten(lazy: pl.LazyFrame) -> pl.LazyFrame:
    """A frame whose structs have become columns, named as `outer.inner`."""
    for _ in range(_DEEPEST):
        schema = lazy.collect_schema()
        nested = {name: kind for name, kind in schema.items() if isinstance(kind, pl.Struct)}
        if not nested:
            return lazy
        lazy = lazy.select(
            pl.col(name).struct.field(f.name).alias(f"{name}.{f.name}") if f is not None else pl.col(name)
            for name in schema
            for f in (nested[name].fields if name in nested else [None])
        )
    return lazy


def _past_space(text: str, at: int) -> int:
    while at < len(text) and text[at] in " \t\r\n,":
        at += 1
    return at


def _to_text(record: dict[str, Any], prefix: str = "", depth: int = 0) -> dict[str, str | None]:
    row: dict[str, str | None] = {}
    for key, value in record.items():
        if isinstance(value, dict) and depth < _DEEPEST:
            row.update(_to_text(value, f"{prefix}{key}.", depth + 1))
        else:
            row[prefix + key] = value if value is None or isinstance(value, str) else json.dumps(value)
    return row


def _to_frame(rows: list[dict[str, str | None]]) -> pl.DataFrame:
    names = list(dict.fromkeys(key for row in rows for key in row))[:_MOST_COLUMNS]
    return pl.DataFrame({name: pl.Series([row.get(name) for row in rows], dtype=pl.String) for name in names})

"""Slurm's accounting in the forms that `sacct` writes: fixed width, without a header, and JSON."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from itertools import pairwise
from typing import Any

import polars as pl

from prism.datacenter.characterize.columns import squash
from prism.datacenter.characterize.fields import MISSING, parse_lengths, parse_moments
from prism.datacenter.characterize.vocabulary import name_state
from prism.errors import BadFileError, BadRowError

_RULER = re.compile(rb"^-+(?: +-+)+ *\r?$")
_TIME = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d(?::\d\d)?")
_JOB = re.compile(r"\d+(?:_(?:\d+|\[[^\]]*\]))?(?:\+\d+)?(?:\.[\w+]+)?")
_CLOCK = re.compile(r"(?:\d+-)?\d\d:\d\d:\d\d")
_TRES = re.compile(r"(?:[\w/:.-]+=[^,=|]+)(?:,[\w/:.-]+=[^,=|]+)*")
JSON_COLUMNS = (
    "JobID", "User", "State", "AllocTRES", "Submit", "Start", "End", "ElapsedRaw", "NodeList", "Cluster", "Partition",
)  # fmt: skip


def has_ruler(head: bytes) -> bool:
    """Whether a text's second line is the row of dashes that sacct draws under its header."""
    lines = head.split(b"\n", 2)
    return len(lines) > 1 and bool(_RULER.match(lines[1]))


def read_fixed_width(text: str, where: str) -> pl.DataFrame:
    """A table whose second line shows the width of each column in dashes."""
    header, ruler, *rows = text.replace("\r\n", "\n").split("\n")
    spans = [found.span() for found in re.finditer("-+", ruler)]
    names = [header[low:high].strip() for low, high in spans]
    lines = pl.Series("line", rows, dtype=pl.String)
    table = pl.DataFrame(
        {
            name: lines.str.slice(low, high - low).str.strip_chars()
            for name, (low, high) in zip(names, spans, strict=True)
        }
    ).filter(lines.str.strip_chars() != "")
    for name in table.columns:
        # A list that was cut ("billing=8+") may have named GPUs.
        cut = table[name].str.ends_with("+") if squash(name) in ("alloctres", "reqtres") else None
        if cut is not None and bool((cut & ~table[name].str.contains("gpu=", literal=True)).any()):
            row = (cut & ~table[name].str.contains("gpu=", literal=True)).arg_max() or 0
            raise BadRowError(
                f"{where} line {row + 3}: '{name}' is {table[name][row]!r}, cut to the column's width, so GPUs may be "
                f"missing; export again with --parsable2, or --format={name}%80"
            )
    return table


def read_json(document: Mapping[str, Any], where: str) -> pl.DataFrame:
    """`sacct --json`: one row per job, as `sacct --parsable2` would show it."""
    jobs = document["jobs"]
    if not isinstance(jobs, list) or not all(isinstance(job, dict) for job in jobs):
        raise BadFileError(f"{where}: 'jobs' is not a list of jobs; give the whole output of sacct --json")
    try:
        rows = [_flatten(job) for job in jobs]
    except (TypeError, AttributeError, KeyError, ValueError, OverflowError):
        raise BadFileError(f"{where}: a job without the fields that sacct --json gives; export it again") from None
    return pl.DataFrame(rows, schema=dict.fromkeys(JSON_COLUMNS, pl.String), orient="row")


def _flatten(job: Mapping[str, Any]) -> tuple[str | None, ...]:
    time, tres = job["time"], job["tres"]
    state = job["state"]["current"] if isinstance(job["state"], dict) else job["state"]
    words = state if isinstance(state, list) else [state]
    allocated = tres.get("allocated") or tres.get("requested") or []
    listed = ",".join(
        f"{part['type']}{'/' + part['name'] if part.get('name') else ''}={_number(part['count'])}"
        for part in allocated
        if _number(part["count"]) is not None
    )
    user = job.get("user") or (job.get("association") or {}).get("user")
    array = (job.get("array") or {}).get("job_id")
    task = _number((job.get("array") or {}).get("task_id"))
    name = f"{array}_{task}" if array and task is not None else str(job["job_id"])
    values = (
        name, user, words[0] if words else None, listed or None, _moment(time.get("submission")),
        _moment(time.get("start")), _moment(time.get("end")), _number(time.get("elapsed")), job.get("nodes"),
        job.get("cluster"), job.get("partition"),
    )  # fmt: skip
    return tuple(None if value is None else str(value) for value in values)


def _number(value: Any) -> int | None:
    """A number as Slurm writes it: bare, or since 23.02 as {"set", "infinite", "number"}."""
    if isinstance(value, dict):
        return _number(value.get("number")) if value.get("set") and not value.get("infinite") else None
    return int(value) if isinstance(value, int | float) and not isinstance(value, bool) else None


def _moment(value: Any) -> int | None:
    """Seconds of the epoch; Slurm writes 0 for events that have not happened."""
    return _number(value) or None


def is_header(cells: Sequence[str]) -> bool:
    """Whether cells can be column names: none of them is a number, a time or a length of time."""
    return not any(
        _TIME.fullmatch(cell) or _CLOCK.fullmatch(cell) or re.fullmatch(r"\d+(?:\.\d+)?|Unknown", cell)
        for cell in (cell.strip() for cell in cells)
    )


def name_columns(rows: Sequence[Sequence[str]], where: str) -> list[str]:
    """Columns of a sacct export without a header line, by their values; raises if these fit several columns."""
    width = len(rows[0])
    columns = [pl.Series([row[i].strip() for row in rows if len(row) == width], dtype=pl.String) for i in range(width)]
    names = [f"column_{i + 1}" for i in range(width)]
    kinds = [_kind(column) for column in columns]
    for kind, name in (("job", "JobID"), ("state", "State"), ("tres", "AllocTRES")):
        found = [i for i, known in enumerate(kinds) if known == kind]
        if (kind == "job" and found[:1]) or len(found) == 1:
            names[found[0]] = name
    times = [i for i, kind in enumerate(kinds) if kind == "time"]
    clocks = [i for i, kind in enumerate(kinds) if kind == "clock"]
    pair: tuple[int, ...] | None = _find_run(columns, times, clocks)
    if pair is None and len(times) == 3 and _ascending([columns[i] for i in times]):
        pair = (times[1], times[2])
    if pair is None or "AllocTRES" not in names or "State" not in names:
        raise BadFileError(
            f"{where} line 1: has no header and its columns cannot be told apart for certain; "
            "name them in order with --columns JobID,User,State,..., or export with the header"
        )
    names[pair[0]], names[pair[1]] = "Start", "End"
    if len(pair) == 3:
        names[pair[2]] = "Elapsed"
    rest = [i for i in times if i not in pair]
    if rest and _ascending([columns[rest[0]], columns[pair[0]]]):
        names[rest[0]] = "Submit"
    return names


def _kind(column: pl.Series) -> str:
    """The kind of a column's cells: job, state, tres, time, clock or other."""
    cells = [cell for cell in column if cell.lower() not in MISSING]
    if not cells:
        return "time" if any(cell == "Unknown" for cell in column) else "other"
    tests: Mapping[str, Callable[[str], bool]] = {
        "time": lambda cell: bool(_TIME.fullmatch(cell)),
        "clock": lambda cell: bool(_CLOCK.fullmatch(cell)),
        "tres": lambda cell: bool(_TRES.fullmatch(cell)),
        "state": lambda cell: name_state(cell) is not None,
        "job": lambda cell: bool(_JOB.fullmatch(cell)),
    }
    return next((kind for kind, test in tests.items() if all(test(cell) for cell in cells)), "other")


def _find_run(columns: Sequence[pl.Series], times: Sequence[int], clocks: Sequence[int]) -> tuple[int, ...] | None:
    """Two time columns and a column of lengths that equals their difference in every row."""
    moments = {i: parse_moments(columns[i].replace("Unknown", None), None).ns for i in times}
    for clock in clocks:
        elapsed = parse_lengths(columns[clock])
        for first in times:
            for last in times:
                apart = (moments[last] - moments[first]).cast(pl.Float64) * 1e-9
                known = apart.is_not_null() & elapsed.is_not_null()
                if first != last and known.sum() > 0 and bool((apart - elapsed).filter(known).abs().max() <= 1):  # type: ignore[operator]
                    return first, last, clock
    return None


def _ascending(columns: Sequence[pl.Series]) -> bool:
    moments = [parse_moments(column.replace("Unknown", None), None).ns for column in columns]
    return all(bool((a <= b).fill_null(value=True).all()) for a, b in pairwise(moments))

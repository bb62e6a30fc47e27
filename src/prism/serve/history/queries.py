"""Queries of the index: rows by job, host, kind and time; days; a search; the jobs and hosts it knows."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from prism.serve.history.database import ReadableIndex
from prism.serve.history.entries import DAY_NS
from prism.serve.shapes.history import DayRow

_COLUMNS = (
    "kind", "cluster", "job", "key", "at_ns", "until_ns", "state", "text", "step_s", "num_steps", "gpus", "lost_gpu_s",
    "restarts", "goodput", "num_findings",
)  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredEntry:
    """A row of the history; null is unknown."""

    kind: str
    cluster: str
    job: str
    key: str
    at_ns: int
    until_ns: int
    state: str
    text: str
    step_s: float | None
    num_steps: int | None
    gpus: int | None
    lost_gpu_s: float | None
    restarts: int | None
    goodput: float | None
    num_findings: int | None
    gone: bool  # its file is not in the folder any more


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """Which rows to return; "" and None match everything."""

    kind: str = ""
    cluster: str = ""
    job: str = ""
    host: str = ""
    key: str = ""
    text: str = ""
    from_ns: int | None = None
    to_ns: int | None = None
    offset: int = 0
    limit: int = 100


@dataclass(frozen=True, slots=True, kw_only=True)
class Page:
    """Some of the rows, newest first, and how many there are."""

    rows: tuple[StoredEntry, ...]
    total: int


def find_entries(index: ReadableIndex, asked: Asked) -> Page:
    """Rows that match every condition of the query, newest first."""
    where, values = _write_where(asked)
    with index.lock:
        (total,) = index.connection.execute(f"SELECT count(*) FROM entry WHERE {where}", values).fetchone()
        rows = index.connection.execute(
            f"SELECT {', '.join(_COLUMNS)}, (SELECT gone_ns IS NOT NULL FROM source WHERE source.id = entry.source) "
            f"FROM entry WHERE {where} ORDER BY until_ns DESC, id DESC LIMIT ? OFFSET ?",
            (*values, asked.limit, asked.offset),
        ).fetchall()
    return Page(rows=tuple(_to_entry(row) for row in rows), total=total)


def find_days(index: ReadableIndex, asked: Asked, most: int = 400) -> list[DayRow]:
    """A row for each day that something ended on, oldest first; the newest `most` days."""
    where, values = _write_where(asked)
    query = f"""
      SELECT until_ns / {DAY_NS} AS day,
        count(DISTINCT CASE WHEN kind IN ('look', 'run', 'run_day') THEN job END), sum(kind = 'run'),
        median(CASE WHEN kind IN ('look', 'run', 'run_day') THEN step_s END),
        sum(kind = 'finding'), sum(kind = 'verdict'), coalesce(sum(CASE WHEN kind = 'finding' THEN lost_gpu_s END), 0),
        sum(CASE WHEN kind = 'look' THEN gpus * (until_ns - at_ns) / 1e9 END),
        coalesce(sum(CASE WHEN kind = 'run_day' OR (kind = 'run' AND until_ns / {DAY_NS} = at_ns / {DAY_NS})
          THEN restarts END), 0),
        median(CASE WHEN kind = 'run_day' OR (kind = 'run' AND until_ns / {DAY_NS} = at_ns / {DAY_NS})
          THEN goodput END)
      FROM entry WHERE {where} GROUP BY day ORDER BY day DESC LIMIT ?"""
    with index.lock:
        rows = index.connection.execute(query, (*values, most)).fetchall()
    return [_to_day(row) for row in reversed(rows)]


def list_jobs_of(index: ReadableIndex, limit: int = 500) -> list[StoredEntry]:
    """The newest look or run of every job, newest first."""
    with index.lock:
        rows = index.connection.execute(
            f"SELECT {', '.join(_COLUMNS)}, 0, max(until_ns) FROM entry WHERE kind IN ('look', 'run') "
            "GROUP BY cluster, job ORDER BY max(until_ns) DESC LIMIT ?",
            (limit,),
        ).fetchall()
    return [_to_entry(row[:-1]) for row in rows]


def find_hosts(index: ReadableIndex, text: str, limit: int = 20) -> list[tuple[str, int]]:
    """Hosts whose name holds a text, and how many rows name each."""
    with index.lock:
        return index.connection.execute(
            r"SELECT host, count(*) FROM mention WHERE host LIKE ? ESCAPE '\' GROUP BY host ORDER BY host LIMIT ?",
            (_like(text), limit),
        ).fetchall()


def _write_where(asked: Asked) -> tuple[str, list[Any]]:
    """The condition as SQL with its values; column names never come from a request."""
    parts = ["1"]
    values: list[Any] = []
    for column, value in (("kind", asked.kind), ("cluster", asked.cluster), ("job", asked.job), ("key", asked.key)):
        if value:
            parts.append(f"{column} = ?")
            values.append(value)
    if asked.host:
        parts.append("id IN (SELECT entry FROM mention WHERE host = ?)")
        values.append(asked.host)
    for word in asked.text.lower().split()[:8]:
        parts.append(r"words LIKE ? ESCAPE '\'")
        values.append(_like(word))
    if asked.from_ns is not None:
        parts.append("until_ns >= ?")
        values.append(asked.from_ns)
    if asked.to_ns is not None:
        parts.append("at_ns <= ?")
        values.append(asked.to_ns)
    return " AND ".join(parts), values


def _like(text: str) -> str:
    escaped = text.replace("\\", "\\\\").replace("%", "\\%").replace("_", "\\_")
    return f"%{escaped}%"


def _to_entry(row: tuple[Any, ...]) -> StoredEntry:
    return StoredEntry(**dict(zip(_COLUMNS, row, strict=False)), gone=bool(row[len(_COLUMNS)]))


def _to_day(row: tuple[Any, ...]) -> DayRow:
    day, jobs, runs, step_s, findings, verdicts, lost, gpu_s, restarts, goodput = row
    return DayRow(
        day=datetime.fromtimestamp(day * 86_400, UTC).date().isoformat(),
        num_jobs=jobs,
        num_runs=runs,
        step_s=step_s,
        num_findings=findings,
        num_verdicts=verdicts,
        lost_gpu_s=lost,
        gpu_s=gpu_s,
        restarts=restarts,
        goodput=goodput,
    )

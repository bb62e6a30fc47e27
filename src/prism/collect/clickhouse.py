"""Flows from ClickHouse over its HTTP interface: window by window, only the columns that are needed."""

from __future__ import annotations

import re
import time
import urllib.error
import urllib.parse
import urllib.request
from dataclasses import dataclass
from io import BytesIO
from typing import Any

import polars as pl

from prism.collect.counts import SourceCounts
from prism.collect.tables import FlowOptions
from prism.collect.tables.aliases import H3C_PACKETS, KIND_COLUMNS, TWINS, Alias, find_aliases
from prism.collect.tables.files import make_flows
from prism.errors import BadConfigError, InputError
from prism.records import FLOWS
from prism.records.times import unit_by_size

_WORDS = re.compile(
    r"^clickhouses?://((?P<user>[^:@/]*)(:(?P<password>[^@/]*))?@)?(?P<host>\[[0-9A-Fa-f:.]+\]|[^:/\[\]]+)(:(?P<port>\d+))?"
    r"/(?P<database>\w+)/(?P<table>\w+)(\?(?P<options>.*))?$"
)
_TIMEOUT_S = 300.0
_MOST_ROWS = 5_000_000  # of one window; denser windows are halved
_LEAST_WINDOW_S = 1.0
_SETTLE_S = 10.0  # Collectors insert in batches; what is younger may not be there yet.
_TIME_TYPES = ("DateTime", "DateTime64")


@dataclass(frozen=True, slots=True, kw_only=True)
class Table:
    """A table, how to reach it, and the column that its time window is cut by."""

    url: str
    headers: dict[str, str]
    database: str
    name: str

    def ask(self, query: str) -> bytes:
        """The answer to a query; what the server says is wrong becomes one line."""
        request = urllib.request.Request(self.url, data=query.encode(), headers=self.headers, method="POST")
        try:
            with urllib.request.urlopen(request, timeout=_TIMEOUT_S) as answer:
                content: bytes = answer.read()
                return content
        except urllib.error.HTTPError as error:
            said = error.read().decode(errors="replace").strip().splitlines()
            raise BadConfigError(
                f"{self.url}: {said[0][:300] if said else error}; check database, table and user"
            ) from None
        except (OSError, ValueError) as error:
            raise BadConfigError(f"{self.url}: ClickHouse does not answer ({error}); check host and port") from None

    def columns(self) -> dict[str, str]:
        """Names and types of the table's columns."""
        text = self.ask(f"DESCRIBE TABLE {self.database}.{self.name} FORMAT TSV").decode()
        return {line.split("\t")[0]: line.split("\t")[1] for line in text.splitlines() if "\t" in line}


@dataclass(frozen=True, slots=True, kw_only=True)
class Window:
    """What to select: the columns, and how the time column compares."""

    selected: tuple[str, ...]
    time: str  # name of the column
    per_second: int | None  # units of a numeric time column; None where it is a date

    def query(self, table: Table, begin_ns: int, end_ns: int) -> str:
        """SQL for one window; the condition is on the column itself, so that ClickHouse reads only those parts."""
        if self.per_second is None:
            low, high = (f"toDateTime64('{ns / 1e9:.9f}', 9)" for ns in (begin_ns, end_ns))
        else:
            low, high = (str(ns * self.per_second // 10**9) for ns in (begin_ns, end_ns))
        return (
            f"SELECT {', '.join(self.selected)} FROM {table.database}.{table.name} "
            f"WHERE {_quoted(self.time)} >= {low} AND {_quoted(self.time)} < {high} LIMIT {_MOST_ROWS + 1}"
        )


def open_clickhouse(words: str, position: dict[str, Any], columns: tuple[Alias, ...]) -> ClickHouseSource:
    """A source from `clickhouse://[USER[:PASSWORD]@]HOST[:PORT]/DATABASE/TABLE[?from=T&to=T&window=S]`."""
    match = _WORDS.match(words)
    if match is None:
        raise BadConfigError(
            "expected clickhouse://[USER:PASSWORD@]HOST:PORT/DATABASE/TABLE, as in clickhouse://localhost:8123/default/flows"
        )
    secure = words.startswith("clickhouses:")
    host = f"{match['host']}:{match['port'] or (8443 if secure else 8123)}"
    headers = {"X-ClickHouse-User": match["user"] or "default"}
    if match["password"]:
        headers["X-ClickHouse-Key"] = urllib.parse.unquote(match["password"])
    table = Table(
        url=f"http{'s' if secure else ''}://{host}/", headers=headers, database=match["database"], name=match["table"]
    )
    options = dict(urllib.parse.parse_qsl(match["options"] or ""))
    begin, end = (_parse_time(options.get(name), name) for name in ("from", "to"))
    window_s = float(options.get("window", "60"))
    return ClickHouseSource(table, (begin, end, window_s), position, columns)


class ClickHouseSource:
    """One window of the table at each poll, in order of time; follows the present where no end was given."""

    is_live = False  # rows wait until they are read
    starts_over = False

    def __init__(
        self,
        table: Table,
        span: tuple[int | None, int | None, float],
        position: dict[str, Any],
        columns: tuple[Alias, ...],
    ) -> None:
        self.counts = SourceCounts()
        self._table = table
        self._options = FlowOptions(skip_bad_rows=True, columns=columns, samples=True)
        self._window = _plan_window(table, columns)
        begin, self._end_ns, window_s = span
        self._next_ns = int(
            position.get("next_ns", begin if begin is not None else time.time_ns() - int(window_s * 1e9))
        )
        self._length_ns = int(window_s * 1e9)
        self._notes: dict[str, None] = {}

    @property
    def is_finished(self) -> bool:
        """The end that was asked for has been reached."""
        return self._end_ns is not None and self._next_ns >= self._end_ns

    @property
    def notes(self) -> tuple[str, ...]:
        """What an operator should know."""
        return tuple(self._notes)

    def poll(self, timeout_s: float) -> pl.DataFrame:
        """FLOWS of the next window."""
        newest = time.time_ns() - int(_SETTLE_S * 1e9)
        end = min(self._next_ns + self._length_ns, newest if self._end_ns is None else self._end_ns)
        if end <= self._next_ns or (self._end_ns is None and end - self._next_ns < _LEAST_WINDOW_S * 1e9):
            time.sleep(timeout_s)
            return FLOWS.empty()
        try:
            flows, end = self._read(self._next_ns, end)
        except BadConfigError as error:  # A server that restarts is asked again; nothing is skipped meanwhile.
            self.counts.events["queries that failed"] += 1
            self._notes[str(error)] = None
            time.sleep(min(timeout_s, 1.0))
            return FLOWS.empty()
        self._next_ns = end
        return flows

    def save_position(self) -> dict[str, Any]:
        """Where the next window begins."""
        return {"next_ns": self._next_ns}

    def close(self) -> None:
        """Nothing is held."""

    def _read(self, begin_ns: int, end_ns: int) -> tuple[pl.DataFrame, int]:
        """FLOWS from a moment on, and until when: less than was asked for where rows are too dense for memory."""
        while True:
            content = self._table.ask(self._window.query(self._table, begin_ns, end_ns) + " FORMAT Parquet")
            self.counts.received += 1
            self.counts.received_bytes += len(content)
            rows = pl.read_parquet(BytesIO(content)) if content else pl.DataFrame()
            if rows.height <= _MOST_ROWS or end_ns - begin_ns <= _LEAST_WINDOW_S * 1e9:
                return self._to_flows(rows), end_ns
            end_ns = (begin_ns + end_ns) // 2

    def _to_flows(self, rows: pl.DataFrame) -> pl.DataFrame:
        if not rows.height:
            return FLOWS.empty()
        try:
            read = make_flows(rows, f"{self._table.database}.{self._table.name}", self._options)
        except InputError as error:
            self.counts.malformed["windows that are no flows"] += 1
            self._notes[str(error)] = None
            return FLOWS.empty()
        self.counts.flows += read.flows.height
        for line in read.report.notes:
            self._notes[line] = None
        for why, num in read.report.skipped_rows.items():
            self.counts.dropped[why] += num
        return read.flows


def _plan_window(table: Table, chosen: tuple[Alias, ...]) -> Window:
    types = table.columns()
    found = find_aliases(list(types), chosen)
    if not {"start_ns", "src", "dst"} <= set(found):
        missing = next(n for n in ("start_ns", "src", "dst") if n not in found)
        raise BadConfigError(
            f"{table.database}.{table.name}: no column for '{missing}'; pass "
            f"--map {missing.removesuffix('_ns')}=COLUMN (it has {', '.join(list(types)[:40])})"
        )
    wanted = {column for column, _ in found.values()} | (set(KIND_COLUMNS) | set(H3C_PACKETS)) & set(types)
    wanted |= {c for c in types if c.lower().startswith(("time_received", "timereceived"))}
    wanted |= {twin for name, twin in TWINS.items() if name in wanted and twin in types}
    # The table is ordered by when records were received where it says so; its windows are cut by that.
    received = [c for c in types if c.lower().startswith(("time_received", "timereceived"))]
    cut = received[0] if received else found["start_ns"][0]
    per_second = None if types[cut].startswith(_TIME_TYPES) else _units_per_second(table, cut, chosen)
    addresses = {found[n][0] for n in ("src", "dst", "exporter") if n in found}
    selected = tuple(_select(c, types[c], is_address=c in addresses) for c in types if c in wanted)
    return Window(selected=selected, time=cut, per_second=per_second)


def _select(column: str, kind: str, *, is_address: bool) -> str:
    name = _quoted(column)
    if is_address and ("IPv4" in kind or "IPv6" in kind):
        return f"toString({name}) AS {name}"
    if kind.startswith(("LowCardinality", "Enum")):
        return f"toString({name}) AS {name}"
    return name


def _units_per_second(table: Table, column: str, chosen: tuple[Alias, ...]) -> int:
    """How a numeric time column counts: by its name, else by the size of its values."""
    alias = find_aliases([column], chosen)["start_ns"][1]
    unit: str | None = alias.unit
    if unit == "auto":
        answer = (
            table.ask(f"SELECT max({_quoted(column)}) FROM {table.database}.{table.name} FORMAT TSV").decode().strip()
        )
        unit = unit_by_size(float(answer)) if re.fullmatch(r"[0-9.e+]+", answer) else None
    if unit not in ("s", "ms", "us", "ns"):
        raise BadConfigError(
            f"{table.database}.{table.name}: cannot tell the unit of '{column}'; pass --map start={column}:ms"
        )
    return {"s": 1, "ms": 10**3, "us": 10**6, "ns": 10**9}[unit]


def _quoted(name: str) -> str:
    return "`" + name.replace("\\", "\\\\").replace("`", "\\`") + "`"


def _parse_time(text: str | None, name: str) -> int | None:
    """A moment as seconds since the epoch or as a date; dates without a zone are UTC."""
    if text is None:
        return None
    from datetime import UTC, datetime

    try:
        return int(float(text) * 1e9)
    except ValueError:
        pass
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        raise BadConfigError(f"{name}={text}: expected a date such as 2026-01-31T12:00:00Z, or seconds") from None
    return int((moment if moment.tzinfo else moment.replace(tzinfo=UTC)).timestamp() * 1e9)

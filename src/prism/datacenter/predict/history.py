"""The history of a fleet: where each part was and when, and what happened to it."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path

import numpy as np
import polars as pl
from numpy.typing import NDArray

from prism.datacenter.predict.counters import Counter, make_counters
from prism.errors import BadConfigError, BadFileError, BadRowError
from prism.records import files

DAY_NS = 86_400_000_000_000
_UNITS_NS = {"ns": 1, "us": 1_000, "ms": 1_000_000, "s": 1_000_000_000, "h": 3_600_000_000_000, "days": DAY_NS}
_NAMES = {
    "serial": (
        "serial",
        "part",
        "gpu",
        "uuid",
        "node_id",
        "node",
        "host",
        "hostname",
        "gpu_uuid",
        "gpu_id",
        "UUID",
        "entity",
        "device",
        "server",
        "Node",
        "Host",
        "nodename",
    ),
    "location": ("location", "place", "slot", "cname"),
    "at": (
        "at",
        "time",
        "timestamp",
        "event_time",
        "date",
        "ts",
        "datetime",
        "start",
        "start_time",
        "first_seen",
        "eventTime",
        "Timestamp",
    ),
    "event": ("event", "event_type", "type", "code", "xid", "Xid", "class", "reason", "fault"),
    "counter": ("counter", "metric", "name", "field"),
    "value": ("value", "count", "reading"),
    "installed": ("installed", "insert", "start", "from"),
    "removed": ("removed", "remove", "end", "until"),
}
_ENDS = ("fault_end", "repair", "repaired", "end", "resolved")

Ints = NDArray[np.int64]


@dataclass(frozen=True, slots=True, kw_only=True)
class History:
    """Stays of parts in places, and events of parts; all as consecutive numbers.

    A stay is one part in one place; `removed_ns` is the largest integer while it lasts. Places are the numbers in their
    names, outermost first: `c21-5c0s7n2` is (21, 5, 0, 7, 2).
    """

    parts: tuple[str, ...]
    stay_part: Ints
    stay_place: Ints  # row of `places`
    installed_ns: Ints
    removed_ns: Ints
    event_part: Ints
    event_place: Ints
    event_ns: Ints  # in order
    places: Ints  # one row per place
    place_names: tuple[str, ...]
    notes: tuple[str, ...]
    counters: tuple[Counter, ...] = ()  # used for past windows only
    lives_known: bool = False  # parts that never had an event are in it

    def before(self, at_ns: int) -> History:
        """The history known at a moment: without later events and stays; stays that ended later are still open."""
        stays, events = self.installed_ns <= at_ns, self.event_ns <= at_ns
        removed = self.removed_ns[stays]
        return History(
            parts=self.parts,
            stay_part=self.stay_part[stays],
            stay_place=self.stay_place[stays],
            installed_ns=self.installed_ns[stays],
            removed_ns=np.where(removed > at_ns, np.iinfo(np.int64).max, removed),
            event_part=self.event_part[events],
            event_place=self.event_place[events],
            event_ns=self.event_ns[events],
            places=self.places,
            place_names=self.place_names,
            notes=self.notes,
            counters=self.counters,
            lives_known=self.lives_known,
        )


def read_history(events: Path, lives: Path | None = None, names: Mapping[str, str] | None = None) -> History:
    """Read events and, where given, lives; `names` maps our columns to those of the files, a unit after a colon."""
    told = _read(events, names or {}, ("serial", "at"), ("location", "event"))
    if "event" in told.columns:
        told = told.filter(~pl.col("event").cast(pl.String).str.to_lowercase().is_in(_ENDS).fill_null(False))
    notes = []
    if lives is not None:
        stays = _read(lives, names or {}, ("serial", "installed"), ("location", "removed"))
    else:
        stays = told.group_by("serial", maintain_order=True).agg(
            pl.col("at").min().alias("installed"), *([pl.col("location").last()] if "location" in told.columns else [])
        )
        notes.append("no lives given: only parts that had an event are known, from their first event on")
    return replace(make_history(told, stays, tuple(notes)), lives_known=lives is not None)


def add_counters(history: History, path: Path, names: Mapping[str, str] | None = None) -> History:
    """The same history with readings of counters: serial, at, counter, value."""
    table = _read(path, names or {}, ("serial", "at", "counter", "value"), ())
    values = table["value"].cast(pl.Float64, strict=False)
    bad = (values.is_null() & table["value"].is_not_null() & (table["value"] != "")).arg_true()
    if len(bad):
        raise BadRowError(f"{path} row {bad[0] + 1}: 'value' is \"{table['value'][int(bad[0])]}\", expected a number")
    numbers = {part: number for number, part in enumerate(history.parts)}
    found = make_counters(table.with_columns(value=values), numbers)
    unknown = table.filter(~pl.col("serial").is_in(list(numbers))).height
    notes = (f"{unknown:,} readings of counters are of parts that are not known",) if unknown else ()
    return replace(history, counters=found, notes=(*history.notes, *notes))


def make_history(events: pl.DataFrame, stays: pl.DataFrame, notes: tuple[str, ...] = ()) -> History:
    """A history from tables with serial, location, at and serial, location, installed, removed; times in ns."""
    for column in ("location",):
        events = events if column in events.columns else events.with_columns(pl.lit("").alias(column))
        stays = stays if column in stays.columns else stays.with_columns(pl.lit("").alias(column))
    if "removed" not in stays.columns:
        stays = stays.with_columns(pl.lit(None, pl.Int64).alias("removed"))
    stays = stays.filter(pl.col("serial").is_not_null() & pl.col("installed").is_not_null())
    nameless = events.filter(pl.col("serial").is_null() | pl.col("at").is_null()).height
    events = events.drop_nulls(["serial", "at"]).sort("at")
    if nameless:
        notes += (f"{nameless:,} events without a part or a time are left out",)
    parts = pl.concat([stays["serial"], events["serial"]]).unique(maintain_order=True)
    uninstalled = events.filter(~pl.col("serial").is_in(stays["serial"].unique().implode())).height
    if uninstalled:
        notes += (f"{uninstalled:,} events are of parts that were never installed; they count for their place only",)
    first = stays.group_by("serial").agg(pl.col("installed").min().alias("first"))
    early = events.join(first, on="serial", how="left").select((pl.col("at") < pl.col("first")).fill_null(False))
    if early.to_series().any():
        notes += (f"{early.to_series().sum():,} events lie before their part was installed and are left out",)
        events = events.filter(~early.to_series())
    backwards = stays.filter(pl.col("removed") < pl.col("installed")).height
    if backwards:
        notes += (f"{backwards:,} stays end before they begin (a clock that jumped?) and are left out",)
        stays = stays.filter(pl.col("removed").is_null() | (pl.col("removed") >= pl.col("installed")))
    names = pl.concat([stays["location"], events["location"]]).fill_null("").unique(maintain_order=True)
    number = pl.DataFrame({"serial": parts}).with_row_index("part")
    place = pl.DataFrame({"location": names}).with_row_index("place")
    stays = stays.with_columns(pl.col("location").fill_null("")).join(number, on="serial").join(place, on="location")
    events = events.with_columns(pl.col("location").fill_null("")).join(number, on="serial").join(place, on="location")
    events = events.sort("at")
    return History(
        parts=tuple(parts.to_list()),
        stay_part=_ints(stays["part"]),
        stay_place=_ints(stays["place"]),
        installed_ns=_ints(stays["installed"]),
        removed_ns=_ints(stays["removed"].fill_null(np.iinfo(np.int64).max)),
        event_part=_ints(events["part"]),
        event_place=_ints(events["place"]),
        event_ns=_ints(events["at"]),
        places=_number_places(names),
        place_names=tuple(names.to_list()),
        notes=notes,
    )


def parse_time(text: str) -> int:
    """A moment in ns: ISO 8601, or a number with a unit such as 120days after the history's own zero."""
    for unit, scale in sorted(_UNITS_NS.items(), key=lambda u: -len(u[0])):
        if text.endswith(unit):
            try:
                return round(float(text.removesuffix(unit)) * scale)
            except ValueError:
                break
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        raise BadConfigError(f"'{text}' is no moment; write 2016-10-01, 2016-10-01T12:00 or 120days") from None
    # Times without a zone are used as written, like those in the tables.
    return round((moment if moment.tzinfo else moment.replace(tzinfo=UTC)).timestamp()) * 1_000_000_000


def _read(path: Path, names: Mapping[str, str], needed: tuple[str, ...], wanted: tuple[str, ...]) -> pl.DataFrame:
    raw = _load(path)
    chosen = {}
    for column in (*needed, *wanted):
        name, _, unit = names.get(column, "").partition(":")
        found = name if name in raw.columns else next((n for n in _NAMES[column] if n in raw.columns), None)
        if name and name not in raw.columns:
            raise BadRowError(
                f"{path}: no column '{name}' (from --map {column}=); it has {', '.join(raw.columns[:12])}"
            )
        if found is None:
            if column in wanted:
                continue
            raise BadRowError(
                f"{path}: no column for '{column}' among {', '.join(raw.columns[:12])}; "
                f"name it with --map {column}=NAME"
            )
        is_time = column in ("at", "installed", "removed")
        chosen[column] = _as_ns(raw[found], path, found, unit) if is_time else raw[found].cast(pl.String)
    return pl.DataFrame(chosen)


def _load(path: Path) -> pl.DataFrame:
    if path.suffix == ".json":
        try:
            rows = json.loads(path.read_text())
            return pl.DataFrame(rows, infer_schema_length=None, strict=False)
        except (OSError, ValueError, pl.exceptions.PolarsError) as error:
            raise BadFileError(f"{path}: not a JSON list of events ({str(error)[:100]})") from None
    return files.read_whole(path)


def _as_ns(values: pl.Series, path: Path, name: str, unit: str) -> pl.Series:
    if values.dtype.is_temporal():
        return values.cast(pl.Datetime("ns")).cast(pl.Int64)
    if values.dtype == pl.String:
        parsed = values.str.strip_chars().str.replace(" ", "T").str.to_datetime(time_unit="ns", strict=False)
        bad = values.filter(parsed.is_null() & values.is_not_null() & (values != ""))
        if len(bad):
            raise BadRowError(f"{path}: '{name}' is \"{bad[0]}\", expected a date such as 2016-10-01 12:00:00")
        return parsed.cast(pl.Int64)
    if not values.dtype.is_numeric() and values.dtype != pl.Null:
        raise BadRowError(f"{path}: '{name}' holds {values.dtype}, expected times")
    if unit not in _UNITS_NS:
        raise BadRowError(
            f"{path}: '{name}' holds plain numbers; say their unit with --map at={name}:days (or s, ms, us, ns, h)"
        )
    return (values.cast(pl.Float64) * _UNITS_NS[unit]).round().cast(pl.Int64)


def _number_places(names: pl.Series) -> Ints:
    """The whole numbers in each place's name; a name with fewer of them is filled up with -1."""
    found = names.str.extract_all(r"\d{1,9}").to_list()
    width = max((len(f) for f in found), default=0)
    places = np.full((len(found), width), -1, np.int64)
    for row, numbers in enumerate(found):
        places[row, : len(numbers)] = [int(n) for n in numbers]
    return places


def _ints(values: pl.Series) -> Ints:
    return values.cast(pl.Int64).to_numpy()

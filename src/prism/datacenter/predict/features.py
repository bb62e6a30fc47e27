"""Features of every part in place at a moment, from data before that moment only."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from prism.datacenter.predict.counters import describe_counters
from prism.datacenter.predict.history import DAY_NS, History, Ints

Floats = NDArray[np.float64]

NEVER_DAYS = 9_999.0
_MOST_LEVELS = 6  # levels of a place that are used, outermost first


@dataclass(frozen=True, slots=True, kw_only=True)
class Panel:
    """One row per part in place at a moment."""

    at_ns: int
    part: Ints
    place: Ints
    names: tuple[str, ...]
    values: Floats
    stands_for: Floats  # parts that a row stands for: 1, or more where quiet parts were drawn from many

    def column(self, name: str) -> Floats:
        """One feature of all parts."""
        return self.values[:, self.names.index(name)]


def describe_parts(history: History, at_ns: int, horizon_days: float) -> Panel:
    """Features of every part in place: age, own history, and how often its neighbours failed recently."""
    known = history.before(at_ns)
    here = np.flatnonzero(known.removed_ns == np.iinfo(np.int64).max)
    # A part without a recorded removal is still where it was last seen.
    _, last = np.unique(known.stay_part[here][::-1], return_index=True)
    here = here[::-1][last]
    part, place = known.stay_part[here], known.stay_place[here]
    columns: dict[str, Floats] = {}
    columns["age_days"] = (at_ns - _first_installed(known)[part]) / DAY_NS
    columns["stay_days"] = (at_ns - known.installed_ns[here]) / DAY_NS
    columns["own_events"] = np.bincount(known.event_part, minlength=len(known.parts))[part].astype(float)
    last_event = np.full(len(known.parts), -np.inf)
    np.maximum.at(last_event, known.event_part, known.event_ns)
    since = (at_ns - last_event[part]) / DAY_NS
    columns["days_since_event"] = np.where(np.isfinite(since), since, NEVER_DAYS)
    recent = known.event_ns > at_ns - 365 * DAY_NS
    in_place = np.bincount(known.event_place[recent], minlength=len(known.places))
    columns["events_in_place"] = in_place[place].astype(float)
    _add_neighbours(columns, known, here, at_ns, horizon_days)
    columns |= describe_counters(known.counters, part, at_ns, DAY_NS)
    return Panel(
        at_ns=at_ns,
        part=part,
        place=place,
        names=tuple(columns),
        values=np.column_stack(list(columns.values())),
        stands_for=np.ones(len(part)),
    )


def thin_out(panel: Panel, label: NDArray[np.bool_], most_quiet: int) -> tuple[Panel, NDArray[np.bool_]]:
    """Keep every part with an event and a sample of the others, which represents those left out."""
    quiet = np.flatnonzero(~label)
    if len(quiet) <= most_quiet:
        return panel, label
    kept = np.random.default_rng(len(quiet)).choice(quiet, most_quiet, replace=False)
    stands_for = panel.stands_for.copy()
    stands_for[kept] *= len(quiet) / len(kept)
    rows = np.sort(np.concatenate([np.flatnonzero(label), kept]))
    thinned = replace(
        panel, part=panel.part[rows], place=panel.place[rows], values=panel.values[rows], stands_for=stands_for[rows]
    )
    return thinned, label[rows]


def label_parts(history: History, panel: Panel, horizon_days: float) -> NDArray[np.bool_]:
    """Which parts of a panel had an event within the horizon after it."""
    end = panel.at_ns + round(horizon_days * DAY_NS)
    hit = (history.event_ns > panel.at_ns) & (history.event_ns <= end)
    return np.isin(panel.part, history.event_part[hit])


def _first_installed(known: History) -> Ints:
    first = np.full(len(known.parts), np.iinfo(np.int64).max, np.int64)
    np.minimum.at(first, known.stay_part, known.installed_ns)
    return first


def _add_neighbours(columns: dict[str, Floats], known: History, stays: Ints, at_ns: int, horizon_days: float) -> None:
    """Failures per part among those with the same number at a level of the place, and with the same outer levels."""
    part, place = known.stay_part[stays], known.stay_place[stays]
    numbers = known.places[:, :_MOST_LEVELS]
    cohort = _first_installed(known) // (90 * DAY_NS)
    year, season = known.event_ns > at_ns - 365 * DAY_NS, known.event_ns > at_ns - round(2 * horizon_days * DAY_NS)
    for level in range(numbers.shape[1]):
        own = numbers[:, level]
        columns[f"place_{level}"] = own[place].astype(float)
        columns[f"rate_level_{level}"] = _rate(own[known.event_place[season]], own[place])
        if level:
            outer = _combine(numbers[:, : level + 1])
            columns[f"rate_within_{level}"] = _rate(outer[known.event_place[year]], outer[place])
    last = known.event_ns > at_ns - round(horizon_days * DAY_NS)
    columns["rate_cohort"] = _rate(cohort[known.event_part[last]], cohort[part])


def _combine(numbers: Ints) -> Ints:
    """One number per distinct row."""
    return np.unique(numbers, axis=0, return_inverse=True)[1].astype(np.int64).reshape(-1)


def _rate(events: Ints, members: Ints) -> Floats:
    """Events per member of each group, shrunk towards the overall mean, because small groups are uncertain."""
    groups, inverse, size = np.unique(members, return_inverse=True, return_counts=True)
    at = np.searchsorted(groups, events)
    at = np.clip(at, 0, len(groups) - 1)
    count = np.bincount(at[groups[at] == events], minlength=len(groups)).astype(float)
    mean = count.sum() / max(size.sum(), 1)
    drawn: Floats = ((count + 10 * mean) / (size + 10))[inverse]
    return drawn

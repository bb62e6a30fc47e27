"""The posterior over who is late: nobody, or the ranks of one host, from one step to another.

Under a cause its rows are late by one amount in its window, all others are not, and what is left scatters with a
Laplace distribution about what is usual for each row. A cause that lasts for the whole observation differs from a row
that is late by design only by its size, so it must stand out from how rows differ among themselves.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from prism.observe.delays.lateness import Lateness
from prism.observe.findings.case import Case, Floats, Ints
from prism.observe.findings.windows import Window, find_window, quantile_rows


@dataclass(frozen=True, slots=True, kw_only=True)
class DelayConfig:
    """What counts as late."""

    least: float = 0.01  # of a step or of a rank's work: less is not told
    felt: float = 0.003  # by which steps must be longer while a cause lasts
    explains: float = 0.5  # of what steps are longer by: in those in which it is late
    shortest: int = 3  # steps that a cause must last
    largest_always: float = 1.5  # of a rank's work: what always works longer than this is another stage
    least_always: float = 0.03  # the same for what lasts for the whole observation, which may be by design
    noise: float = 0.001  # of a step: rows scatter at least so much
    differ: float = 0.004  # of a step: rows differ by design at least so much
    apart: float = 5.0  # scatters between rows that a lasting cause must stand out by
    step_nats: float = 6.0  # that one step can gain at most: a single step convinces nobody
    sure_nats: float = 12.0  # that a cause must gain over nobody in all
    alike: float = 0.5  # of the latest row of a host: its rows that are this late belong together
    whole: float = 0.85  # of all steps: a window that is longer is the whole observation
    tied: float = 12.0  # nats by which a cause loses to the best for gaining nothing
    second: float = 0.3  # times as likely as the best: a second cause that nothing tells apart from it
    least_sure: float = 0.7  # that it is the best, or one of the two best
    surest: float = 0.97
    worth_listing: float = 0.05
    least_always_work: float = 0.06  # of a rank's work: clocks that differ by a constant shift all that it seems to do
    steady: float = 0.8  # of the steps of its window in which a cause must be late


@dataclass(frozen=True, slots=True, kw_only=True)
class Late:
    """Endpoints of one host that are late in a window, by a share of a step or of work; `gain` in nats."""

    members: tuple[int, ...]
    host: str
    stage: int | None  # that is late as a whole
    window: Window
    late: float
    gain: float
    always: bool
    table: Lateness


@dataclass(frozen=True, slots=True)
class _Candidate:
    """A host or a stage, and its rows of a table."""

    name: str
    own: NDArray[np.bool_]
    stage: int | None = None


def _list_candidates(case: Case, table: Lateness) -> list[_Candidate]:
    """Every host, and every stage over several hosts where work is compared with the past."""
    hosts = np.array([case.hosts[e] for e in table.endpoints.tolist()], dtype=str)
    found = [_Candidate(host, hosts == host) for host in case.own_by_host]
    if not (table.of_work and table.of_past):
        return found
    stage = case.stage_of[table.endpoints]
    stages = [s for s in np.unique(stage[stage >= 0]).tolist() if len(np.unique(hosts[stage == s])) > 1]
    return [*found, *(_Candidate(f"stage {s}", stage == s, s) for s in stages)]


def _weigh(table: Lateness, one: _Candidate, config: DelayConfig) -> Late | None:
    own, late = one.own, table.late
    if not own.any() or (~np.isnan(late[own])).sum() < 3 or own.all():
        return None
    window = _find_window(_middle(late[_pick(_high(late[own]), own, config)]), config)
    if window is None:
        return None
    inside = np.zeros(late.shape[1], np.bool_)
    inside[window.first : window.last + 1] = True
    always = window.length > config.whole * late.shape[1] and not table.of_past
    if table.of_past and window.length > config.whole * late.shape[1]:
        return None
    base = np.zeros(len(late)) if always else _median(late[:, ~inside])
    base = np.nan_to_num(base)
    more = late - base[:, None]
    amount = np.nan_to_num(_median(more[:, inside]))
    chosen = _pick(amount[own], own, config)
    size = float(np.median(amount[chosen]))
    scale = max(config.noise, _spread(late[~own]), _spread(late[chosen][:, ~inside]) if not always else 0.0)
    rows = more[chosen][:, inside]
    each = (np.abs(rows) - np.abs(rows - size)) / scale
    per_step = np.nansum(np.clip(each, -config.step_nats, config.step_nats), axis=0)
    per_step = np.clip(per_step, -config.step_nats, config.step_nats * len(chosen))
    gain = float(per_step.sum())
    if np.mean(np.nan_to_num(_middle(rows)) > 0.5 * size) < config.steady:
        return None
    if always:
        others = _median(late[~own])
        differ = max(config.differ, _deviate(others), _spread(late[~own]) / 2)
        least = config.least_always_work if table.of_work else config.least_always
        if size < max(least, config.apart * differ) or (table.of_work and size > config.largest_always):
            return None
    elif size < max(config.least, 2 * scale):
        return None
    if gain < config.sure_nats:
        return None
    if one.stage is not None and len(chosen) < config.whole * own.sum():
        return None
    ends = tuple(sorted(table.endpoints[chosen].tolist()))
    return Late(
        members=ends, host=one.name, stage=one.stage, window=window, late=size, gain=gain, always=always, table=table
    )


def _pick(amount: Floats, own: NDArray[np.bool_], config: DelayConfig) -> Ints:
    """The rows of a host that are about as late as its latest."""
    rows = np.flatnonzero(own)
    top = float(np.max(np.nan_to_num(amount), initial=0.0))
    picked = rows[np.nan_to_num(amount, nan=-np.inf) >= config.alike * top] if top > 0 else rows
    return picked.astype(np.int64)


def _high(late: Floats) -> Floats:
    return quantile_rows(late, 0.7, axis=1)


def _find_window(values: Floats, config: DelayConfig) -> Window | None:
    """The steps in which a series is above the middle between its low and its high level."""
    known = values[~np.isnan(values)]
    if len(known) < 3:
        return None
    low, high = np.quantile(known, [0.05, 0.9])
    if low > 0.5 * high:  # late all the time
        low = 0.0
    return find_window(values, float(max((low + high) / 2, 0.5 * config.least)))


def _middle(late: Floats) -> Floats:
    return quantile_rows(late, 0.5, axis=0)


def _median(late: Floats) -> Floats:
    return quantile_rows(late, 0.5, axis=1)


def _deviate(values: Floats) -> float:
    """Mean distance from the median of what is known."""
    known = values[~np.isnan(values)]
    return float(np.abs(known - np.median(known)).mean()) if len(known) else 0.0


def _spread(late: Floats) -> float:
    """Mean distance of rows from their own middle, without the largest one in twenty."""
    if not late.size:
        return 0.0
    off = np.abs(late - _median(late)[:, None]).ravel()
    off = np.sort(off[~np.isnan(off)])
    return float(off[: max(1, int(0.95 * len(off)))].mean()) if len(off) else 0.0


def _explain(late: Late) -> float:
    """The share of all lateness of hops in its window, beyond the usual, that is of hops which a cause delays."""
    hops = late.table.hops
    if hops is None:
        return 1.0
    inside = np.zeros(hops.late.shape[1], np.bool_)
    inside[late.window.first : late.window.last + 1] = True
    more = hops.late[:, inside].mean(axis=1)
    if not late.always:
        more = np.maximum(more - hops.late[:, ~inside].mean(axis=1), 0.0)
    own = np.isin(hops.src, late.members)
    if late.table.how == "both":
        own |= np.isin(hops.dst, late.members)
    return float(more[own].sum() / max(more.sum(), 1e-12))


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """The smallest lateness that would be told of one rank, as a share of a step or of its work."""

    begun: float
    lasting: float


def measure_limits(table: Lateness, config: DelayConfig) -> Limits:
    """What a rank must be late by, where it begins within the observation and where it always is."""
    scale = max(config.noise, _spread(table.late))
    usual = _median(table.late)
    differ = _deviate(usual)
    return Limits(
        begun=max(config.least, 2 * scale),
        lasting=max(
            config.least_always_work if table.of_work else config.least_always,
            config.apart * max(config.differ, differ, _spread(table.late) / 2),
        ),
    )


def find_causes(case: Case, table: Lateness, config: DelayConfig) -> list[Late]:
    """Hosts whose ranks may be late by one table, best first; what a cause leaves unexplained counts against it."""
    weighed = [_weigh(table, one, config) for one in _list_candidates(case, table)]
    found = [late for late in weighed if late is not None]
    found = [replace(late, gain=late.gain * _explain(late)) for late in found if _is_felt(case, late, config)]
    return sorted((late for late in found if late.gain >= config.sure_nats), key=lambda c: -c.gain)


def _is_felt(case: Case, late: Late, config: DelayConfig) -> bool:
    """Whether steps are longer while it lasts, where it does not last all the time."""
    if late.always:
        return True
    longer = case.slower_by(late.window.first, late.window.last)
    if late.window.length < config.shortest or (longer is not None and longer < config.felt):
        return False
    inside = slice(late.window.first, late.window.last + 1)
    rows = np.isin(late.table.endpoints, late.members)
    held_up = _middle(late.table.late[rows])[inside] > config.alike * late.late
    length = case.length_s / float(np.quantile(case.length_s, 0.25, method="lower")) - 1
    more = np.clip(length, 0.0, 1.0)  # a single stop is no measure of how slow steps are
    return bool(more[inside][held_up].sum() >= config.explains * more.sum())


def choose_table(found: list[list[Late]], config: DelayConfig) -> list[Late]:
    """The causes by the table that explains most; hops that wait for both ends show the late one alone, if they do."""
    found = [causes for causes in found if causes]
    peers = [causes for causes in found if not causes[0].table.of_past or causes[0].table.of_work]
    found = peers or found  # What a member is late by against its like is its own; the past shows also who waits.
    if not found:
        return []
    most = max(causes[0].gain for causes in found)
    return next(causes for causes in found if causes[0].gain >= config.alike * most)


def share_out(found: list[Late], config: DelayConfig) -> list[tuple[Late, float]]:
    """The causes that may be the one, with the probability of each: what gains as much as the best is as likely."""
    if not found:
        return []
    best = found[0].gain
    odds = np.exp([-config.tied * (1 - late.gain / best) for late in found])
    odds /= odds.sum() + np.exp(-min(best, 50.0))
    return list(zip(found, odds.tolist(), strict=True))

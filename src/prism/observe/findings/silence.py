"""Silences: a job that stops in the middle of a step, who stopped first, and whether it came back."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import polars as pl

from prism.observe.findings.case import Case, Ints, culprit
from prism.records.findings import Culprit, Finding, FindingKind

_SILENT_AT_END = 3.0  # usual steps without a message before the observation ends
_SILENT_BETWEEN = 1.0  # the same where messages follow
_TOLERANCE = 0.02  # of a step: messages due so close together are due at once
_WHOLE = 0.03  # share of a step's messages that may be missing or extra in a clean stop
_SMALL = 0.7  # of a pair's smallest message: one that was cut short
_USUAL_SIZE = 4  # messages of a pair of one size
_STALLED = 0.05  # share of the endpoints that have sent one when a job stands still
_AT_ONCE = 0.003  # of a step: what is due so close together is due at the same moment
_SENDER = 1.1  # how much likelier the sender of a missing message is to be the one that stopped than its receiver
_TEMPLATES = 3  # steps that tell when each message is due


@dataclass(frozen=True, slots=True)
class Silence:
    """No message of the job from `start_ns` to `end_ns`; `last` is the last whole step before it."""

    start_ns: int
    end_ns: int
    last: int
    ends: bool  # whether messages follow


def find_hang(case: Case) -> list[Finding]:
    """Silences that began in the middle of a step, the rank that stopped first where it can be told."""
    if case.job.period_ns is None or case.messages.is_empty() or case.steps.height < 3:
        return []
    found = []
    for silence in _find_silences(case):
        finding = _explain(case, silence)
        if finding is not None:
            found.append(finding)
    return found


def _is_ever_silent(case: Case, usual: float) -> bool:
    """A quick look over tenths of a step at whether a silence worth measuring can be there."""
    start, end = case.messages["start_ns"].to_numpy(), case.messages["end_ns"].to_numpy()
    first, last = int(start.min()), int(end.max())
    bins = int((last - first) / (usual / 10)) + 2
    if case.observed_until_ns - last >= _SILENT_AT_END * usual or bins > 10 * len(start) + 1000:
        return True
    width = usual / 10
    opened = np.bincount(((start - first) / width).astype(np.int64), minlength=bins)
    closed = np.bincount(((end - first) / width).astype(np.int64), minlength=bins)
    busy = (np.cumsum(opened) - np.r_[0, np.cumsum(closed)[:-1]]) > 0
    edges = np.flatnonzero(np.diff(np.r_[True, busy, True].astype(np.int8)))
    return bool(len(edges) and (np.diff(edges)[::2] >= 10 * _SILENT_BETWEEN - 2).any())


def _find_silences(case: Case) -> list[Silence]:
    usual = float(np.median((case.steps["end_ns"] - case.steps["start_ns"]).to_numpy()))
    if usual <= 0 or not (_is_ever_silent(case, usual) or _is_cut_short(case, _last_end(case), usual)):
        return []
    ordered = case.messages.select("start_ns", "end_ns").sort("start_ns")
    start, reach = ordered["start_ns"].to_numpy(), np.maximum.accumulate(ordered["end_ns"].to_numpy())
    gaps = start[1:] - reach[:-1]
    # Silences that come again and again (evaluation, checkpoints) are part of how the job works.
    often = float(np.quantile(gaps, 1 - min(1.0, 2.5 / max(len(gaps), 1)))) if len(gaps) else 0.0
    found = [
        (int(reach[i]), int(start[i + 1]), True)
        for i in np.flatnonzero(gaps > max(_SILENT_BETWEEN * usual, 1.5 * min(often, 20 * usual)))
    ]
    if case.observed_until_ns - int(reach[-1]) >= _SILENT_AT_END * usual or _is_cut_short(case, int(reach[-1]), usual):
        found.append((int(reach[-1]), case.observed_until_ns, False))
    steady = np.sort(case.messages.filter(pl.col("role") != "rare")["start_ns"].to_numpy())
    starts = case.steps["start_ns"].to_numpy()
    per_step = float(
        np.median(np.searchsorted(steady, case.steps["end_ns"].to_numpy()) - np.searchsorted(steady, starts))
    )
    out = []
    for begin, end, followed in found:
        before = int(np.searchsorted(starts, begin, side="right")) - 1
        # A pause may count as part of the step it follows, which is whole all the same.
        while before >= 0 and not _is_whole(steady, int(starts[before]), min(begin, _end_of(case, before)), per_step):
            before -= 1
        if before >= 0:
            out.append(Silence(begin, end, before, followed))
    return out


def _last_end(case: Case) -> int:
    return int(case.messages["end_ns"].max())  # type: ignore[arg-type]


def _is_cut_short(case: Case, end_ns: int, usual: float) -> bool:
    """Whether the last that many endpoints sent are transfers that never got anywhere: the exporter gave them up."""
    cut = find_stalled(case, end_ns - round(usual), end_ns)
    return cut["src"].n_unique() >= max(2, _STALLED * len(case.job.endpoints))


def find_stalled(case: Case, begin_ns: int, end_ns: int) -> pl.DataFrame:
    """src dst start_ns: last messages of pairs, begun in a stretch of time and far smaller than the pair's others."""
    last = case.messages.filter((pl.col("start_ns") >= begin_ns) & (pl.col("start_ns") <= end_ns))
    last = last.sort("start_ns").group_by("src", "dst", maintain_order=True).tail(1)
    # What is always as small, such as the acknowledgements of a transport, was not cut.
    seen = case.messages.group_by("voice").agg(pl.len().alias("seen"))
    last = last.join(seen, on="voice").filter(pl.col("seen") < _USUAL_SIZE)
    steady = case.messages.filter(pl.col("role") != "rare")
    usual = steady.group_by("src", "dst").agg(pl.col("bytes").min().alias("least"))
    cut = last.join(usual, on=["src", "dst"]).filter(pl.col("bytes") < _SMALL * pl.col("least"))
    return cut.select("src", "dst", "start_ns")


def _is_whole(steady: Ints, start_ns: int, end_ns: int, per_step: float) -> bool:
    sent = np.searchsorted(steady, end_ns, side="right") - np.searchsorted(steady, start_ns)
    return bool(sent >= (1 - _WHOLE) * per_step)


def _end_of(case: Case, step: int) -> int:
    return int(case.steps["end_ns"][step])


def _explain(case: Case, silence: Silence) -> Finding | None:
    begin = min(_end_of(case, silence.last), silence.start_ns)
    due = _due_messages(case, silence, begin)
    if due is None:
        return None
    usual = float(np.median(case.length_s))
    length = (silence.end_ns - silence.start_ns) / 1e9
    stopped, why = _first_to_stop(case, due, begin, usual * 1e9)
    back = f"; it came back after {length:.1f} s" if silence.ends else ""
    evidence = f"no traffic for {length:.1f} s, {length / usual:.1f} usual steps, in the middle of a step; {why}{back}"
    if silence.ends and stopped.type == "endpoint":  # what came back was started again, and a host is what is replaced
        stopped = culprit("host", next(h for h in case.own_by_host if _has(case, h, stopped.id)))
    kind: FindingKind = "restart" if silence.ends and stopped.type == "job" else "hang"
    finding = case.finding(
        kind, stopped, silence.last, silence.last, lost_s=length if silence.ends else max(length, usual),
        score=0.95 if stopped.type != "job" else 0.8,
        evidence=evidence,
    )  # fmt: skip
    return replace(finding, start_ns=silence.start_ns, end_ns=silence.end_ns)


def _has(case: Case, host: str, addresses: str) -> bool:
    return addresses.split(",")[0] in {case.address(e) for e in case.own_by_host[host]}


def _due_messages(case: Case, silence: Silence, begin: int) -> pl.DataFrame | None:
    """src dst due missing: messages of the broken step, each with when it is due after the step's start.

    None where the step before the silence is whole, or nothing of another was sent: the job came to an end or a pause.
    """
    steady = case.messages.filter(pl.col("role") != "rare")
    counts = np.bincount(steady.filter(pl.col("step") >= 0)["step"].to_numpy(), minlength=case.steps.height)
    usual = float(np.median(counts))
    sent = steady.filter((pl.col("start_ns") >= begin) & (pl.col("start_ns") <= silence.start_ns))
    begun = find_stalled(case, begin, silence.start_ns)
    if sent.height <= _WHOLE * usual and begun.is_empty():
        return None
    like = np.flatnonzero(np.abs(counts[: silence.last + 1] - usual) <= 0.05 * usual)[-_TEMPLATES:]
    if not len(like):
        return None
    voice = ["src", "dst", "size_class"]
    offset = (pl.col("start_ns") - pl.col("step_ns")).alias("offset")
    starts = case.steps.select(pl.col("index").alias("step"), pl.col("start_ns").alias("step_ns"))
    template = steady.filter(pl.col("step").is_in(like)).join(starts, on="step").with_columns(offset)
    template = template.sort("offset").with_columns(pl.int_range(pl.len()).over([*voice, "step"]).alias("k"))
    due = template.group_by([*voice, "k"]).agg(pl.col("offset").median().alias("due"), pl.len().alias("num"))
    due = due.filter(pl.col("num") * 2 > len(like))
    done = sent.group_by(voice).agg(pl.len().alias("done"))
    due = due.join(done, on=voice, how="left").with_columns(missing=pl.col("k") >= pl.col("done").fill_null(0))
    if float(due["missing"].mean()) <= _WHOLE:  # type: ignore[arg-type]
        return None
    # A transfer that was cut short stands for the first one that its pair owes.
    owed = due.filter("missing").sort("due").group_by("src", "dst", maintain_order=True).agg(pl.col("due").first())
    owed = owed.join(begun.select("src", "dst"), on=["src", "dst"], how="semi").with_columns(begun=pl.lit(True))
    due = due.join(owed, on=["src", "dst", "due"], how="left").with_columns(pl.col("begun").fill_null(False))
    return due.select("src", "dst", "due", "missing", "begun")


def _first_to_stop(case: Case, due: pl.DataFrame, begin: int, usual: float) -> tuple[Culprit, str]:
    """The worker that the earliest missing messages have in common; the job where they point at no one."""
    if due["begun"].any():
        return _who_did_not_begin(case, due, usual)
    missing = due.filter("missing").sort("due")
    earliest = float(missing["due"][0])
    first = missing.filter(pl.col("due") <= earliest + _AT_ONCE * usual)
    votes: dict[str, float] = {}
    for s, d, at in first.select("src", "dst", "due").iter_rows():
        # Both ends of a missing message may be the one that does not come; the sender is more likely to be.
        near = 1.0 - 0.5 * (at - earliest) / (_AT_ONCE * usual + 1)
        votes[case.host(s)] = votes.get(case.host(s), 0.0) + _SENDER * near
        votes[case.host(d)] = votes.get(case.host(d), 0.0) + near
    for h in votes:
        votes[h] *= 1.5 if _owes_an_answer(case, h, begin + earliest + _TOLERANCE * usual) else 1.0
    hosts = {case.host(e) for e in case.job.endpoints.tolist()}
    if len(votes) > max(2, 0.5 * len(hosts)) or (len(votes) == len(hosts) and len(hosts) > 2):
        return culprit("job", case.job.id), "all ranks stopped at once"
    host = max(votes, key=lambda h: votes[h])
    own = sorted(case.own_by_host.get(host, set()))
    row = first.filter(pl.col("src").is_in(own) | pl.col("dst").is_in(own)).row(0, named=True)
    why = f"the first message missing is from {case.address(int(row['src']))} to {case.address(int(row['dst']))}"
    touched = {int(e) for side in ("src", "dst") for e in first[side] if case.host(int(e)) == host}
    if _is_lost(case, host, begin + earliest, usual):
        return culprit("host", host), f"{why}, and all of {host} fell silent with it"
    return _name_stopped(case, host, touched), why


def _name_stopped(case: Case, host: str, members: set[int]) -> Culprit:
    """A single endpoint where only one owes something, otherwise the host: its ranks stop together."""
    if len(members) == 1 or host in {case.address(e) for e in members}:
        return case.name_worker(sorted(members))
    return culprit("host", host)


def _who_did_not_begin(case: Case, due: pl.DataFrame, usual: float) -> tuple[Culprit, str]:
    """The worker that owes the first message which was not even begun, while others began theirs and were stuck."""
    owed = due.filter(pl.col("missing") & ~pl.col("begun"))
    stuck = set(due.filter("begun")["src"])
    idle = owed.filter(~pl.col("src").is_in(sorted(stuck)))
    if idle.is_empty():
        return culprit("job", case.job.id), "all ranks stopped at once"
    first = idle.filter(pl.col("due") <= float(idle["due"].min()) + _AT_ONCE * usual)  # type: ignore[arg-type]
    by_host: dict[str, set[int]] = {}
    for e in first["src"].unique().to_list():
        by_host.setdefault(case.host(int(e)), set()).add(int(e))
    host = max(by_host, key=lambda h: len(by_host[h]))
    if len(by_host) > max(1, 0.5 * len(case.own_by_host)):
        return culprit("job", case.job.id), "all ranks stopped at once"
    why = f"{len(stuck)} endpoints began transfers that got stuck, and these owe the first that was not begun"
    return _name_stopped(case, host, by_host[host]), why


def _owes_an_answer(case: Case, host: str, until_ns: float) -> bool:
    """Whether the last that moved at a host came in: it was its turn to send."""
    own = sorted(case.own_by_host.get(host, set()))
    before = case.messages.filter(pl.col("start_ns") <= until_ns)
    came = before.filter(pl.col("dst").is_in(own))["start_ns"].max()
    went = before.filter(pl.col("src").is_in(own))["start_ns"].max()
    return isinstance(came, int) and (not isinstance(went, int) or came > went)


def _is_lost(case: Case, host: str, at_ns: float, usual: float) -> bool:
    """Whether nothing on a host moved after a moment, while other hosts went on for a while."""
    own = np.array(sorted(case.own_by_host.get(host, set())), np.int64)
    later = case.messages.filter(
        (pl.col("start_ns") > at_ns + 2 * _TOLERANCE * usual) & (pl.col("start_ns") < at_ns + usual)
    )
    on_host = np.isin(later["src"].to_numpy(), own) | np.isin(later["dst"].to_numpy(), own)
    return later.height > 0 and not on_host.any()

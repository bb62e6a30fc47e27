"""Across ranks: who spoke first, who fell silent, whose message differs, whom the others name."""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from dataclasses import dataclass

from prism.explain.hits import SYMPTOM_DEPTH, Hit
from prism.explain.joblog import JobLog
from prism.explain.origins import named_rank

_NAMED = (  # what a message says about the rank that others wait for
    re.compile(r"[Rr]anks? \[?(\d+)(?:, \d+)*\]? failed to pass monitored[Bb]arrier"),
    re.compile(r"(?:[Mm]issing|[Ww]aiting (?:for|on)|[Ll]ost|[Dd]ead) (?:ranks?|workers?)[:= ]+\[?(\d+)"),
    re.compile(
        r"[Rr]ank (\d+) (?:is (?:not responding|dead|unresponsive)"
        r"|(?:has )?(?:died|exited|left|disappeared|failed to|timed out before))"
    ),
    re.compile(r"srun: error: [\w.-]+: tasks? (\d+): (?:Killed|Segmentation|Bus error|Aborted|Out Of Memory)"),
    re.compile(r"\brank[ =:]+\d+\b.{0,80}\bpeer(?: rank)?[ =:]+(\d+)"),
)
_SLURM_HOST = re.compile(
    r"(?:srun: error: |failed on node |ON |Node failure on |Nodes? )([a-z][\w-]*\d[\w-]*)\b(?=[: ,]|$)"
)
_PEER_HOST = re.compile(
    r"(?:peer|Connect to|connect to|from|to) \[?(\d{1,3}(?:\.\d{1,3}){3}|[a-z][\w-]*\d[\w.-]*)\]?[<:]"
)
_SEQUENCE = re.compile(r"SeqNum=(\d+)")
_GONE = re.compile(
    r"(?:closed|reset) by (?:remote )?peer|Broken pipe|remote process|Connection (?:refused|closed)"
    r"|failed to recv, got 0",
    re.IGNORECASE,
)
_FIELD = re.compile(r"^\s*(time|host|rank|exitcode)\s*: (\S+)")
_LOCAL_HOSTS = ("127.", "0.0.0.0", "localhost", "::1")


@dataclass(frozen=True, slots=True, kw_only=True)
class Suspect:
    """The rank and host that failed first, as far as the logs tell; `vanished` if it went without a word."""

    rank: int | None = None
    host: str | None = None
    vanished: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class LauncherSummary:
    """What torchrun wrote about the first failure that it observed."""

    rank: int | None = None
    host: str | None = None
    exit_code: int | None = None


def choose_root(hits: list[Hit]) -> Hit | None:
    """The deepest cause; among equals the first to speak, or without clocks the one that differs from the rest."""
    if not hits:
        return None
    depth = max(h.depth for h in hits)
    deepest = [h for h in hits if h.depth == depth]
    if depth == SYMPTOM_DEPTH:
        # Ranks that give up on a time-out close their connections: the time-out came before "closed by peer".
        deepest = [h for h in deepest if h.reason == "NCCLTimeoutError"] or deepest
    files = {h.line.file for h in deepest}
    if len(files) == 1:
        return min(deepest, key=lambda h: h.order)
    if all(h.line.time_ns is not None for h in deepest):
        return min(deepest, key=lambda h: (h.line.time_ns or 0, h.order))
    first_of_file: dict[str, Hit] = {}
    for hit in sorted(deepest, key=lambda h: h.order):
        first_of_file.setdefault(hit.line.file, hit)
    votes = Counter(h.reason for h in first_of_file.values())
    return min(first_of_file.values(), key=lambda h: (votes[h.reason], h.order))


def find_suspect(job: JobLog, hits: list[Hit], root: Hit) -> Suspect:
    """Name the faulty rank and host."""
    summary = read_summary(job)
    hosts = _hosts_of_ranks(job, summary)
    rank, vanished = _rank_at_fault(job, hits, root, summary)
    host = _host_at_fault(root, hosts, rank)
    if host is None and summary.rank == rank:
        host = summary.host
    return Suspect(rank=rank, host=host, vanished=vanished)


def _rank_at_fault(job: JobLog, hits: list[Hit], root: Hit, summary: LauncherSummary) -> tuple[int | None, bool]:
    if root.depth > SYMPTOM_DEPTH:
        rank = root.line.rank if root.line.rank is not None else _speaker(job, root, summary)
        return rank, False
    if summary.exit_code is not None and summary.exit_code < 0 and summary.exit_code != -15 and summary.exit_code != -6:
        return summary.rank, True
    named = Counter(int(m.group(1)) for h in hits for p in _NAMED if (m := p.search(h.line.text)))
    if named:
        return named.most_common(1)[0][0], False
    silent = _silent_ranks(job, hits)
    if silent:
        # A dead peer's connections close at once; where a time-out came first, the peer was only silent.
        timed_out = any(h.reason == "NCCLTimeoutError" for h in hits)
        return silent[0], not timed_out and any(_GONE.search(h.line.text) for h in hits)
    behind = _behind(hits)
    if behind is not None:
        return behind, False
    return (root.line.rank if root.line.rank is not None else _speaker(job, root, summary)), False


def _speaker(job: JobLog, root: Hit, summary: LauncherSummary) -> int | None:
    rank = named_rank(root.line.text)
    if rank is not None:
        return rank
    return summary.rank


def _silent_ranks(job: JobLog, hits: list[Hit]) -> list[int]:
    """Ranks that said nothing of the failure while most others did, the one that stopped first first."""
    ranks = {line.rank for line in job.lines if line.rank is not None}
    spoke = {h.line.rank for h in hits if h.line.rank is not None}
    silent = ranks - spoke
    if not silent or len(silent) * 2 > len(ranks):
        return []
    last: dict[int, tuple[int, int]] = {}
    for line in job.lines:
        if line.rank in silent and line.rank is not None:
            last[line.rank] = max(last.get(line.rank, (0, 0)), (line.time_ns or 0, line.progress))
    return sorted(silent, key=lambda r: (last.get(r, (0, 0)), r))


def _behind(hits: list[Hit]) -> int | None:
    """The rank whose collective number is lowest, where ranks disagree on it."""
    sequence: dict[int, int] = {}
    for hit in hits:
        match = _SEQUENCE.search(hit.line.text)
        rank = hit.line.rank if hit.line.rank is not None else named_rank(hit.line.text)
        if match and rank is not None:
            sequence.setdefault(rank, int(match.group(1)))
    if len(set(sequence.values())) < 2:
        return None
    return min(sequence, key=lambda r: (sequence[r], r))


def _host_at_fault(root: Hit, hosts: dict[int, str], rank: int | None) -> str | None:
    named = _SLURM_HOST.search(root.line.text)
    if named:
        return named.group(1)
    if root.reason == "NetworkError":
        peer = _PEER_HOST.search(root.line.text)
        if peer and not peer.group(1).startswith(_LOCAL_HOSTS):
            return peer.group(1)
    if root.line.host is not None and (rank is None or rank == root.line.rank or root.line.rank is None):
        return root.line.host
    return hosts.get(rank) if rank is not None else None


def _hosts_of_ranks(job: JobLog, summary: LauncherSummary) -> dict[int, str]:
    seen: dict[int, Counter[str]] = defaultdict(Counter)
    for line in job.lines:
        if line.rank is not None and line.host is not None:
            seen[line.rank][line.host] += 1
    hosts = {rank: names.most_common(1)[0][0] for rank, names in seen.items()}
    if summary.rank is not None and summary.host is not None:
        hosts.setdefault(summary.rank, summary.host)
    return hosts


def read_summary(job: JobLog) -> LauncherSummary:
    """Read torchrun's 'Root Cause' block."""
    for index, line in enumerate(job.lines):
        if "Root Cause (first observed failure)" not in line.text:
            continue
        fields: dict[str, str] = {}
        for following in job.lines[index + 1 : index + 14]:
            match = _FIELD.match(following.text)
            if match and following.file == line.file:
                fields.setdefault(match.group(1), match.group(2))
        return LauncherSummary(
            rank=_whole(fields.get("rank")), host=fields.get("host"), exit_code=_whole(fields.get("exitcode"))
        )
    return LauncherSummary()


def _whole(text: str | None) -> int | None:
    try:
        return int(text) if text is not None else None
    except ValueError:
        return None

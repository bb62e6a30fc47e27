"""Comparison of ranks: which failed first, which fell silent, whose message differs, which the others name."""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from dataclasses import dataclass

from prism.evidence.logs.hits import SYMPTOM_DEPTH, Hit
from prism.evidence.logs.joblog import JobLog
from prism.evidence.logs.launcher import SIGABRT, SIGKILL, SIGTERM, LauncherSummary, read_summary
from prism.evidence.logs.origins import named_rank
from prism.evidence.logs.routine import template_of

_SRUN_TASK = re.compile(r"srun: error: [\w.-]+: tasks? (\d+): (?:Killed|Segmentation|Bus error|Aborted|Out Of Memory)")
_NAMED = (  # how messages name the rank that others wait for
    re.compile(r"[Rr]anks? \[?(\d+)(?:, \d+)*\]? failed to pass monitored[Bb]arrier"),
    re.compile(r"(?:[Mm]issing|[Ww]aiting (?:for|on)|[Ll]ost|[Dd]ead) (?:ranks?|workers?)[:= ]+\[?(\d+)"),
    re.compile(
        r"[Rr]ank (\d+) (?:is (?:not responding|dead|unresponsive)"
        r"|(?:has )?(?:died|exited|left|disappeared|failed to|timed out before))"
    ),
    _SRUN_TASK,
    re.compile(r"\brank[ =:]+\d+\b.{0,80}\bpeer(?: rank)?[ =:]+(\d+)"),
)
_SLURM_HOST = re.compile(
    r"(?:srun: error: |failed on node |failure of node |Node failure on |Nodes? |on node "
    r")([a-z][\w-]*\d[\w-]*)\b(?=[: ,]|$)"
)
# Slurm names the node whose daemon wrote the line, which is seldom the node that failed.
_STEP_LOST = re.compile(r"\*\*\* (?:STEP|JOB) \S+ ON \S+ CANCELLED|^srun: error: Node failure on")
_FAILED_NODE = re.compile(r"(?:Node failure on|failure of node) ([a-z][\w-]*\d[\w-]*)")
_PEER_HOST = re.compile(
    r"(?:peer|Connect to|connect to|from|to) \[?(\d{1,3}(?:\.\d{1,3}){3}|[a-z][\w-]*\d[\w.-]*)\]?[<:]"
)
_SEQUENCE = re.compile(r"SeqNum=(\d+)")
_GONE = re.compile(
    r"(?:closed|reset) by (?:remote )?peer|Broken pipe|remote process|Connection (?:refused|closed)"
    r"|failed to recv, got 0",
    re.IGNORECASE,
)
_WORLD = re.compile(r"(?:world[_ ]?size|nranks|num_processes|nproc)\b['\"]?\s*[:=]?\s*(\d{1,6})\b", re.IGNORECASE)
_GPU = re.compile(r"\bGPU (\d{1,2}) has a total capacity")
_LOCAL_HOSTS = ("127.", "0.0.0.0", "localhost", "::1")


@dataclass(frozen=True, slots=True, kw_only=True)
class Suspect:
    """The rank and host that failed first, as far as the logs show.

    `vanished` if it left no message, `killed` if its launcher, which lives, saw somebody kill it.
    """

    rank: int | None = None
    host: str | None = None
    vanished: bool = False
    killed: bool = False
    notes: tuple[str, ...] = ()


def choose_root(hits: list[Hit]) -> Hit | None:
    """The deepest cause; among equals the first in time, or without clocks the one that differs from the rest."""
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


def may_prove(hit: Hit) -> bool:
    """Whether this line is evidence against a host: the job cannot have written it, or its runtime reported it."""
    return hit.line.trusted or hit.reported


def may_isolate(root: Hit, hits: list[Hit]) -> bool:
    """Whether this justifies isolating a host; a single line of a runtime's logger does not: a job can print one."""
    if root.line.trusted or root.raised:
        return True
    own = template_of(root.line.text)
    return root.reported and any(
        h.reported and h.reason == root.reason and template_of(h.line.text) != own for h in hits
    )


def find_suspect(job: JobLog, hits: list[Hit], root: Hit) -> Suspect:
    """Name the faulty rank and host, as far as the logs show them."""
    summary = read_summary(job)
    missing = find_missing_ranks(job)
    rank, vanished = _rank_at_fault(job, hits, root, summary)
    if root.depth <= SYMPTOM_DEPTH and missing and not vanished:
        # The ranks with logs report a lost peer; the rank without a log is the most likely one.
        rank = missing[0] if len(missing) == 1 else None
    hosts = _hosts_of_ranks(job, summary)
    host = _host_at_fault(job, root, hosts, rank) if may_prove(root) or vanished else None
    if host is None and rank is not None and may_prove(root):
        host = next((f.host for f in summary.failures if f.rank == rank), None)
    killed = vanished and summary.first.was_killed
    return Suspect(rank=rank, host=host, vanished=vanished, killed=killed, notes=_note_missing(missing))


def find_missing_ranks(job: JobLog) -> list[int]:
    """Ranks whose log is missing from this folder."""
    ranks = job.file_ranks
    if len(ranks) < 2 or len(job.progress) < len(ranks):
        return []
    declared = Counter(int(m.group(1)) for line in job.lines if (m := _WORLD.search(line.text)))
    size = max([max(ranks) + 1, *(n for n, _ in declared.most_common(1) if max(ranks) < n <= 2 * len(ranks))])
    missing = sorted(set(range(size)) - ranks)
    return missing if len(missing) * 2 < size else []


def _note_missing(missing: list[int]) -> tuple[str, ...]:
    if not missing:
        return ()
    named = ", ".join(map(str, missing[:8])) + (" and more" if len(missing) > 8 else "")
    return (f"rank {named} left no log in this folder" if len(missing) == 1 else f"ranks {named} left no logs here",)


def _rank_at_fault(job: JobLog, hits: list[Hit], root: Hit, summary: LauncherSummary) -> tuple[int | None, bool]:
    if root.depth > SYMPTOM_DEPTH:
        rank = root.line.rank if root.line.rank is not None else _writer_rank(job, hits, root, summary)
        return rank if rank is not None else _told_by_srun(job, root), False
    if summary.first.was_killed:
        return summary.first.rank, summary.first.exit_code == SIGKILL
    speaking = [h for h in hits if may_prove(h)]
    named = Counter(int(m.group(1)) for h in speaking for p in _NAMED if (m := p.search(h.line.text)))
    if named:
        return named.most_common(1)[0][0], False
    silent = _silent_ranks(job, hits)
    if silent:
        # The connections of a dead peer close at once; if a timeout came first, the peer was only silent.
        timed_out = any(h.reason == "NCCLTimeoutError" for h in hits)
        return silent[0], not timed_out and any(_GONE.search(h.line.text) for h in hits)
    behind = _behind(hits)
    late = behind if behind is not None else _never_waited(job, hits)
    if late is not None:
        return late, False
    return (root.line.rank if root.line.rank is not None else _writer_rank(job, hits, root, summary)), False


def _told_by_srun(job: JobLog, root: Hit) -> int | None:
    """The only task that srun reports as ended, if the step's own daemon says why and not which."""
    if root.line.writer != "scheduler":
        return None
    tasks = {int(m[1]) for line in job.lines if (m := _SRUN_TASK.match(line.text)) is not None}
    return next(iter(tasks)) if len(tasks) == 1 else None


def _writer_rank(job: JobLog, hits: list[Hit], root: Hit, summary: LauncherSummary) -> int | None:
    """The rank for a line without one: from its text, the launcher's list, or which other ranks reported errors."""
    rank = named_rank(root.line.text)
    if rank is not None:
        return rank
    failures = {f.rank: f for f in summary.failures if f.rank is not None}
    told = [r for r, f in failures.items() if root.line.text.strip() in f.traceback]
    if len(told) == 1:
        return told[0]
    gpu = _GPU.search(root.line.text)
    if gpu and int(gpu.group(1)) in failures:
        return int(gpu.group(1))
    # Ranks that reported a lost peer are victims, and so are those that the launcher or a watchdog ended.
    victims = {h.line.rank for h in hits if h.line.rank is not None and h.depth <= SYMPTOM_DEPTH and h is not root}
    ranks = {line.rank for line in job.lines if line.rank is not None} | set(failures)
    left = ranks - victims
    if victims and len(left) == 1:
        return next(iter(left))
    ended = [r for r, f in failures.items() if r in left and f.exit_code not in (SIGTERM, SIGABRT)]
    if len(ended) == 1:
        return ended[0]
    return summary.first.rank if summary.first.rank in left and (not victims or not ended) else None


def _silent_ranks(job: JobLog, hits: list[Hit]) -> list[int]:
    """Ranks that did not report the failure although most others did, in the order in which they stopped."""
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


def _never_waited(job: JobLog, hits: list[Hit]) -> int | None:
    """The only rank that did not time out: all others waited for it, and it only found their connections closed."""
    waited = {h.line.rank for h in hits if h.line.rank is not None and h.reason == "NCCLTimeoutError"}
    left = {line.rank for line in job.lines if line.rank is not None} - waited
    return next(iter(left)) if waited and len(left) == 1 else None


def _behind(hits: list[Hit]) -> int | None:
    """The rank whose collective number is lowest, if ranks disagree on it."""
    sequence: dict[int, int] = {}
    for hit in hits:
        match = _SEQUENCE.search(hit.line.text)
        rank = hit.line.rank if hit.line.rank is not None else named_rank(hit.line.text)
        if match and rank is not None:
            sequence.setdefault(rank, int(match.group(1)))
    if len(set(sequence.values())) < 2:
        return None
    return min(sequence, key=lambda r: (sequence[r], r))


def _host_at_fault(job: JobLog, root: Hit, hosts: dict[int, str], rank: int | None) -> str | None:
    text = root.line.text
    named = _SLURM_HOST.search(text) if root.line.writer != "application" else None
    peer = _PEER_HOST.search(text) if named is None and root.reason == "NetworkError" else None
    told = named.group(1) if named else peer.group(1) if peer else None
    if told is not None and not told.startswith(_LOCAL_HOSTS) and _is_backed(job, root, told):
        return told
    if root.line.writer == "scheduler" and _STEP_LOST.search(text):
        return _slurm_host(job) if root.line.trusted else None
    own = root.line.host
    its_own = rank is None or rank == root.line.rank or root.line.rank is None
    if own is not None and its_own and _is_backed(job, root, own):
        return own
    return hosts.get(rank) if rank is not None else None


def _slurm_host(job: JobLog) -> str | None:
    """The node that srun reports as failed, if the step's own daemon confirms that a node failed."""
    lines = [ln.text for ln in job.lines if ln.trusted and ln.writer == "scheduler"]
    if not any("NODE FAILURE" in text for text in lines):
        return None
    return next((m.group(1) for text in lines if (m := _FAILED_NODE.search(text)) is not None), None)


def _is_backed(job: JobLog, root: Hit, host: str) -> bool:
    """Whether more than one line that may come from the job supports a host's name."""
    if root.line.trusted or host in job.file_hosts:
        return True
    others = {
        template_of(line.text)
        for line in job.lines
        if (line.host == host or (line.writer != "application" and host in line.text)) and line is not root.line
    }
    return bool(others - {template_of(root.line.text)})


def _hosts_of_ranks(job: JobLog, summary: LauncherSummary) -> dict[int, str]:
    """Which host each rank runs on: the majority of its lines, if more than one kind of line agrees."""
    seen: dict[int, dict[str, set[str]]] = defaultdict(lambda: defaultdict(set))
    for line in job.lines:
        if line.rank is not None and line.host is not None:
            seen[line.rank][line.host].add(template_of(line.text))
    hosts: dict[int, str] = {}
    for rank, names in seen.items():
        host = max(names, key=lambda name: (name in job.file_hosts, len(names[name])))
        if host in job.file_hosts or len(names[host]) > 1:
            hosts[rank] = host
    for failure in summary.failures:
        if failure.rank is not None and failure.host is not None:
            hosts.setdefault(failure.rank, failure.host)
    return hosts

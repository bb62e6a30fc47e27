"""Clues about what stopped the job, from dumps, logs, stacks, NCCL RAS and kernels."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path

from prism.evidence.fusion.clues import Clue, Suspect
from prism.evidence.traces.hang import Hang
from prism.evidence.traces.kernel_log import GpuError, describe_error
from prism.evidence.traces.rank_logs import RankLog, find_first_failed, find_silent, is_loss_of_peer
from prism.evidence.traces.ras import Laggards
from prism.evidence.traces.standing import Standing
from prism.evidence.traces.watchdog import Behind
from prism.records.verdict import Verdict

# A collective that timed out shows that some rank was missing, not which one or why.
_SYMPTOMS = frozenset({"NCCLTimeoutError", "NCCLRemoteError", "Unknown", "none"})


_WORDS = {
    "absent": "hang: a rank did not come to a collective",
    "missing_dump": "hang: a rank was gone or held, and left no dump",
    "mismatch": "hang: ranks called different collectives",
    "deadlock": "hang: ranks wait for each other in different calls",
    "stuck": "hang inside a collective that all had entered",
    "none": "no hang",
}
_ADVICE = {
    "absent": "look at its stack (py-spy dump) and its host's kernel log; if it hangs again, restart without it",
    "missing_dump": "look at its log and its host's kernel log; let TORCH_FR_DUMP_TEMP_FILE name a shared folder",
    "mismatch": "fix the program where that rank takes another branch; a restart will hang again",
    "deadlock": "let all ranks call their groups in one order; a restart will hang again",
    "stuck": "collect NCCL RAS output, kernel logs and flow records of that minute",
    "none": "",
}


def read_hang(hang: Hang) -> Clue:
    """A hang as a clue; a deadlock is the program's fault, at the ranks that show it."""
    suspects = tuple(Suspect(type="rank", id=str(r)) for r in hang.ranks)
    if hang.line and hang.what in ("mismatch", "deadlock"):
        suspects += (Suspect(type="program", id=hang.line),)
    return Clue(
        source="flight_recorder",
        what=_WORDS[hang.what],
        text=hang.text + (f" ({hang.line})" if hang.line else ""),
        suspects=suspects if hang.what != "stuck" else (),
        since_ns=hang.since_ns or None,
        confidence=hang.confidence,
        alternatives=tuple(Suspect(type="rank", id=str(r)) for r in hang.alternatives),
        advice=_ADVICE[hang.what],
        shows="slow" if hang.what == "none" else "stop",
        causes=("stop",),
    )


def read_behind(behind: Behind) -> Clue:
    """The rank with the fewest calls when PyTorch's watchdog gave up."""
    ranks = ", ".join(str(r) for r in behind.ranks[:8])
    return Clue(
        source="rank_logs",
        what="hang: a rank launched fewer operations",
        text=f"watchdog: rank {ranks} had made {behind.enqueued} calls of group {behind.group}, others up to "
        f"{behind.most} (of {behind.members} ranks that say so)",
        suspects=tuple(Suspect(type="rank", id=str(r)) for r in behind.ranks[:16]),
        since_ns=None,
        confidence=round(0.9 / len(behind.ranks) ** 0.5, 2),
        shows="stop",
        causes=("stop",),
        advice="look at its stack (py-spy dump) and its host's kernel log; if it hangs again, restart without it",
    )


def read_verdict(verdict: Verdict) -> Clue:
    """A log's verdict as a clue; a symptom happens to all ranks, so it names no culprit."""
    lines = "; ".join(e.text for e in verdict.evidence[:2])
    symptom = verdict.cause.name in _SYMPTOMS or (verdict.category == "infrastructure" and is_loss_of_peer(lines))
    by_kernel = all("Xid" in e.text for e in verdict.evidence)  # The kernel's log does not show what the job did.
    suspects: tuple[Suspect, ...] = ()
    if not symptom:
        suspects = tuple(Suspect(type="host", id=h) for h in verdict.hosts)
        if verdict.first_rank is not None:
            suspects = (Suspect(type="rank", id=str(verdict.first_rank)), *suspects)
    return Clue(
        source="log",
        what=verdict.cause.name,
        text=f"{Path(verdict.log).name}: {verdict.says} ({verdict.category}): {lines}"[:600],
        suspects=suspects,
        since_ns=None,
        # A verdict's confidence is that of its reason, not of its host.
        confidence=verdict.confidence * 0.3 if symptom else min(verdict.confidence, 0.9),
        shows=None if by_kernel else "stop",
        causes=("stop",),
        advice=verdict.mitigation,
    )


def read_laggards(found: Sequence[Laggards]) -> list[Clue]:
    """What NCCL RAS shows; ranks of the largest communicator are the job's, those of others have only a host."""
    largest = max((x.size or 0 for x in found), default=0)
    clues = []
    for one in found[:5]:
        is_world = (one.size or 0) == largest
        suspects = [Suspect(type="rank", id=str(m.rank)) for m in one.members[:16] if is_world and m.rank >= 0]
        suspects += [Suspect(type="host", id=h) for h in dict.fromkeys(m.host for m in one.members if m.host)][:16]
        ranks = ", ".join(str(m.rank) for m in one.members[:8])
        behind = "does not answer" if one.behind is None else f"is {one.behind} operations behind the first"
        clues.append(
            Clue(
                source="ras",
                what="hang: a rank does not answer" if one.behind is None else "hang: a rank launched fewer operations",
                text=f"communicator {one.communicator} of {one.size or 'unknown'} ranks: rank {ranks} {behind}",
                suspects=tuple(suspects),
                since_ns=None,
                confidence=0.9 if one.behind is None else 0.8 / max(len(one.members) ** 0.5, 1),
                shows="stop",
                causes=("stop",),
                advice="look at its process and its host; restart without the host if it does not answer",
            )
        )
    return clues


def read_gpu_errors(errors: Sequence[GpuError]) -> list[Clue]:
    """Errors in kernel logs; those of hardware accuse a GPU, those of a program only say what it did."""
    seen: dict[tuple[str, str, int], GpuError] = {}
    for error in errors:
        if error.severity in ("hardware", "program"):
            seen.setdefault((error.host, error.device, error.code), error)
    clues = []
    for error in list(seen.values())[:8]:
        broken = error.severity == "hardware"
        named = (Suspect(type="host", id=error.host), Suspect(type="gpu", id=f"{error.host} {error.device}"))
        clues.append(
            Clue(
                source="log",
                what=f"{error.family} {error.code}",
                text=f"kernel log: {describe_error(error)}: {error.text}",
                suspects=named if broken else (),
                since_ns=error.at_ns,
                confidence=0.85 if broken else 0.4,
                causes=("stop",),  # Such errors end processes; one that they spare runs as fast as before.
                advice=f"drain {error.host}, reset or swap the GPU"
                if broken
                else "look for a wrong access in the program",
            )
        )
    return clues


def read_log_ends(logs: Sequence[RankLog], alive: Collection[int] = ()) -> list[Clue]:
    """Who died without a word, or failed first, while the others lost a peer."""
    by_rank = {log.rank: log for log in logs}
    for ranks, told in ((find_first_failed(logs), "failed by itself"), (find_silent(logs, alive), "wrote no error")):
        if ranks and len(ranks) <= 4:
            names = ", ".join(str(r) for r in ranks)
            lost = sum(log.lost_peer for log in logs)
            error = by_rank[ranks[0]].error
            return [
                Clue(
                    source="rank_logs",
                    what="a rank failed and the others lost it"
                    if error
                    else "a rank was killed and the others lost it",
                    text=f"rank {names} {told} while {lost} others lost the connection to a peer"
                    + (f": {error[:200]}" if error else ""),
                    suspects=tuple(Suspect(type="rank", id=str(r)) for r in ranks),
                    since_ns=None,
                    confidence=round((0.5 if by_rank[ranks[0]].is_mismatch else 0.95) / len(ranks), 2),
                    shows="stop",
                    causes=("stop",),
                    advice="look for who killed it: kernel log (out of memory), scheduler, its host"
                    if not error
                    else "",
                )
            ]
    return []


def read_standings(
    ranks: Sequence[Standing], hosts: Mapping[str, str] | None = None, lost_peer: Collection[int] = ()
) -> list[Clue]:
    """Who stands elsewhere than the ranks that wait in a collective or a message, is stopped, or has ended.

    `lost_peer` are ranks whose logs say that a peer was lost: they ended because another one had.
    """
    for where, what in (("stopped", "hang: a process is stopped"), ("ended", "hang: a process has ended")):
        found = [r for r in ranks if r.where == where and not (where == "ended" and r.rank in lost_peer)]
        if found:
            return [_accuse_standing(found, what, f"is in state {found[0].state}", 0.95, hosts or {})]
    waiting = [r for r in ranks if r.where in ("collective", "message")]
    elsewhere = [r for r in ranks if r.where == "elsewhere" and r.line]
    if waiting and elsewhere and len(elsewhere) <= len(waiting):
        lock = ", holding the interpreter's lock," if elsewhere[0].holds_lock else ""
        told = f"is at {elsewhere[0].line}{lock} while {len(waiting)} ranks wait in collectives or messages"
        sure = 0.95 if len(elsewhere) == 1 and len(waiting) == len(ranks) - 1 else 0.85
        return [_accuse_standing(elsewhere, "hang: a rank is not in the collective", told, sure, hosts or {})]
    places = Counter(r.line for r in ranks if r.line)
    text = "; ".join(f"{n} ranks at {line}" for line, n in places.most_common(3)) or "no stacks could be read"
    return [
        Clue(source="stacks", what="stacks of a running job", text=text, suspects=(), since_ns=None, confidence=0.1)
    ]


def _accuse_standing(
    ranks: Sequence[Standing], what: str, told: str, confidence: float, hosts: Mapping[str, str]
) -> Clue:
    suspects = tuple(Suspect(type="rank", id=str(r.rank)) for r in ranks[:16])
    if ranks[0].line and len(ranks) == 1:
        suspects += (Suspect(type="program", id=ranks[0].line),)
    place = f" on {hosts[str(ranks[0].rank)]}" if str(ranks[0].rank) in hosts else ""
    return Clue(
        source="stacks",
        what=what,
        text=f"rank {', '.join(str(r.rank) for r in ranks[:8])} (process {ranks[0].pid}{place}) {told}",
        suspects=suspects,
        since_ns=None,
        confidence=confidence,
        shows="stop",
        causes=("stop",),
        advice="look at that line of the program and at the host",
    )

"""Clues about what stopped the job, from dumps, logs, stacks, NCCL RAS and kernels."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from pathlib import Path

from prism.evidence.fusion.clues import Clue, Suspect
from prism.evidence.traces.consensus import Apart, Consensus, describe_cluster
from prism.evidence.traces.hang import Hang
from prism.evidence.traces.kernel_log import GpuError, describe_error
from prism.evidence.traces.rank_logs import RankLog, find_first_failed, find_silent, is_loss_of_peer
from prism.evidence.traces.ras import Laggards
from prism.evidence.traces.reliability import Situation, be_sure
from prism.evidence.traces.stacks import describe_place
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
_APART = {
    "stopped": "hang: a process is stopped",
    "ended": "hang: a process has ended",
    "apart": "hang: a rank is not where the others wait",
}
_MOST_ENDED = 4  # ranks that ended first; more of them are a symptom
_LEAST = 0.05  # probability of a division of ranks that is worth a line
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
    symptom = verdict.reason in _SYMPTOMS or (verdict.category == "infrastructure" and is_loss_of_peer(lines))
    by_kernel = all("Xid" in e.text for e in verdict.evidence)  # The kernel's log does not show what the job did.
    suspects: tuple[Suspect, ...] = ()
    if not symptom:
        suspects = tuple(Suspect(type="host", id=h) for h in verdict.hosts)
        if verdict.first_rank is not None:
            suspects = (Suspect(type="rank", id=str(verdict.first_rank)), *suspects)
    return Clue(
        source="log",
        what=verdict.reason,
        text=f"{Path(verdict.log).name}: {verdict.reason} ({verdict.category}): {lines}"[:600],
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
    failed, silent = find_first_failed(logs), find_silent(logs, alive)
    ranks = failed or silent
    if not ranks or len(ranks) > _MOST_ENDED:
        return []
    error = by_rank[ranks[0]].error if failed else ""
    by_size = bool(failed) and by_rank[ranks[0]].is_mismatch
    situation: Situation = "silent" if not failed else "failed_by_size" if by_size else "failed_first"
    lost = sum(log.lost_peer for log in logs)
    how = f"failed by itself while {lost} others lost the connection to a peer: {error[:200]}"
    quiet = f"wrote no error while {lost} others lost the connection to a peer"
    return [
        Clue(
            source="log",
            what="a rank failed and the others lost it" if failed else "a rank was killed and the others lost it",
            text=f"rank {', '.join(str(r) for r in ranks)} {how if failed else quiet}",
            suspects=tuple(Suspect(type="rank", id=str(r)) for r in ranks),
            since_ns=None,
            confidence=round(be_sure(situation) / len(ranks), 2),
            shows="stop",
            causes=("stop",),
            advice="" if failed else "look for who killed it: kernel log (out of memory), scheduler, its host",
        )
    ]


def read_consensus(found: Consensus) -> list[Clue]:
    """Who stands apart from the ranks that wait; where nobody does, where all of them stand."""
    if found.apart:
        return [_accuse(apart) for apart in found.apart if apart.confidence >= _LEAST]
    text = "; ".join(describe_cluster(c) for c in found.clusters[:3]) or "no stacks could be read"
    return [
        Clue(
            source="stacks",
            what="no hang: the ranks move" if found.moves else "all ranks stand together",
            text=f"the ranks stood elsewhere at each look: {text}" if found.moves else text,
            suspects=(),
            since_ns=None,
            confidence=0.5 if found.moves else 0.1,
            shows="slow" if found.moves else None,
            causes=("stop",),
        )
    ]


def _accuse(apart: Apart) -> Clue:
    """One division of the ranks into those that wait and those that are waited for."""
    first = apart.stacks[0]
    suspects = tuple(Suspect(type="rank", id=str(s.rank)) for s in apart.stacks[:16])
    if first.line and len({s.line for s in apart.stacks}) == 1:
        suspects += (Suspect(type="program", id=first.line),)
    place = f" on {first.host}" if first.host else ""
    waits = f"{len(apart.waiting)} ranks wait"
    if apart.waiting:
        waits += f" ({describe_place(apart.waiting[0])})"
    return Clue(
        source="stacks",
        what=_APART[apart.what],
        text=f"{describe_cluster(apart.stacks)} (process {first.pid}{place}) while {waits}",
        suspects=suspects,
        since_ns=None,
        confidence=apart.confidence,
        shows="stop",
        causes=("stop",),
        advice="look at that line of the program and at the host",
    )

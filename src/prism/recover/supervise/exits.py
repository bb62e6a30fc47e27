"""How the processes of an attempt ended: by a signal, by an exception, or because a peer was lost.

Read from exit codes and from the summary that torchrun prints. An exit code is a fact; a line of a log may come from a
helper process, or from a rank that failed only because another one did.
"""

from __future__ import annotations

import re
import signal
from dataclasses import dataclass
from pathlib import Path

from prism.records.causes import signal_in_code
from prism.recover.supervise.launchers import is_killed

_TAIL_BYTES = 4 << 20
_ROOT_CAUSE = re.compile(
    rb"Root Cause \(first observed failure\):.{0,80}?time\s*: (\S+)"
    rb".{0,400}?rank\s*: (\d+) \(.{0,400}?exitcode\s*: (-?\d+)",
    re.DOTALL,
)
_TOLD_TO_GO = re.compile(
    rb"Received (?:Signals\.SIGTERM|15) death signal|SignalException: Process \d+ got signal: 15"
    rb"|CANCELLED AT .{0,60}DUE TO"
)
# The last line of a rank that failed because another rank was gone.
_PEER_LOST = re.compile(
    rb"connection (?:closed|reset|refused|was forcibly closed)|connection.{0,40}by peer|broken pipe|socket timeout"
    rb"|remote process exited|ncclremoteerror|ncclsystemerror|nccl (?:error|communicator was aborted)|ncclcommabort"
    rb"|distbackenderror|distnetworkerror|diststoreerror|watchdog caught collective operation timeout"
    rb"|timed out waiting .{0,40}(?:recv|send)|gloo/transport/tcp",
    re.IGNORECASE,
)
_RANK_LINE = re.compile(rb"^\[(?:rank|default)(\d+)\]:")
_EXCEPTION = re.compile(rb"^(?:\[(?:rank|default)\d+\]:\s*)?([A-Za-z_][\w.]{0,80}(?:Error|Exception|Interrupt|Exit))\b")
_HELPER = re.compile(rb"^(?:\[\w+\]:\s*)?Process (?:\w+Process|Process|\w+)-\d+(?::\d+)*:\s*$|^Exception in thread ")


@dataclass(frozen=True, slots=True, kw_only=True)
class Ending:
    """What ended an attempt, as far as exit codes and the launcher's summary show."""

    signal: int | None = None
    told_to_go: bool = False  # the launcher itself was asked to end: preemption, a shutdown, an operator
    rank: int | None = None  # the first to fail
    peer_lost: bool = False


def read_ending(logs: list[Path], code: int | None) -> Ending:
    """The first failure of an attempt, from its logs' last megabytes and its exit code."""
    texts = [_tail(path) for path in logs]
    roots = [match for text in texts for match in _ROOT_CAUSE.finditer(text)]
    # Another launcher may list a rank that lost its peer before the one that was killed.
    first = min(roots, key=lambda match: (not is_killed(int(match[3])), match[1]), default=None)
    rank = int(first[2]) if first is not None else None
    number = signal_in_code(int(first[3]) if first is not None else code)
    lost = any(_lost_a_peer(text, rank) for text in texts)
    told = any(_TOLD_TO_GO.search(text) for text in texts) or number == signal.SIGTERM
    return Ending(signal=number, told_to_go=told, rank=rank, peer_lost=lost)


def write_own_words(source: Path, target: Path, rank: int | None) -> None:
    """Copy a log without the lines of child processes, threads, and ranks other than the first to fail."""
    with source.open("rb") as lines, target.open("wb") as kept:
        inside = False
        for line in lines:
            mark = _RANK_LINE.match(line)
            if mark is not None and rank is not None and int(mark[1]) != rank:
                continue
            if _HELPER.match(line):
                inside = True
            elif inside:  # skip to the line of the exception, which ends a traceback
                inside = not _EXCEPTION.match(line)
            else:
                kept.write(line)


def _lost_a_peer(text: bytes, rank: int | None) -> bool:
    """Whether the first rank to fail ended because another was gone; any rank if the lines name no ranks."""
    found = [line for line in text.splitlines() if _EXCEPTION.match(line) and b"ChildFailedError" not in line]
    own = [line for line in found if rank is not None and (m := _RANK_LINE.match(line)) and int(m[1]) == rank]
    return any(_PEER_LOST.search(line[:2_000]) for line in own or found)


def _tail(path: Path) -> bytes:
    try:
        with path.open("rb") as handle:
            handle.seek(max(0, path.stat().st_size - _TAIL_BYTES))
            return handle.read(_TAIL_BYTES)
    except OSError:
        return b""

"""How each rank's own log ends: with an error of its own, with the loss of a peer, or without a word."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable
from dataclasses import dataclass
from pathlib import Path

from prism.evidence.traces.stacks import find_last_line

_NAME = re.compile(r"rank[-_]?(\d{1,6})\b|(?:^|[-_.])(\d{1,6})\.(?:log|out|err)$")
_TAIL_BYTES = 16_384
_ERROR = re.compile(
    r"^(?:\[?rank\d{1,6}\]?:?\s*)?([A-Za-z_][\w.]{0,80}(?:Error|Exception|Interrupt|Exit|Failure)):?(.{0,300})"
)
_ABORT = re.compile(r"^\s*what\(\):\s*(.{0,300})|^Fatal Python error: (.{0,300})")
# Whoever receives a message of another size than it expects aborts; it may be the one that is wrong, or its peer.
_MISMATCH = re.compile(r"size doesn't match|collective mismatch", re.IGNORECASE)
_STEP = re.compile(r"\b(?:global_?)?(?:step|iteration|iter)[\s=:#]{1,20}(\d{1,12})\b", re.IGNORECASE)
_PEER_LOST = re.compile(
    r"Connection (?:closed|reset) by peer|Connection refused|Broken pipe|Socket Timeout|remote process exited|"
    r"Read error|Write error|ncclRemoteError|ncclSystemError|DistNetworkError|heartbeat|Timed out waiting",
    re.IGNORECASE,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class RankLog:
    """The end of one rank's log."""

    rank: int
    error: str  # its last error line; empty where there is none
    lost_peer: bool  # the error says that somebody else went away
    line: str = ""  # of the program, in its last traceback
    step: int | None = None  # the last step or iteration that it named

    @property
    def is_mismatch(self) -> bool:
        """Whether it met a message that it did not expect."""
        return bool(_MISMATCH.search(self.error))


def read_rank_logs(paths: Iterable[Path]) -> list[RankLog]:
    """Logs that are named after a rank, by rank; of two of one rank the one with an error counts."""
    found: dict[int, RankLog] = {}
    for path in paths:
        named = _NAME.search(path.name)
        if named is None:
            continue
        log = _read(path, int(named.group(1) or named.group(2)))
        if log.rank not in found or (log.error and not found[log.rank].error):
            found[log.rank] = log
    return [found[r] for r in sorted(found)]


def _read(path: Path, rank: int) -> RankLog:
    with path.open("rb") as handle:
        handle.seek(max(path.stat().st_size - _TAIL_BYTES, 0))
        text = handle.read().decode("utf-8", "replace")
    lines = (line[:400] for line in text.splitlines())
    errors = [m.group(0).strip() for line in lines if (m := _ERROR.match(line) or _ABORT.match(line))]
    last = errors[-1] if errors else ""
    steps = _STEP.findall(text)
    return RankLog(
        rank=rank,
        error=last[:300],
        lost_peer=bool(_PEER_LOST.search(last)),
        line=find_last_line(text),
        step=int(steps[-1]) if steps else None,
    )


def is_loss_of_peer(text: str) -> bool:
    """Whether an error only says that somebody else went away."""
    return bool(_PEER_LOST.search(text))


def find_silent(logs: Iterable[RankLog], alive: Collection[int] = ()) -> list[int]:
    """Ranks that ended without a word while at least half of the others lost a peer: they were killed.

    `alive` are ranks that are known to have lived when the others waited: whoever ended them did so afterwards.
    """
    logs = list(logs)
    lost = [log for log in logs if log.lost_peer]
    silent = [log.rank for log in logs if not log.error and log.rank not in alive]
    return silent if lost and silent and len(silent) <= len(lost) and len(lost) * 2 >= len(logs) - len(silent) else []


def find_ahead(logs: Iterable[RankLog]) -> list[int]:
    """Ranks whose log names a later step than those of all others, who agree: they went on without the others."""
    logs = [log for log in logs if log.step is not None]
    steps = sorted({log.step for log in logs if log.step is not None})
    ahead = [log.rank for log in logs if log.step == steps[-1]]
    return ahead if len(steps) == 2 and len(ahead) * 2 <= len(logs) else []


def find_first_failed(logs: Iterable[RankLog]) -> list[int]:
    """Ranks with an error of their own while others lost a peer."""
    logs = list(logs)
    own = [log.rank for log in logs if log.error and not log.lost_peer]
    return own if own and any(log.lost_peer for log in logs) else []

"""Where a rank stood when it was looked at: in a collective, in a message, or elsewhere in its program.

Read from py-spy's stacks and from the tracebacks that ranks print when a peer is lost. Only the main thread counts:
threads beside it wait all the time.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

Where = Literal["collective", "message", "elsewhere", "stopped", "ended", "unknown"]

_FRAME = re.compile(r"^\s{4}(\S.{0,200}?) \(([^()]{1,500}?):(\d{1,7})\)$", re.MULTILINE)
_TRACED = re.compile(r'^\s*File "([^"\n]{1,500})", line (\d{1,7}), in ([\w<>.]{1,200})', re.MULTILINE)
_PROCESS = re.compile(r"^== process (\d{1,10})(?: rank (\d{1,7}))?: ", re.MULTILINE)
_STATE = re.compile(r"^state: (.{1,40})$", re.MULTILINE)
_MESSAGES = frozenset({"send", "recv", "isend", "irecv", "batch_isend_irecv", "recv_any"})
_COLLECTIVES = re.compile(
    r"(?:_?all_?(?:reduce|gather|to_all)|reduce_scatter|_?barrier|monitored_barrier|broadcast|scatter|gather|reduce|"
    r"ncclAllReduce|synchronize)(?:_\w{1,40})?"
)
_GROUP_WORDS = ("distributed_c10d.py", "torch/distributed/")
_LARGEST_BYTES = 64 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class Standing:
    """Where one rank stood."""

    rank: int
    pid: int
    where: Where
    state: str  # of the process, such as S (sleeping); empty where unknown
    line: str  # innermost line of the user's own program, file:line
    holds_lock: bool = False  # it holds the interpreter's lock, so its other threads cannot run either


def looks_like_stacks(path: Path) -> bool:
    """Whether a file is what `prism supervise` writes when an attempt hangs."""
    if path.suffix != ".txt" or not path.is_file():
        return False
    with path.open("rb") as handle:
        return handle.read(11) == b"== process "


def read_stacks(paths: Iterable[Path]) -> list[Standing]:
    """Ranks in files of stacks; processes without a rank are launchers or workers and are left out."""
    found: dict[int, Standing] = {}
    for path in paths:
        with path.open("rb") as handle:
            text = handle.read(_LARGEST_BYTES).decode("utf-8", "replace")
        heads = list(_PROCESS.finditer(text))
        for head, after in zip(heads, [*heads[1:], None], strict=True):
            if head.group(2) is None:
                continue
            part = text[head.end() : after.start() if after else len(text)]
            state = _STATE.search(part)
            one = read_stack(part, rank=int(head[2]), pid=int(head[1]), state=state[1] if state else "")
            # Workers of a rank carry its number too; the first process of a rank, by number, is the rank itself.
            if one.rank not in found or one.pid < found[one.rank].pid:
                found[one.rank] = one
    return [found[r] for r in sorted(found)]


def read_stack(text: str, *, rank: int, pid: int, state: str) -> Standing:
    """Where a process stands by its state and what py-spy printed about it."""
    threads = re.split(r"^Thread ", text, flags=re.MULTILINE)[1:]
    main = next((t for t in threads if '"MainThread"' in t[:200]), threads[0] if threads else text)
    frames = [(name, file, int(line)) for name, file, line in _FRAME.findall(main)]
    where: Where = classify_frames([(name, file) for name, file, _ in frames])
    if state[:1] in ("T", "t"):
        where = "stopped"
    elif state[:1] in ("Z", "X") or state == "gone":
        where = "ended"
    return Standing(
        rank=rank, pid=pid, where=where, state=state, line=_own_line(frames), holds_lock="+gil)" in main[:200]
    )


def read_traceback(text: str) -> Where:
    """Where a rank stood by the last traceback that it printed."""
    _, found, last = text.rpartition("Traceback (most recent call last)")
    frames = [(name, file) for file, _, name in _TRACED.findall(last)] if found else []
    return classify_frames(frames) if frames else "unknown"


def classify_frames(frames: list[tuple[str, str]]) -> Where:
    """What a stack of (function, file) does, whichever end it begins with."""
    if not frames:
        return "unknown"
    named = [(name.rpartition(".")[2], file) for name, file in frames]
    if any(name in _MESSAGES and any(word in file for word in _GROUP_WORDS) for name, file in named):
        return "message"
    if any(_COLLECTIVES.fullmatch(name) for name, _ in named) or any("distributed_c10d" in file for _, file in named):
        return "collective"
    return "elsewhere"


def _own_line(frames: list[tuple[str, str, int]]) -> str:
    """The innermost line of the user's own program."""
    for _, file, line in frames:
        if "site-packages" not in file and "torch/" not in file and "/python3" not in file and not file.startswith("<"):
            return f"{file}:{line}"
    return ""

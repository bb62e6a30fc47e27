"""The words that make a line relevant, as one automaton that reads each byte once."""

from __future__ import annotations

import re
from collections import deque
from dataclasses import dataclass
from functools import cache, lru_cache

import numpy as np
from numpy.typing import NDArray

TROUBLE, PROGRESS, BREAK = 1, 2, 4
MARK_SHIFT = 28
_DIGIT = re.compile("[0-9]")
STATE = (1 << MARK_SHIFT) - 1

# Lower case; matched without regard to case. Words of the rules are added to these.
TROUBLE_WORDS: tuple[str, ...] = (
    "error", "exception", "traceback", "fail", "fatal", "abort", "kill", "terminat", "timed out", "timeout", "time-out",
    "timing out", "denied", "not permitted", "forbidden", "unauthorized", "restricted", "gated", "permission",
    "no such",
    "not found", "no space", "disk full", "quota", "out of memory", "oom", "cannot", "can't", "could not", "couldn't",
    "unable", "invalid", "unrecognized", "unknown", "not defined", "no module", "undefined symbol", "refused",
    "by peer", "closed", "unreachable", "broken pipe", "sigbus", "sigsegv", "sigkill", "sigfpe", "signal ", "bus error",
    "panic", "lockup", "watchdog", "nccl warn", "corrupt", "truncated", "mismatch", "must match", "must be",
    "not supported",
    "unsupported", "unexpected", "missing", "assert", "division", "modulo by", "out of range", "out of bounds",
    "does not", "doesn't", "did not", "is not", "are not", "not enough", "too many", "shapes", "xid", "nvlink", "ecc ",
    "fallen off", "is lost", "link down", "link is down", "aer:", "mce:", "mlx5", "not ready", "notready", "unhealthy",
    "node fail", "node_fail", "not responding", "due to node", "evicted", "imminent", "rebooting", "core dumped",
    "segmentation", "exitcode", "exit code", "exit status", "root cause", "cancelled", "what():", 'file "', "frame #",
    "above exception", "during handling", "hang", "stuck", "spike", "is nan", "nan in", "found nan", "diverged",
    "loss scale", "usage:", "conflicting", "required", "illegal", "misaligned", "cublas_status", "cudnn_status",
    "remote process", "vendor err", "got completion", "retry counter", "ancdata", "shared memory", "/dev/shm",
    "found 0", "0 images", "0 files", "0 samples", "empty", "not exist", "read-only", "stale", "input/output", "errno",
    "too old", "insufficient", "expected", "before assignment", "positional argument", "keyword argument", "syntax",
    "unindent", "indent", "botocore", "x-oss", "nosuchkey", "slowdown", "max retries", "resolve", "resolution",
    "disconnected", "lost", "unavailable", "address already", "eaddrinuse", "socket", "rendezvous", "tcpstore",
    "bad_alloc", "allocate", "not installed", "compilation", "make: ***", "ninja:", "nvcc", "*** ", "died", "dead",
    "heartbeat", "already at minimum", "not implemented", "inplace", "require grad", "second time", "launch for",
    "credential", "prolog", "not initialized", "uninitialized", "busy", "dbe", "row remap", "sxid", "uncorrect",
    "no route", "name or service", "operand type", "indices", "values to unpack", "convert string", "not valid",
    "not a valid", "object has no", "has no attribute", "size of the tensor", "same device", "not a ", "never",
    "unspecified", "exits with", "interrupt", "preempt", "no checkpoint", "no files", "no images", "no data",
)  # fmt: skip
PROGRESS_WORDS: tuple[str, ...] = (
    "iteration ", "iter ", "it/s", "s/it", "loss:", "loss=", "loss =", "loss'", 'loss"', "lm loss", "step:", "step=",
    "step ", "steps/s", "step/s", "global_step", "samples/s", "tokens/s", "epoch:", "epoch=", "epoch ",
)  # fmt: skip


@lru_cache(maxsize=65536)
def has_trouble(text: str) -> bool:
    """Whether a line contains a trouble word, apart from the words of the rules."""
    return _search(TROUBLE_WORDS).search(text.lower()) is not None


@lru_cache(maxsize=65536)
def is_progress(text: str) -> bool:
    """Whether a line reports training progress, by the definition of the scanners."""
    moved = _search(PROGRESS_WORDS).search(text.lower()) is not None
    return moved and _DIGIT.search(text) is not None and not has_trouble(text)


@cache
def _search(words: tuple[str, ...]) -> re.Pattern[str]:
    """A pattern that finds any of the words; shared beginnings are tried once, so many words cost little."""
    return re.compile(_branch(sorted(set(words))))


def _branch(words: list[str]) -> str:
    if "" in words or len(words) == 1:
        return "" if "" in words else re.escape(words[0])
    by_first: dict[str, list[str]] = {}
    for word in words:
        by_first.setdefault(word[0], []).append(word[1:])
    return "(?:" + "|".join(re.escape(first) + _branch(rest) for first, rest in by_first.items()) + ")"


@dataclass(frozen=True, slots=True)
class Automaton:
    """A dense Aho-Corasick machine over byte classes.

    `table[(value & STATE) + classes[byte]]` is the next value: a row's offset, with marks in its highest bits.
    """

    classes: NDArray[np.uint8]
    table: NDArray[np.uint32]


@cache
def build_automaton(trouble: tuple[str, ...]) -> Automaton:
    """The automaton for trouble words, progress words and line ends, case-insensitive."""
    words = [(w.encode(), TROUBLE) for w in trouble] + [(w.encode(), PROGRESS) for w in PROGRESS_WORDS]
    classes = np.zeros(256, np.uint8)
    for index, byte in enumerate(sorted({b for w, _ in words for b in w}), start=2):
        classes[byte] = index
        classes[ord(chr(byte).upper())] = index
    classes[[10, 13]] = 1
    width = int(classes.max()) + 1
    children: list[dict[int, int]] = [{}]
    marks = [0]
    for word, mark in words:
        state = 0
        for byte in word:
            state = children[state].setdefault(int(classes[byte]), len(children))
            if state == len(marks):
                children.append({})
                marks.append(0)
        marks[state] |= mark
    states = _link(children, marks, width)
    table = states.astype(np.uint32) * width + (np.array(marks, np.uint32)[states] << MARK_SHIFT)
    table[:, 1] = BREAK << MARK_SHIFT
    return Automaton(classes, np.ascontiguousarray(table.reshape(-1), np.uint32))


def _link(children: list[dict[int, int]], marks: list[int], width: int) -> NDArray[np.int64]:
    """Complete the trie into an automaton; a state also has the marks of its longest proper suffix."""
    states = np.zeros((len(children), width), np.int64)
    fail = [0] * len(children)
    queue = deque([0])
    while queue:
        state = queue.popleft()
        for symbol in range(width):
            child = children[state].get(symbol)
            onward = int(states[fail[state], symbol]) if state else 0
            states[state, symbol] = onward if child is None else child
            if child is not None:
                fail[child] = onward
                marks[child] |= marks[onward]
                queue.append(child)
    return states

"""What a column means by the words in its name, where no list has the name as a whole."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

_WORD = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+|\d+")
_SAME: Mapping[str, str] = {
    "gpus": "gpu", "ngpus": "gpu", "ngpu": "gpu", "accelerators": "gpu", "accelerator": "gpu", "tres": "gpu",
    "gres": "gpu", "slots": "gpu", "submitted": "submit", "submission": "submit", "created": "submit",
    "creation": "submit", "queued": "submit", "enqueued": "submit", "qdate": "submit", "ctime": "submit",
    "started": "start", "begin": "start", "began": "start", "launched": "start", "launch": "start", "run": "start",
    "ended": "end", "finish": "end", "finished": "end", "completed": "end", "completion": "end", "stop": "end",
    "stopped": "end", "inactive": "end", "elapsed": "duration", "runtime": "duration", "walltime": "duration",
    "wallclock": "duration", "seconds": "duration", "status": "state", "stat": "state", "phase": "state",
    "result": "state", "username": "user", "owner": "user", "submitter": "user", "hosts": "nodes",
    "nodelist": "nodes", "allocated": "alloc", "allocation": "alloc", "assigned": "alloc", "used": "alloc",
    "required": "req", "requested": "req", "request": "req", "requests": "req", "limits": "req", "total": "req",
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class _Meaning:
    """A field is meant if all of `has` and none of `lacks` are among the words; fewer other words fit better."""

    field: str
    has: frozenset[str]
    lacks: frozenset[str] = frozenset()


def _means(field: str, has: str, lacks: str = "") -> _Meaning:
    return _Meaning(field, frozenset(has.split()), frozenset(lacks.split()))


_NOT_A_COUNT = (
    "util utilization usage mem memory time hours hour duration type model name power id ids index milli share "
    "fraction uuid mb gb gib bytes per cost price temperature product pool min max tasks"
)
_NOT_A_MOMENT = "req limit code reason host node by user id name mode line dir script count policy num estimate after"
_MEANINGS = (
    _means("gpus", "gpu", _NOT_A_COUNT),
    _means("submit", "submit", f"{_NOT_A_MOMENT} start end state duration"),
    _means("start", "start", f"{_NOT_A_MOMENT} duration end time_to state expected"),
    _means("end", "end", f"{_NOT_A_MOMENT} duration state"),
    _means("duration", "duration", "req limit cpu queue wait pending estimate"),
    _means("duration", "start time duration", "req limit"),
    _means("state", "state", "reason code message time by sub previous"),
    _means("user", "user", "id time count name2 cpu"),
    _means("user", "by submit"),
    _means("job", "job id", "array user parent"),
    _means("job", "workload"),
    _means("node_list", "nodes", "num req count alloc number"),
    _means("node_list", "exec host"),
)
# Of several columns of one meaning, what was given is nearer to what was used than what was asked for.
_PREFERRED = ("alloc", "time", "date", "at", "req")


def split_words(name: str) -> list[str]:
    """The words of a name in snake case, camel case or with spaces, each in the form of its kind."""
    return [_SAME.get(word.lower(), word.lower()) for word in _WORD.findall(name)]


def guess_fields(header: Sequence[str], missing: set[str]) -> dict[str, str]:
    """Columns for fields that no exact name gave: the one whose name has fewest words beside its meaning."""
    best: dict[str, tuple[tuple[int, int, int], str]] = {}
    for place, name in enumerate(header):
        words = set(split_words(name))
        for meaning in _MEANINGS:
            if meaning.field not in missing or not meaning.has <= words or meaning.lacks & words:
                continue
            liked = min((i for i, word in enumerate(_PREFERRED) if word in words), default=len(_PREFERRED))
            rank = (liked if meaning.field == "gpus" else 0, len(words), place)
            if meaning.field not in best or rank < best[meaning.field][0]:
                best[meaning.field] = (rank, name)
    taken: dict[str, str] = {}
    for field, (_, name) in best.items():
        if name not in taken.values():
            taken[field] = name
    return taken

"""The meaning of each column of a job table, by the names that schedulers and public traces use."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from prism.datacenter.characterize.fields import DATE_ORDERS, GPU_UNITS, TIME_UNITS
from prism.datacenter.characterize.formats import SACCT_FORMAT, recognise
from prism.datacenter.characterize.words import guess_fields
from prism.errors import BadConfigError, BadFileError

# Names are compared without case and punctuation ("nvidia.com/gpu" is "nvidiacomgpu"). Where a table has several
# of one field's names, the first in the list is used: an exact count before a text, allocated before
# requested.
ALIASES: Mapping[str, tuple[str, ...]] = {
    "job": ("jobid", "job", "jobidraw", "jobname", "name", "id", "podname"),
    "user": ("user", "userid", "username", "owner", "submitter"),
    "type": ("type", "jobtype", "workload", "workloadtype", "tasktype", "workloadkind"),
    "state": ("state", "status", "jobstate", "finalstate", "phase", "jobstatus", "statusphase", "podphase"),
    "gpus": (
        "gpunum", "gpus", "numgpus", "ngpus", "gpucount", "numgpu", "allocgpus", "alloctres", "allocgres",
        "reqgpus", "gpurequest", "gpurequests", "gpulimit", "nvidiacomgpu", "gpu", "reqtres", "reqgres", "plangpu",
    ),
    "share": (),  # of a GPU, by which GPUs are multiplied
    "instances": ("instnum", "parallelism", "specparallelism", "replicas"),
    "submit": (
        "submittime", "submittedtime", "submit", "submitted", "submittedat", "creationtimestamp",
        "metadatacreationtimestamp", "created", "createdat", "creationtime", "submitns", "timestamp",
    ),
    "start": ("starttime", "start", "started", "startedat", "statusstarttime", "startns", "scheduledtime", "stime"),
    "end": (
        "endtime", "end", "ended", "endedat", "completiontime", "statuscompletiontime", "finishedat", "finishtime",
        "endns", "deletiontime", "obittime",
    ),
    "duration": ("duration", "durations", "elapsedraw", "elapsed", "runtime", "executiontime"),
    "queue": ("queue", "queues", "queuetime", "waittime", "queuedelay", "pendingtime", "planned", "reserved"),
    "gpu_time": ("gputime", "gputimes", "gpuseconds"),
    "reason": ("reason", "failurereason", "failreason", "rootcause", "errortype"),
    "restart": ("restarts", "timetorestart", "restarttime"),
    "node_list": ("nodelist", "hosts", "hostlist", "nodenames"),
    "cluster": ("cluster", "clustername", "virtualcluster"),
}  # fmt: skip

_MOMENTS = ("submit", "start", "end")
_LENGTHS = ("duration", "queue", "gpu_time", "restart")

_GUESSED = ("gpus", "submit", "start", "end", "duration", "state", "user", "job", "node_list")

_FIELD_OF = {alias: (name, rank) for name, aliases in ALIASES.items() for rank, alias in enumerate(aliases)}


@dataclass(frozen=True, slots=True, kw_only=True)
class ColumnMap:
    """How one table's columns map to fields."""

    format: str  # which scheduler or public trace the header looks like
    column_of: Mapping[str, str]
    unused: tuple[str, ...] = ()
    outranked: Mapping[str, str] = field(default_factory=dict)  # unused column -> column used for that field
    units: Mapping[str, str] = field(default_factory=dict)  # of fields whose bare numbers are not seconds or GPUs
    note: str | None = None
    unit_stated: bool = True
    gpu_time_counts: bool = False
    whole_window: bool = False
    states: Mapping[str, str] = field(default_factory=dict)  # a table's own words for a job's end


@dataclass(frozen=True, slots=True, kw_only=True)
class ColumnChoice:
    """A user's choice for one field: its column and the unit of its numbers."""

    column: str
    unit: str | None = None


Choices = Mapping[str, ColumnChoice]


def squash(name: str) -> str:
    """A column name without case, punctuation and byte-order mark."""
    return re.sub(r"[^a-z0-9]", "", name.lower())


def count_known(header: Sequence[str]) -> int:
    """How many of a header's names are known."""
    return sum(squash(name) in _FIELD_OF for name in header)


def parse_choices(texts: Sequence[str]) -> dict[str, ColumnChoice]:
    """Read `field=column[:unit]` items, several of them separated by commas."""
    choices: dict[str, ColumnChoice] = {}
    for item in (part.strip() for text in texts for part in text.split(",")):
        name, equals, column = item.partition("=")
        name = name.strip().lower()
        if not equals or not column.strip():
            raise BadConfigError(f"--map {item!r} is not field=column[:unit], for example gpus=num_gpu or start=t0:ms")
        if name not in ALIASES:
            raise BadConfigError(f"--map {item!r}: there is no field {name!r}; the fields are {', '.join(ALIASES)}")
        column, _, unit = column.strip().rpartition(":")
        if not column:
            column, unit = unit, ""
        choices[name] = ColumnChoice(column=column, unit=_check_unit(name, unit, item) if unit else None)
    return choices


def _check_unit(name: str, unit: str, item: str) -> str:
    known: Mapping[str, float] = TIME_UNITS if name in (*_MOMENTS, *_LENGTHS) else {}
    known = {**known, **dict.fromkeys(DATE_ORDERS, 1.0)} if name in _MOMENTS else known
    known = GPU_UNITS if name in ("gpus", "share") else known
    if unit not in known:
        allowed = ", ".join(known) or "none for this field"
        raise BadConfigError(f"--map {item!r}: unit {unit!r} is not known; units of {name!r}: {allowed}")
    return unit


def map_columns(
    header: Sequence[str],
    where: str,
    choices: Choices | None = None,
    names: Mapping[str, Sequence[str]] | None = None,
) -> ColumnMap:
    """Find each field's column, or raise and name what is missing or doubled; the user's choice has priority.

    `names` are a caller's own fields and additional names of ours; they override the names in this file.
    """
    squashed = [squash(name) for name in header]
    further = {key: (name, len(_FIELD_OF) + i) for name, keys in (names or {}).items() for i, key in enumerate(keys)}
    field_of = _FIELD_OF | further
    for i, key in enumerate(squashed):
        if key in field_of and key in squashed[:i]:
            raise BadFileError(f"{where}: column '{header[i]}' appears twice in the header; rename or drop one of them")
    table = recognise(set(squashed))
    best: dict[str, tuple[int, str]] = {}
    for name, key in zip(header, squashed, strict=True):
        wanted, rank = field_of.get(key, ("", 0))
        if wanted and (wanted not in best or rank < best[wanted][0]):
            best[wanted] = (rank, name)
    column_of = {wanted: name for wanted, (_, name) in best.items()}
    # One column has one meaning: the format or the user overrides the aliases.
    own = {wanted: header[squashed.index(key)] for wanted, key in table.fields.items() if key in squashed}
    column_of = {f: c for f, c in column_of.items() if c not in own.values()} | own
    missing = set(ALIASES) - set(column_of)
    guessed = guess_fields([name for name in header if name not in column_of.values()], missing)
    column_of |= {name: column for name, column in guessed.items() if name in _GUESSED}
    if table.name == "slurm":
        column_of.pop("reason", None)  # sacct's Reason is why a job waited, not why it failed.
    units = {wanted: unit for wanted, unit in table.units.items() if wanted in column_of}
    for wanted, choice in (choices or {}).items():
        column = _find_column(choice.column, header, where)
        column_of = {f: c for f, c in column_of.items() if c != column} | {wanted: column}
        units = {f: u for f, u in units.items() if f != wanted} | ({wanted: choice.unit} if choice.unit else {})
    if table.name == "slurm" and not {"gpus", "start"} <= column_of.keys() | {
        "start" if "duration" in column_of else ""
    }:
        raise BadFileError(
            f"{where}: these columns of sacct tell neither GPUs nor times ({_show(header)}); "
            f"export with: sacct --allusers --parsable2 --format={SACCT_FORMAT}, or say --map gpus=COLUMN,start=COLUMN"
        )
    _require(column_of, header, where)
    named = {name: field_of[key][0] for name, key in zip(header, squashed, strict=True) if key in field_of}
    used = set(column_of.values())
    return ColumnMap(
        format=table.name,
        column_of=column_of,
        unused=tuple(name for name in header if name not in used and name not in named),
        outranked={n: column_of[f] for n, f in named.items() if n not in used and f in column_of},
        units=units,
        note=table.note,
        unit_stated=table.unit_stated or bool(choices),
        gpu_time_counts=table.gpu_time_counts,
        whole_window=table.whole_window,
        states=table.states,
    )


def _find_column(wanted: str, header: Sequence[str], where: str) -> str:
    """The column that a user named, exactly or except for case and punctuation."""
    if wanted in header:
        return wanted
    found = [name for name in header if squash(name) == squash(wanted)]
    if len(found) != 1:
        raise BadFileError(f"{where}: --map names column {wanted!r}, which it does not have; it has: {_show(header)}")
    return found[0]


def _require(column_of: Mapping[str, str], header: Sequence[str], where: str) -> None:
    """Jobs without a GPU count or any time cannot be studied."""
    if "gpus" not in column_of:
        known = ", ".join(ALIASES["gpus"][:4])
        raise BadFileError(
            f"{where}: no column for 'gpus' (known names: {known}); the header has: {_show(header)}; "
            "say which it is with --map gpus=COLUMN, or export it with the trace"
        )
    if "duration" not in column_of and not {"start", "end"} <= column_of.keys():
        raise BadFileError(
            f"{where}: needs 'start_time' and 'end_time', or 'duration'; the header has: {_show(header)}; "
            "say which they are with --map start=COLUMN,end=COLUMN, or export them"
        )


def _show(header: Sequence[str]) -> str:
    return ", ".join(" ".join(str(name).split()) for name in header[:12]) + (", ..." if len(header) > 12 else "")

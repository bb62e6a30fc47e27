"""Which column of a job table means what, by the names that schedulers and public traces use."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from prism.errors import BadFileError

# Names are compared without case and punctuation ("nvidia.com/gpu" is "nvidiacomgpu"). Where a table has several
# of one field's names, the first in the list is used: an exact count before a text, what was lent before what was
# asked.
ALIASES: Mapping[str, tuple[str, ...]] = {
    "job": ("jobid", "job", "jobidraw", "jobname", "name", "id", "podname"),
    "user": ("user", "userid", "username", "owner", "submitter"),
    "type": ("type", "jobtype", "workload", "workloadtype", "tasktype", "workloadkind"),
    "state": ("state", "status", "jobstate", "finalstate", "phase", "jobstatus", "statusphase"),
    "gpus": (
        "gpunum", "gpus", "numgpus", "ngpus", "gpucount", "numgpu", "allocgpus", "alloctres", "allocgres",
        "reqgpus", "gpurequest", "gpurequests", "gpulimit", "nvidiacomgpu", "gpu", "reqtres", "reqgres", "plangpu",
    ),
    "instances": ("instnum", "parallelism", "specparallelism", "replicas"),
    "submit": (
        "submittime", "submittedtime", "submit", "submitted", "submittedat", "creationtimestamp",
        "metadatacreationtimestamp", "created", "createdat", "creationtime", "submitns",
    ),
    "start": ("starttime", "start", "started", "startedat", "statusstarttime", "startns"),
    "end": (
        "endtime", "end", "ended", "endedat", "completiontime", "statuscompletiontime", "finishedat", "finishtime",
        "endns",
    ),
    "duration": ("duration", "durations", "elapsedraw", "elapsed", "runtime", "executiontime"),
    "queue": ("queue", "queues", "queuetime", "waittime", "queuedelay", "pendingtime", "planned", "reserved"),
    "gpu_time": ("gputime", "gputimes", "gpuseconds"),
    "reason": ("reason", "failurereason", "failreason", "rootcause", "errortype"),
    "restart": ("restarts", "timetorestart", "restarttime"),
    "node_list": ("nodelist", "hosts", "hostlist", "nodenames"),
    "cluster": ("cluster", "clustername"),
}  # fmt: skip

# The columns of Alibaba PAI's task table, which its release ships without a header line.
PAI_TASK_COLUMNS = (
    "job_name", "task_name", "inst_num", "status", "start_time", "end_time", "plan_cpu", "plan_mem", "plan_gpu",
    "gpu_type",
)  # fmt: skip

_FIELD_OF = {alias: (name, rank) for name, aliases in ALIASES.items() for rank, alias in enumerate(aliases)}


@dataclass(frozen=True, slots=True, kw_only=True)
class ColumnMap:
    """How one table's columns map to fields."""

    format: str  # which scheduler or public trace the header looks like
    column_of: Mapping[str, str]
    unused: tuple[str, ...] = ()
    outranked: Mapping[str, str] = field(default_factory=dict)  # column left aside -> column used for that field


def squash(name: str) -> str:
    """A column name without case, punctuation and byte-order mark."""
    return re.sub(r"[^a-z0-9]", "", name.lower())


def map_columns(header: Sequence[str], where: str) -> ColumnMap:
    """Find each field's column, or raise naming what is missing or doubled."""
    squashed = [squash(name) for name in header]
    for i, key in enumerate(squashed):
        if key in _FIELD_OF and key in squashed[:i]:
            raise BadFileError(f"{where}: column '{header[i]}' appears twice in the header; rename or drop one of them")
    best: dict[str, tuple[int, str]] = {}
    unused: list[str] = []
    for name, key in zip(header, squashed, strict=True):
        if key not in _FIELD_OF:
            unused.append(name)
            continue
        wanted, rank = _FIELD_OF[key]
        if wanted not in best or rank < best[wanted][0]:
            best[wanted] = (rank, name)
    column_of = {wanted: name for wanted, (_, name) in best.items()}
    outranked = {
        name: column_of[_FIELD_OF[key][0]]
        for name, key in zip(header, squashed, strict=True)
        if key in _FIELD_OF and column_of[_FIELD_OF[key][0]] != name
    }
    table_format = name_format(set(squashed))
    if table_format == "slurm":
        column_of.pop("reason", None)  # sacct's Reason says why a job waited, not why it failed.
    _require(column_of, header, where)
    return ColumnMap(format=table_format, column_of=column_of, unused=tuple(unused), outranked=outranked)


def name_format(squashed: set[str]) -> str:
    """Name the scheduler or public trace that a header belongs to; "aliases" when none in particular."""
    if {"memperpodgb", "failtime", "stoptime"} & squashed and {"gpunum", "submittime"} <= squashed:
        return "acme-kalos"
    if {"gpunum", "gputime", "submittime", "type"} <= squashed:
        return "acme-seren"
    if {"alloctres", "reqtres", "elapsedraw", "alloccpus", "nnodes", "allocgres"} & squashed and "state" in squashed:
        return "slurm"
    if {"plangpu", "instnum"} <= squashed:
        return "pai"
    if {"creationtimestamp", "metadatacreationtimestamp", "completiontime", "nvidiacomgpu"} & squashed:
        return "kubernetes"
    if {"submittedtime", "vc"} <= squashed:
        return "philly"
    if {"gpunum", "vc", "submittime"} <= squashed:
        return "helios"
    return "aliases"


def _require(column_of: Mapping[str, str], header: Sequence[str], where: str) -> None:
    """Jobs without a GPU count, a state or any time cannot be studied."""
    shown = ", ".join(str(name) for name in header[:12]) + (", ..." if len(header) > 12 else "")
    for wanted in ("gpus", "state"):
        if wanted not in column_of:
            known = ", ".join(ALIASES[wanted][:4])
            raise BadFileError(
                f"{where}: no column for '{wanted}' (known names: {known}); the header has: {shown}; "
                "rename the column or export it with the trace"
            )
    if "duration" not in column_of and not {"start", "end"} <= column_of.keys():
        raise BadFileError(
            f"{where}: needs 'start_time' and 'end_time', or 'duration'; the header has: {shown}; export one of them"
        )

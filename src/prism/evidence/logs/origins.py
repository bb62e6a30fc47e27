"""Where a line came from: rank, host and time from its prefixes, and who wrote it, which decides what it can prove."""

from __future__ import annotations

import re
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import lru_cache
from typing import Literal

from prism.evidence.logs.collected import SCHEDULER_DAEMONS, SYSTEM_DAEMONS, read_header

Writer = Literal["kernel", "scheduler", "launcher", "framework", "application"]
ANSI = re.compile(r"\x1b(?:\[[0-9;?]*[ -/]*[@-~]|\][^\x07\x1b]*(?:\x07|\x1b\\)|[@-Z\\-_])")
_CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f]")
_MAX_PREFIXES = 5


@dataclass(frozen=True, slots=True, kw_only=True)
class Origin:
    """Where one line came from, and its text without the prefixes.

    `writer` is who wrote it, according to the line. `is_output` is set if a launcher or collector marked the line as a
    process's own output: nothing in it can then come from the kernel or the scheduler. `is_framed` is set if a
    system log put its own frame around the line, `is_proven` if a collector's record names the writer.
    """

    text: str
    rank: int | None = None
    host: str | None = None
    pod: str | None = None
    time_ns: int | None = None
    line: int | None = None
    writer: Writer = "application"
    is_output: bool = False
    is_framed: bool = False
    is_proven: bool = False


_HOST = r"(?:\d{1,3}(?:\.\d{1,3}){3}|(?=[a-z._-]*\d)[a-z][a-z0-9._-]*)"
_MONTHS = r"(?:Jan|Feb|Mar|Apr|May|Jun|Jul|Aug|Sep|Oct|Nov|Dec)"
# Tried in turn at the start of the rest of a line; the names of the groups say what they hold.
_PREFIXES = re.compile(
    "|".join(
        (
            # syslog and journald: "May  3 10:11:12 host tag[pid]:" and its ISO forms, RFC 5424 with a priority
            r"(?:<\d{1,3}>(?:1 )?)?(?:(?P<month>" + _MONTHS + r" [ \d]\d \d\d:\d\d:\d\d)"
            r"|(?P<isosys>\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(?:[.,]\d+)?(?:Z|[+-]\d\d:?\d\d)?)) "
            r"(?P<syshost>[\w.-]+) (?P<tag>[\w./@-]+?)(?:\[\d+\])?: (?:\[ *\d+\.\d+\] )?",
            # Loki: logcli's default output
            r"(?P<loki>\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(?:[.,]\d+)?(?:Z|[+-]\d\d:?\d\d)?) "
            r"\{(?P<labels>[^{}]{1,600})\}\s+",
            # slurmd and slurmctld; the level distinguishes them from a program's own time stamps
            r"\[(?P<slurm>\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(?:\.\d+)?)\] (?=error: |debug\d?: |sched: |backfill: "
            r"|Node |node "
            r"|_slurm|agent/|update_node|_job|Launching|launch |Killing|drain|Warning: |done with|\[\d+\.|task/|select/"
            r"|requeue|Batch|Job|validate_node|Resending|Time limit|cleanup|slurm[cd]|Terminate|preempt)",
            r"(?P<iso>\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(?:[.,]\d+)?(?:Z|[+-]\d\d:?\d\d)?) (?:(?P<cri>(?:stdout"
            r"|stderr) [FP]) )?",
            r"\[(?:default|local_rank|trainer)(?P<local>\d+)\]:? ?",  # torchrun --tee
            r"\[[Rr]ank[ _-]?(?P<rank>\d+)(?:/\d+)?\]:? ?(?=\S|$|\s)",  # torch
            r"\[\d+,(?P<mpirank>\d+)\](?:<std(?:out|err)>)?:? ?(?=\S)",  # Open MPI, Horovod
            r"\[pod/(?P<pod>[\w.-]+)/[\w.-]+\] ",  # kubectl logs --prefix
            r"\((?P<ray>[\w.:-]+ )?pid=\d+(?:, ip=(?P<ip>[\d.]+))?\) ?",  # Ray
            r"\s{0,4}(?P<task>\d{1,5}): ",  # srun --label
            r"[\w.-]+\s+\| (?=\s*\S)",  # docker compose
            r"\[[EWIF] (?P<cpp>[\w./-]+:\d+)\] ?",
            r"(?P<kernel>kernel: (?:\[ *\d+\.\d+\] )?)",
            r"(?P<dmesg>\[ *\+?\d+\.\d{6}\] (?:\[ *[TC]\d+\] ?)?)",
            r"\[(?P<dmesgt>\w{3} " + _MONTHS + r" [ \d]\d \d\d:\d\d:\d\d \d{4})\] ",
            r"(?P<nccl>[\w.-]+):(?P<pid>\d+):\d+ \[(?P<gpu>-?\d+)\] (?=(?:[\w./-]{1,80}:\d+ )?[NR]CCL |\w+/|\w+\.cc)",
            r"(?P<launch>" + _HOST + r"): (?=[\[(\dA-Z ])",  # pdsh, DeepSpeed
            r"\[?(?P<stamp>\d{4}[-/]\d\d[-/]\d\d[ T]\d\d:\d\d:\d\d(?:[.,]\d+)?)\]?(?: ?[-|:,]? ?)",
            r"\[?[EWIF](?P<glog>\d{3,4} \d\d:\d\d:\d\d\.\d+)(?: +\d+)? (?P<source>[\w./-]+:\d+)\] ?",
            r"(?P<us>\d\d/\d\d/\d{4} \d\d:\d\d:\d\d) - ",
        )
    )
)
_LEVEL = re.compile(
    r"(?:\[?(?:INFO|WARNING|WARN|ERROR|DEBUG|CRITICAL|FATAL)\]?(?:\s+|:\s*|\s*[|-]\s*))"
    r"(?:\[?[\w./-]+\.(?:py|cpp|cc)(?::\d+(?::\w+)?)?\]?:? ?)?"
)
_INLINE_RANK = re.compile(r"(?:\b[Gg]lobal[_ ])?\b[Rr]ank(?:[ =:]{1,3}|\s*:\s+)(\d{1,6})\b")
# How lines of each writer begin, if no frame names the writer.
_BEGINS: tuple[tuple[Writer, re.Pattern[str]], ...] = (
    ("kernel", re.compile(
        r"\s{0,40}NVRM: |nvidia-nvswitch|nvswitch\d|\[Hardware Error\]|mce: |EDAC |pcieport |mlx5_core |amdgpu[ :]"
        r"|\[drm|Out of memory: "
        r"Kill|oom-kill:|oom_reaper: |Memory cgroup out of memory|\S+ invoked oom-killer|watchdog: BUG|Kernel "
        r"panic|reboot: "
    )),
    ("scheduler", re.compile(
        r"(?:slurmstepd|srun|slurmd|slurmctld|sbatch|salloc)(?:-[\w.-]+)?: |=>> PBS: |\*\*\* (?:STEP|JOB) \d"
        r"|(?:Warning|Normal) +(?:Evicted|NodeNotReady|Failed|FailedScheduling|OOMKilling|Killing|BackOff|Preempted) "
    )),
    ("launcher", re.compile(
        r"torch\.distributed\.elastic|[\w./-]+: \w+ \d+ ?: +\d+ +\w|ChildFailedError"
        r"|Root Cause \(first|(?:E\d{4} .{0,40})?torch/distributed/elastic"
        r"|(?:mpirun|mpiexec|prterun|horovodrun|orterun)\b|\[launch\.py|failed \(exitcode: |\[.{0,30}raylet\b|\(raylet|"
        r"\s{0,4}(?:time|host|rank|exitcode|error_file|traceback) +: "
    )),
    ("framework", re.compile(
        r"N?CCL (?:WARN|INFO|ERROR)|RCCL |\S{0,40}\bN?CCL WARN|\[Rank \d+\]|\[PG |Traceback \(most recent"
        r"|terminate called"
        r"|\s*what\(\): |frame #\d|Fatal Python error|\[gloo|Watchdog caught|\s*Last error:|Heartbeat monitor"
        r"|(?:CUDA|HIP|Cuda) (?:error|failure)\b|ncclRemoteError|ncclSystemError|ProcessGroup[A-Z]+\b"
    )),
)  # fmt: skip
_STAMPS = (
    ("iso", None), ("isosys", None), ("loki", None), ("slurm", None), ("stamp", None), ("us", "%m/%d/%Y %H:%M:%S"),
    ("month", "%b %d %H:%M:%S"), ("dmesgt", "%a %b %d %H:%M:%S %Y"), ("glog", "%m%d %H:%M:%S.%f"),
)  # fmt: skip
_LABEL = re.compile(r'(\w+)="([^"]{0,200})"')
_WRITERS: tuple[Writer, ...] = ("kernel", "scheduler", "launcher", "framework", "application")


@lru_cache(maxsize=65536)
def parse_line(raw: str, is_wrapped: bool = False) -> Origin:
    """Strip colours and known prefixes from a line; their content is kept in other fields.

    `is_wrapped` means that the line came from a collector's record, whose header is in front of it.
    """
    header, text = read_header(raw) if is_wrapped else (None, raw)
    text = _CONTROL.sub(" ", ANSI.sub("", text)) if "\x1b" in text or _CONTROL.search(text) else text
    said: dict[str, str] = {}
    depth = 0
    while depth < _MAX_PREFIXES and (match := _PREFIXES.match(text)) is not None and match.end():
        for key, value in match.groupdict().items():
            if value is not None:
                said.setdefault(key, value)
        text = text[match.end() :]
        depth += 1
    number = said.get("rank") or said.get("mpirank") or said.get("task") or said.get("local")
    labels = dict(_LABEL.findall(said["labels"])) if "labels" in said else {}
    rank = int(number) if number is not None else int(labels["rank"]) if labels.get("rank", "").isdigit() else None
    host = said.get("nccl") or said.get("syshost") or said.get("launch") or said.get("ip")
    host = host or labels.get("hostname") or labels.get("node_name") or labels.get("node")
    pod = said.get("pod") or labels.get("pod") or labels.get("pod_name")
    proven = header.origin if header is not None and header.origin in _WRITERS else None
    framed = "syshost" in said or "dmesg" in said or "dmesgt" in said or "slurm" in said
    writer: Writer = proven or _writer_of(said, text)
    return Origin(
        text=text,
        rank=header.rank if header is not None and header.rank is not None else rank,
        host=(header.host if header is not None else None) or host,
        pod=(header.pod if header is not None else None) or pod,
        time_ns=header.time_ns if header is not None and header.time_ns is not None else _time_of(said),
        line=header.line if header is not None else None,
        writer=writer,
        is_output=_is_output(said, header.origin if header is not None else None),
        is_framed=framed,
        is_proven=proven is not None,
    )


def _is_output(said: dict[str, str], origin: str | None) -> bool:
    carried = ("rank", "mpirank", "task", "local", "pod", "cri", "labels", "ray")
    return origin == "output" or (origin is None and any(key in said for key in carried))


def _writer_of(said: dict[str, str], text: str) -> Writer:
    tag = said.get("tag", "").rsplit("/", 1)[-1]
    if tag:
        return "kernel" if tag in SYSTEM_DAEMONS else "scheduler" if tag in SCHEDULER_DAEMONS else "application"
    if "slurm" in said:
        return "scheduler"
    if "kernel" in said or "dmesg" in said or "dmesgt" in said:
        return "kernel"
    if said.get("ray", "").strip() in ("raylet", "autoscaler", "gcs_server"):
        return "launcher"
    if "nccl" in said:
        return "framework"
    source = said.get("cpp") or said.get("source") or ""
    if source:
        return "launcher" if "elastic" in source or source.startswith("api.py") else "framework"
    return next((writer for writer, begins in _BEGINS if begins.match(text)), "application")


def strip_level(text: str) -> str:
    """A message without the level and source file that its logger put before it."""
    match = _LEVEL.match(text)
    return text[match.end() :] if match else text


def named_rank(text: str) -> int | None:
    """The rank that a message names in its text."""
    match = _INLINE_RANK.search(text)
    return int(match.group(1)) if match else None


def _time_of(said: dict[str, str]) -> int | None:
    for key, layout in _STAMPS:
        if key in said:
            return _to_ns(said[key], layout)
    return None


def _to_ns(stamp: str, layout: str | None) -> int | None:
    """Nanoseconds since 1970; a time stamp without a year gets 2000, a leap year, which keeps the order."""
    try:
        if layout is None:
            moment = datetime.fromisoformat(stamp.replace("/", "-").replace(",", ".").replace("Z", "+00:00")[:32])
        elif layout.startswith("%m%d"):
            date, clock = stamp.split(" ", 1)
            moment = datetime.strptime(f"2000{date.zfill(4)} {clock[:15]}", "%Y%m%d %H:%M:%S.%f")
        elif "%Y" in layout:
            moment = datetime.strptime(" ".join(stamp.split()), layout)
        else:
            moment = datetime.strptime(f"2000 {' '.join(stamp.split())}", f"%Y {layout}")
    except ValueError:
        return None
    if moment.tzinfo is None:
        moment = moment.replace(tzinfo=UTC)
    return int(moment.timestamp() * 1_000_000) * 1000

"""Jobs as schedulers list them: sacct, squeue, kubectl, or a table of job, host, start, end, gpus and layout.

What is read here is which hosts a job has, and when. Job steps, and jobs without hosts, are left out.
"""

from __future__ import annotations

import csv
import json
import re
import subprocess
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from datetime import datetime
from pathlib import Path
from typing import Any

from prism.errors import BadConfigError, BadFileError, BadRowError
from prism.machine.hosts import expand_hosts
from prism.records.layout import DEGREES
from prism.records.scheduled import ScheduledJob

COMMANDS: Mapping[str, tuple[str, ...]] = {
    "slurm": ("squeue", "--json"),
    "sacct": ("sacct", "--allusers", "--json"),
    "kubernetes": ("kubectl", "get", "pods", "--all-namespaces", "--output=json"),
}
"""What `--jobs` may name in place of a file, and the command that lists its jobs."""

_COMMAND_S = 20.0
_MOST_BYTES = 512 * 2**20
_NAMES: Mapping[str, tuple[str, ...]] = {
    "job": ("job", "jobid", "id", "jobname", "name"),
    "name": ("jobname", "name"),
    "hosts": ("hosts", "host", "nodelist", "nodelistreason", "hostname", "nodename", "node", "nodes"),
    "start": ("start", "starttime", "startns"),
    "end": ("end", "endtime", "endns"),
    "gpus": ("gpus", "numgpus", "alloctres", "tresalloc", "reqtres"),
    "layout": ("layout", "parallelism", "comment"),
    "state": ("state", "st", "status"),
}
_UNKNOWN = frozenset({"", "-", "none", "n/a", "unknown", "null", "(null)", "invalid"})
_OVER = (
    "COMPLET",
    "FAIL",
    "CANCEL",
    "TIMEOUT",
    "NODE_FAIL",
    "PREEMPT",
    "OUT_OF_ME",
    "SUCCEEDED",
    "CD",
    "CA",
    "F",
    "TO",
)
_RUNS = ("RUNNING", "R")
_DEGREE = re.compile(r"\b(dp|tp|pp|cp|ep)\s?[=:]\s?([1-9][0-9]{0,5})\b")
_GPUS = re.compile(r"gpu(?::[A-Za-z0-9_.-]{1,60})?[=:](\d{1,6})")
_ALL_GPUS = re.compile(r"gres/gpu=(\d{1,6})")
_RULER = re.compile(r"-+(?: +-+)+ *")
_POD_JOBS = (
    "jobset.sigs.k8s.io/jobset-name", "training.kubeflow.org/job-name", "batch.kubernetes.io/job-name", "job-name",
    "volcano.sh/job-name", "leaderworkerset.sigs.k8s.io/name", "ray.io/cluster", "app.kubernetes.io/instance",
)  # fmt: skip
_POD_GPUS = ("nvidia.com/gpu", "amd.com/gpu", "gpu.intel.com/xe", "habana.ai/gaudi")
_LAYOUT_KEY = "prism/layout"  # a label or annotation of a pod


def read_scheduled(path: Path) -> list[ScheduledJob]:
    """The jobs of a file, in its order; several rows of one job are its hosts."""
    try:
        data = path.read_bytes()
    except OSError as error:
        raise BadFileError(f"{path}: cannot be read ({error.strerror}); give a job table") from None
    if len(data) > _MOST_BYTES:
        raise BadFileError(f"{path}: larger than 512 MiB; export the jobs of the time of the flows")
    return read_text(data.decode("utf-8-sig", errors="replace"), str(path))


def ask_scheduler(name: str) -> list[ScheduledJob]:
    """The jobs that a scheduler lists now."""
    command = COMMANDS[name]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=_COMMAND_S, stdin=subprocess.DEVNULL)
    except subprocess.TimeoutExpired:
        raise BadConfigError(f"--jobs {name}: {command[0]} did not answer within {_COMMAND_S:g} s") from None
    except OSError as error:
        raise BadConfigError(f"--jobs {name}: {command[0]} cannot be run ({error.strerror}); give a file") from None
    if done.returncode:
        said = (done.stderr.strip().splitlines() or [f"exit code {done.returncode}"])[-1][:160]
        raise BadConfigError(f"--jobs {name}: {command[0]}: {said}")
    return read_text(done.stdout, command[0])


def read_text(text: str, where: str) -> list[ScheduledJob]:
    """The jobs of a text in any of the known forms."""
    if text.lstrip()[:1] in ("{", "["):
        try:
            document = json.loads(text)
        except (ValueError, RecursionError) as error:
            raise BadFileError(f"{where}: not JSON that can be read ({error}); export it again") from None
        jobs = _read_document(document, where)
    else:
        jobs = _read_table(text, where)
    return _join_rows(jobs)


def _read_document(document: Any, where: str) -> list[ScheduledJob]:
    listed = document.get("jobs", document.get("items")) if isinstance(document, dict) else document
    if isinstance(document, dict) and document.get("kind") == "Pod":
        listed = [document]
    if not isinstance(listed, list) or not all(isinstance(one, dict) for one in listed):
        raise BadFileError(
            f"{where}: JSON without a list of jobs; give the output of sacct --json, squeue --json or kubectl get pods "
            "-o json, or a list of records with job, host, start, end, gpus"
        )
    try:
        if isinstance(document, dict) and ("items" in document or document.get("kind") == "Pod"):
            return [job for one in listed if one.get("kind", "Pod") == "Pod" for job in _read_pod(one)]
        if any("job_id" in one or "nodes" in one for one in listed):
            return [job for one in listed for job in _read_slurm(one)]
        rows = [{_squash(str(k)): "" if v is None else _as_text(v) for k, v in one.items()} for one in listed]
        return [job for number, row in enumerate(rows) for job in _read_row(row, f"{where} record {number + 1}")]
    except (TypeError, AttributeError, KeyError, ValueError, OverflowError) as error:
        raise BadFileError(f"{where}: a job without the fields of its kind ({error!r:.80}); export it again") from None


def _as_text(value: Any) -> str:
    if isinstance(value, dict):
        return ",".join(f"{k}={v}" for k, v in value.items())
    return ",".join(map(str, value)) if isinstance(value, list) else str(value)


def _read_slurm(job: Mapping[str, Any]) -> list[ScheduledJob]:
    """One job of `sacct --json` or `squeue --json`; of a job that runs, the end that Slurm gives is its time limit."""
    state = job.get("job_state", job.get("state", ""))
    state = state.get("current", "") if isinstance(state, dict) else state
    state = str(state[0] if isinstance(state, list) and state else state)
    time = job.get("time") or {"start": job.get("start_time"), "end": job.get("end_time")}
    hosts = expand_hosts(str(job.get("nodes") or ""))
    running = _is_running(state)
    comment = job.get("comment")
    comment = comment.get("job") if isinstance(comment, dict) else comment
    tres = job.get("tres")
    if isinstance(tres, dict):
        counts = [f"gres/{part.get('name')}={_number(part.get('count'))}" for part in tres.get("allocated") or []]
        listed = ",".join(counts)
    else:
        listed = str(job.get("tres_alloc_str") or "")
    start, end = _number(time.get("start")), _number(time.get("end"))
    if not hosts or not start:
        return []
    return [
        ScheduledJob(
            name=_name_slurm(job), hosts=tuple(hosts), start_ns=start * 10**9, running=running,
            end_ns=end * 10**9 if end and not running else None, gpus=_count_gpus(listed),
            degrees=read_degrees(str(comment or "")),
        )
    ]  # fmt: skip


def _name_slurm(job: Mapping[str, Any]) -> str:
    return f"{job.get('job_id')} {job.get('name') or ''}".strip()


def _number(value: Any) -> int | None:
    """A number as Slurm writes it: bare, or since 23.02 as {"set", "infinite", "number"}."""
    if isinstance(value, dict):
        return _number(value.get("number")) if value.get("set") and not value.get("infinite") else None
    return int(value) if isinstance(value, int | float) and not isinstance(value, bool) else None


def _read_pod(pod: Mapping[str, Any]) -> list[ScheduledJob]:
    """A pod is a row of the job that its labels, or its owner, name."""
    meta, spec, status = pod["metadata"], pod.get("spec") or {}, pod.get("status") or {}
    host = spec.get("nodeName")
    if not host:
        return []
    labels = {**(meta.get("annotations") or {}), **(meta.get("labels") or {})}
    owner = next((str(one.get("name")) for one in meta.get("ownerReferences") or []), str(meta["name"]))
    name = next((str(labels[key]) for key in _POD_JOBS if labels.get(key)), owner)
    over = status.get("phase") in ("Succeeded", "Failed")
    states = [(one.get("state") or {}).get("terminated") or {} for one in status.get("containerStatuses") or []]
    ends = [str(one["finishedAt"]) for one in states if one.get("finishedAt")]
    needs = [(one.get("resources") or {}) for one in spec.get("containers") or []]
    gpus = sum(int(part[key]) for one in needs for part in [one.get("limits") or one.get("requests") or {}]
               for key in _POD_GPUS if key in part)  # fmt: skip
    where = f"pod {meta['name']}"
    started = status.get("startTime")
    return [
        ScheduledJob(
            name=f"{meta.get('namespace', 'default')}/{name}", hosts=(str(host),), gpus=gpus or None,
            start_ns=_moment(str(started), where) if started else None, running=status.get("phase") == "Running",
            end_ns=_moment(max(ends), where) if over and ends else None,
            degrees=read_degrees(str(labels.get(_LAYOUT_KEY, ""))),
        )
    ]  # fmt: skip


def _read_table(text: str, where: str) -> list[ScheduledJob]:
    lines = [(n, line) for n, line in enumerate(text.splitlines(), 1) if line.strip() and not line.startswith("#")]
    if lines and _is_date(lines[0][1]):  # squeue -l begins with the time
        lines = lines[1:]
    if not lines:
        raise BadFileError(
            f"{where}: holds no jobs; give the output of sacct, squeue or kubectl, or a CSV with job,host"
        )
    names, rows = _split(lines, where)
    known = {_squash(name): at for at, name in enumerate(names)}
    missing = [field for field in ("job", "hosts") if not any(alias in known for alias in _NAMES[field])]
    if missing:
        example = "sacct --parsable2 --format=JobID,JobName,State,Start,End,NodeList,AllocTRES"
        raise BadFileError(
            f"{where} line {lines[0][0]}: no column of {' and none of '.join(missing)} in {', '.join(names)[:120]}; "
            f"name them job and host, or export with {example}"
        )
    found = []
    for number, cells in rows:
        row = {name: cells[at] if at < len(cells) else "" for name, at in known.items()}
        found += _read_row(row, f"{where} line {number}")
    return found


def _split(lines: Sequence[tuple[int, str]], where: str) -> tuple[list[str], list[tuple[int, list[str]]]]:
    """Column names and numbered cells: between separators, under a ruler of dashes, or between blanks."""
    header = lines[0][1]
    if len(lines) > 1 and _RULER.fullmatch(lines[1][1].rstrip()):
        spans = [found.span() for found in re.finditer("-+", lines[1][1])]
        cut = [(number, [line[low:high].strip() for low, high in spans]) for number, line in (lines[0], *lines[2:])]
        return cut[0][1], cut[1:]
    mark = next((mark for mark in ("|", "\t", ";", ",") if mark in header), None)
    if mark is not None:
        try:
            parsed = list(csv.reader((line for _, line in lines), delimiter=mark, strict=True))
        except csv.Error as error:
            raise BadFileError(f"{where}: not a table that can be read ({error}); export it again") from None
        if len(parsed) != len(lines):
            raise BadFileError(f"{where}: a quoted value runs over several lines; export it again without it")
        cells = [[cell.strip() for cell in row] for row in parsed]
    else:  # squeue: names may hold blanks, hosts come last
        width = len(header.split())
        cells = [line.split(maxsplit=width - 1) for _, line in lines]
    return cells[0], [(number, row) for (number, _), row in zip(lines[1:], cells[1:], strict=True)]


def _read_row(row: Mapping[str, str], where: str) -> list[ScheduledJob]:
    def cell(field: str) -> str:
        value = next((row[alias] for alias in _NAMES[field] if row.get(alias)), "")
        return "" if value.strip().lower() in _UNKNOWN else value.strip()

    state, job, listed = cell("state").upper(), cell("job"), cell("hosts")
    if not job or ("." in job.split()[0] and job[:1].isdigit()):  # a step of a Slurm job
        return []
    if state.startswith(("PENDING", "PD", "CONFIGURING")) or not listed or listed.startswith("("):
        return []
    running = _is_running(state) if state else None
    start, end = (_moment(text, where) if (text := cell(field)) else None for field in ("start", "end"))
    if start is not None and end is not None and end < start:
        raise BadRowError(f"{where}: the job ends before it starts; check both times")
    name = f"{job} {cell('name')}" if cell("name") and cell("name") != job else job
    return [
        ScheduledJob(
            name=name, hosts=tuple(expand_hosts(listed)), start_ns=start, end_ns=None if running else end,
            gpus=_count_gpus(cell("gpus"), where), degrees=read_degrees(cell("layout")), running=running,
        )
    ]  # fmt: skip


def read_degrees(text: str) -> dict[str, int]:
    """The degrees that a text such as `tp=8,pp=4` declares."""
    return {name: int(value) for name, value in _DEGREE.findall(text[:1000].lower()) if name in DEGREES}


def _count_gpus(text: str, where: str = "") -> int | None:
    """GPUs out of a number or a list of trackable resources."""
    if not text:
        return None
    whole = _ALL_GPUS.search(text)
    if whole:
        return int(whole[1]) or None
    if "=" in text or ":" in text:
        return sum(map(int, _GPUS.findall(text))) or None
    try:
        return round(float(text)) or None
    except (ValueError, OverflowError):
        raise BadRowError(f"{where}: gpus is {text[:40]!r}, expected a number; correct it or leave it empty") from None


def _is_running(state: str) -> bool | None:
    state = state.upper()
    if state in _RUNS or state.startswith("RUNNING"):
        return True
    return False if state.startswith(_OVER[:8]) or state in _OVER else None


def _moment(text: str, where: str) -> int:
    """Nanoseconds of the epoch: a number of seconds (or ms, us, ns), or a written time, of this machine's zone."""
    try:
        number = float(text)
    except ValueError:
        try:
            return round(datetime.fromisoformat(text).timestamp()) * 10**9
        except (ValueError, OverflowError, OSError):
            raise BadRowError(
                f"{where}: {text[:40]!r} is no time; write 2026-03-01T10:00:00+00:00 or seconds of the epoch"
            ) from None
    scale = next((s for s in (10**9, 10**6, 10**3, 1) if abs(number) * s < 9.2e18 and abs(number) * s >= 1e17), None)
    if scale is None:
        raise BadRowError(f"{where}: {text[:40]!r} is no time since 1973; write seconds of the epoch")
    return int(text) * scale if text.strip().isdigit() else round(number * scale)


def _is_date(line: str) -> bool:
    """Whether a line is the time that `squeue -l` prints first."""
    return bool(re.fullmatch(r"[A-Z][a-z]{2} [A-Z][a-z]{2} [ \d]\d \d\d:\d\d:\d\d \d{4}", line.strip()))


def _squash(name: str) -> str:
    return re.sub(r"[^a-z]", "", name.lower())


def _join_rows(jobs: Iterable[ScheduledJob]) -> list[ScheduledJob]:
    """One job for the rows of one name that run at the same time: its hosts together, GPUs added up."""
    found: dict[str, list[ScheduledJob]] = {}
    for job in jobs:
        own = found.setdefault(job.name, [])
        at = next((i for i, other in enumerate(own) if _overlap(job, other)), None)
        if at is None:
            own.append(job)
            continue
        other = own[at]
        fresh = tuple(host for host in job.hosts if host not in other.hosts)
        gpus = None if job.gpus is None or other.gpus is None else job.gpus + other.gpus
        own[at] = replace(
            other, hosts=other.hosts + fresh, gpus=gpus, degrees={**other.degrees, **job.degrees},
            start_ns=min((t for t in (job.start_ns, other.start_ns) if t is not None), default=None),
            end_ns=None if job.end_ns is None or other.end_ns is None else max(job.end_ns, other.end_ns),
            running=job.running or other.running,
        )  # fmt: skip
    return [job for own in found.values() for job in own]


def _overlap(one: ScheduledJob, other: ScheduledJob) -> bool:
    def span(job: ScheduledJob) -> tuple[float, float]:
        return job.start_ns or -1e30, job.end_ns or 1e30

    (a, b), (c, d) = span(one), span(other)
    return a < d and c < b

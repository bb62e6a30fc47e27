"""Accounting logs of PBS and Torque: one line per event of a job, `date;type;id;key=value ...`."""

from __future__ import annotations

import re

import polars as pl

from prism.errors import BadFileError

NOTE = "PBS accounting: jobs are the E records (ended); GPUs are those of Resource_List."
_LINE = re.compile(r"^\d\d/\d\d/\d{4} \d\d:\d\d:\d\d;([A-Za-z]);([^;]{1,200});(.*)$")
_PAIR = re.compile(r"(\S{1,100}?)=(\S*)")
_HOST = re.compile(r"([\w.-]{1,200})/")
_COLUMNS = ("job", "user", "state", "gpus", "submit", "start", "end", "node_list")


def looks_like_pbs(head: bytes) -> bool:
    """Whether the first lines are those of an accounting log."""
    lines = head.decode("utf-8", "replace").splitlines()[:5]
    return bool(lines) and all(_LINE.match(line) for line in lines[: max(1, len(lines) - 1)])


def read_pbs(text: str, where: str) -> pl.DataFrame:
    """A row per job that ended, was deleted or was aborted."""
    rows = []
    for line in text.splitlines():
        if (found := _LINE.match(line)) and found.group(1) in "EA":
            pairs = dict(_PAIR.findall(found.group(3)))
            if "start" in pairs and "end" in pairs:
                rows.append(_read(found.group(2), pairs))
    if not rows:
        raise BadFileError(f"{where}: no E record (a job that ended) among its lines; give the log of whole days")
    return pl.DataFrame(rows, schema=dict.fromkeys(_COLUMNS, pl.String), orient="row")


def _read(job: str, pairs: dict[str, str]) -> tuple[str | None, ...]:
    code = pairs.get("Exit_status", "")
    # Above 256 the job was ended by a signal; -11 and 271 are PBS's own for a limit and a deletion.
    state = {"0": "completed", "": None, "271": "cancelled", "-29": "timeout", "265": "cancelled"}.get(code, "failed")
    hosts = list(dict.fromkeys(_HOST.findall(pairs.get("exec_host", ""))))
    submit = pairs.get("ctime") or pairs.get("qtime")
    return job, pairs.get("user"), state, _count_gpus(pairs), submit, pairs["start"], pairs["end"], ",".join(hosts)


def _count_gpus(pairs: dict[str, str]) -> str | None:
    if "Resource_List.ngpus" in pairs:
        return pairs["Resource_List.ngpus"]
    for key, word in (("Resource_List.select", "ngpus="), ("Resource_List.nodes", "gpus=")):
        if word in pairs.get(key, ""):
            return str(count_chunks(pairs[key]))
    return "0" if any(key.startswith("Resource_List.") for key in pairs) else None


def count_chunks(text: str) -> int:
    """GPUs of PBS's 2:ncpus=8:ngpus=4+1:ngpus=1 and of Torque's 2:ppn=8:gpus=4."""
    total = 0
    for part in text.split("+"):
        times = re.match(r"(\d+)", part)
        each = re.search(r"(?<![a-z])n?gpus=(\d+)", part)
        total += int(times.group(1) if times else 1) * int(each.group(1) if each else 0)
    return total

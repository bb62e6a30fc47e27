"""Jobs that the operator knows: what is given is not inferred, and where records contradict it, that is told."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from prism.observe.traffic.table import Traffic, split_pairs
from prism.records.scheduled import ScheduledJob

Ints = NDArray[np.int64]
_NONE = -1
_STRAY = 0.02  # of what a host exchanges within its job: what it exchanges with other jobs beyond that is told
_NAMED = 6  # hosts in one line


@dataclass(frozen=True, slots=True, kw_only=True)
class GivenJobs:
    """The jobs of a table that the traffic shows, by number, and what the table and the records disagree on."""

    jobs: tuple[ScheduledJob, ...] = ()
    notes: tuple[str, ...] = ()
    strays: dict[int, str] = field(default_factory=dict)  # by job, what its hosts exchange with others


def part_given_jobs(traffic: Traffic, jobs: Sequence[ScheduledJob]) -> tuple[Traffic, GivenJobs]:
    """The traffic with a pair for each given job that uses it; jobs that share a host at one time are left out."""
    if not jobs:
        return traffic, GivenJobs()
    hosts = _number_hosts(traffic)
    first = int(traffic.messages["start_ns"].min() or 0)  # type: ignore[arg-type]
    last = int(traffic.messages["end_ns"].max() or 0)  # type: ignore[arg-type]
    within = [job for job in jobs if (job.start_ns or first) <= last and (job.end_ns or last) >= first]
    seen = [job for job in within if any(host in hosts for host in job.hosts)]
    shared = _list_shared(seen)
    kept = [job for job in seen if job not in shared]
    notes = []
    if shared:
        notes.append(
            f"--jobs: {_say([job.name for job in shared])} use the same hosts at the same time, so that their parts "
            "are inferred"
        )
    missing = [job.name for job in within if job not in seen]
    if missing:
        notes.append(f"--jobs: no flow touches the hosts of {_say(missing)}; are they in the topology by this name?")
    if not kept:
        return traffic, GivenJobs(notes=tuple(notes))
    sides = [_assign(traffic, kept, hosts, traffic.pairs[c].to_numpy().astype(np.int64)) for c in ("src", "dst")]
    apart = (sides[0] != sides[1]) & (sides[0] != _NONE) & (sides[1] != _NONE)
    part = np.where(apart, 0, np.maximum(sides[0], sides[1]) + 1)
    strays = _find_strays(traffic, kept, sides)
    most = int(part.max(initial=0)) + 1
    own = np.unique(traffic.messages["pair"].to_numpy().astype(np.int64) * most + part) % most - 1
    return replace(split_pairs(traffic, part), given=own), GivenJobs(
        jobs=tuple(kept), notes=tuple(notes), strays=strays
    )


def number_given_ends(traffic: Traffic) -> Traffic:
    """The traffic with ends of their own for the pairs of each given job."""
    if traffic.given is None:
        return traffic
    src, dst = traffic.ends
    width = int(max(src.max(initial=0), dst.max(initial=0))) + 1
    own = traffic.given + 1
    return replace(traffic, nodes=(src + width * own, dst + width * own))


def _number_hosts(traffic: Traffic) -> dict[str, int]:
    """Hosts by name, in short as well: a scheduler may say n1 where the topology says n1.cluster."""
    found: dict[str, int] = {}
    for host, number in traffic.endpoints.select("host", "host_id").iter_rows():
        found.setdefault(str(host).split(".")[0] if not _is_address(str(host)) else str(host), int(number))
    found.update({str(h): int(n) for h, n in traffic.endpoints.select("host", "host_id").iter_rows()})
    return found


def _is_address(name: str) -> bool:
    return ":" in name or name.replace(".", "").isdigit()


def _list_shared(jobs: Sequence[ScheduledJob]) -> list[ScheduledJob]:
    """Jobs that have a host at the same time as another one."""
    on_host: dict[str, list[ScheduledJob]] = {}
    for job in jobs:
        for host in job.hosts:
            on_host.setdefault(host, []).append(job)
    shared = []
    for own in on_host.values():
        own = sorted(own, key=lambda job: job.start_ns or 0)
        for one, other in pairwise(own):
            if (one.end_ns or 2**62) > (other.start_ns or 0):
                shared += [job for job in (one, other) if job not in shared]
    return shared


def _assign(traffic: Traffic, jobs: Sequence[ScheduledJob], hosts: dict[str, int], end: Ints) -> Ints:
    """By message the number of the job that has the host of one of its ends when it begins; -1 for none."""
    host = traffic.endpoints["host_id"].to_numpy().astype(np.int64)[end][traffic.messages["pair"].to_numpy()]
    start = traffic.messages["start_ns"].to_numpy()
    found = np.full(len(start), _NONE, np.int64)
    for number, job in enumerate(jobs):
        own = np.isin(host, [hosts[h] for h in job.hosts if h in hosts])
        if job.start_ns is not None:
            own &= start >= job.start_ns
        if job.end_ns is not None:
            own &= start <= job.end_ns
        found[own] = number
    return found


def _find_strays(traffic: Traffic, jobs: Sequence[ScheduledJob], sides: Sequence[Ints]) -> dict[int, str]:
    """By job, the other jobs that its hosts exchange much with."""
    size = traffic.messages["bytes"].to_numpy().astype(np.float64)
    (one, other), num = sides, len(jobs)
    known = (one != _NONE) & (other != _NONE)
    table = np.bincount(one[known] * num + other[known], size[known], num * num).reshape(num, num)
    found = {}
    for number, job in enumerate(jobs):
        own = table[number, number]
        others = [k for k in range(num) if k != number and table[number, k] + table[k, number] > _STRAY * own]
        if others:
            names = _say([jobs[k].name for k in others])
            found[number] = f"the table gives its hosts to {job.name} alone, but they exchange as much with {names}"
    return found


def find_contradictions(traffic: Traffic, given: GivenJobs, number: int) -> tuple[str, ...]:
    """What records of a given job disagree with."""
    job, lines = given.jobs[number], []
    hosts = _number_hosts(traffic)
    active = set(traffic.endpoints["host_id"].to_numpy()[_list_ends(traffic, number)].tolist())
    silent = [host for host in job.hosts if hosts.get(host) not in active]
    if silent and len(silent) < len(job.hosts):
        lines.append(f"{_say(silent)} of {job.name} send nothing in its time; the table gives them to it")
    if number in given.strays:
        lines.append(given.strays[number])
    return tuple(lines)


def _list_ends(traffic: Traffic, number: int) -> Ints:
    own = np.flatnonzero(traffic.given == number) if traffic.given is not None else np.zeros(0, np.int64)
    return np.unique(np.concatenate([traffic.pairs[c].to_numpy()[own].astype(np.int64) for c in ("src", "dst")]))


def _say(names: Sequence[str]) -> str:
    more = f" and {len(names) - _NAMED} more" if len(names) > _NAMED else ""
    return ", ".join(names[:_NAMED]) + more

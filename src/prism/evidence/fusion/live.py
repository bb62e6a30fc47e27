"""Investigate a job that hangs now: the collector runs on its hosts, restarts nothing and leaves no files."""

from __future__ import annotations

import base64
import binascii
import json
import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from prism.errors import BadConfigError, InputError
from prism.evidence.fusion import collector
from prism.evidence.fusion.evidence import Evidence, read_ranks
from prism.evidence.fusion.investigation import Investigation, conclude
from prism.evidence.fusion.stop_clues import read_laggards
from prism.evidence.traces.flight_recorder import Dump, parse_dump
from prism.evidence.traces.plain_pickle import read_plain_pickle
from prism.evidence.traces.ras import find_laggards, parse_ras
from prism.evidence.traces.stacks import RankStack, parse_look
from prism.machine.hosts import expand_hosts

_AT_ONCE = 64  # hosts asked at the same time
_POD = re.compile(r"(?:[a-z0-9][a-z0-9-]{0,62}/)?[a-z0-9][a-z0-9.-]{0,252}")
_HOST = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.@:-]{0,252}")


@dataclass(frozen=True, slots=True, kw_only=True)
class LiveJob:
    """Which job: processes of this host, hosts to ask over ssh, a Slurm job, or pods of Kubernetes."""

    pids: tuple[int, ...] = ()
    hosts: tuple[str, ...] = ()
    slurm_job: str = ""
    pods: tuple[str, ...] = ()  # name, or namespace/name
    deadline_s: float = 90.0


@dataclass(slots=True)
class LiveAnswer:
    """What the hosts of a job answered."""

    evidence: Evidence
    ranks: list[RankStack]
    dumps: dict[int, Dump]


def investigate_live(job: LiveJob, *, say: Callable[[str], None] = lambda text: None) -> Investigation:
    """Collect on all hosts and conclude."""
    return conclude_live(collect_live(job, say=say))


def collect_live(job: LiveJob, *, say: Callable[[str], None] = lambda text: None) -> LiveAnswer:
    """Ask all hosts at once, so that their looks are of one time and a silent one delays nobody."""
    answer = LiveAnswer(evidence=Evidence(), ranks=[], dumps={})
    commands = _list_commands(job)
    say("asking " + ", ".join(host for host, _ in commands[:8]) + (" ..." if len(commands) > 8 else ""))
    with ThreadPoolExecutor(_AT_ONCE) as pool:
        told = pool.map(lambda c: _run(c[1], c[0], job.deadline_s, answer.evidence.notes), commands)
        answers = list(told)
    for document in _keep_one_job(answers, job):
        _take(document, answer.ranks, answer.dumps, answer.evidence)
    return answer


def conclude_live(answer: LiveAnswer) -> Investigation:
    """One verdict from what the hosts answered."""
    notes = answer.evidence.notes
    if not answer.ranks:
        raise BadConfigError(
            "no rank of that job was found: give the number of a rank or of its launcher; a process is known as a rank "
            "once it has joined its process group" + (f" ({notes[0]})" if notes else "")
        )
    read_ranks(answer.evidence, answer.ranks, [answer.dumps[r] for r in sorted(answer.dumps)])
    return conclude(answer.evidence)


def _keep_one_job(answers: Sequence[dict[str, Any]], job: LiveJob) -> list[dict[str, Any]]:
    """Only ranks of the requested job; hosts reached over ssh report all ranks that they run."""
    every = [r for told in answers for r in told.get("ranks", [])]
    asked = {r.get("job") for r in every if r.get("asked")}
    wanted = asked if job.pids or job.slurm_job else {r.get("job") for r in every}
    if len(wanted) > 1 and not job.slurm_job:
        names = "; ".join(sorted(str(w) for w in wanted)[:4])
        raise BadConfigError(f"these hosts run several jobs ({names}); give --pid of a rank of the one that hangs")
    return [{**told, "ranks": [r for r in told.get("ranks", []) if r.get("job") in wanted]} for told in answers]


def _list_commands(job: LiveJob) -> list[tuple[str, list[str]]]:
    """By host the command that runs the collector, whose source is sent through standard input."""
    words = [str(p) for p in job.pids] + ([f"slurm:{job.slurm_job}"] if job.slurm_job else [])
    bad = [h for h in job.hosts if not _HOST.fullmatch(h)]
    if bad or not re.fullmatch(r"[0-9_]{0,20}", job.slurm_job):
        raise BadConfigError(f"{(bad or [job.slurm_job])[0]!r} is no name of a host or job")
    odd = [p for p in job.pods if not _POD.fullmatch(p)]
    if odd:
        raise BadConfigError(f"{odd[0]!r} is no name of a pod; give NAME or NAMESPACE/NAME")
    if job.pods:
        return [(pod, _enter_pod(pod)) for pod in job.pods]
    if job.slurm_job and not job.hosts:
        hosts = _slurm_hosts(job.slurm_job)
        step = ["srun", f"--jobid={job.slurm_job}", "--overlap", "--ntasks=1", "--nodes=1"]
        return [(h, [*step, f"--nodelist={h}", "python3", "-", *words]) for h in hosts]
    if job.hosts:
        options = ["-o", "BatchMode=yes", "-o", "ConnectTimeout=10"]
        return [(h, ["ssh", *options, h, "python3", "-", *words, "all"]) for h in job.hosts]
    return [("this host", [sys.executable, "-P", "-", *words])]


def _enter_pod(pod: str) -> list[str]:
    """All ranks in a pod are of one job."""
    namespace, _, name = pod.rpartition("/")
    return ["kubectl", "exec", "-i", *(["-n", namespace] if namespace else []), name, "--", "python3", "-", "all"]


def _slurm_hosts(job: str) -> list[str]:
    if shutil.which("squeue") is None:
        raise BadConfigError("--job needs Slurm's squeue on this host; give --hosts for ssh instead")
    listed = subprocess.run(
        ["squeue", "-h", "-j", job, "-o", "%N"], capture_output=True, text=True, check=False
    ).stdout.strip()
    if not listed:
        raise BadConfigError(f"Slurm runs no job {job}")
    return expand_hosts(listed)


def _run(command: list[str], host: str, deadline_s: float, notes: list[str]) -> dict[str, Any]:
    """One host's document; a host that does not answer is a note."""
    text = Path(collector.__file__).read_text()
    try:
        done = subprocess.run(command, input=text, capture_output=True, text=True, timeout=deadline_s, check=False)
        told = json.loads(done.stdout)
    except subprocess.TimeoutExpired:
        notes.append(f"{host}: did not answer within {deadline_s:.0f} s")
        return {}
    except (OSError, ValueError):
        notes.append(f"{host}: nothing could be collected ({' '.join(command[:1])})")
        return {}
    return told if isinstance(told, dict) else {}


def _take(told: dict[str, Any], ranks: list[RankStack], dumps: dict[int, Dump], evidence: Evidence) -> None:
    host = str(told.get("host", ""))
    for r in told.get("ranks", []):
        rank = parse_look(r, host=host)
        ranks.append(rank)
        if r.get("note"):
            evidence.notes.append(f"rank {rank.rank} on {host}: {r['note']}")
        if r.get("guessed"):
            evidence.notes.append(
                f"rank {rank.rank} is process {rank.pid}: ranks are counted in the order of their start"
            )
        evidence.hosts[str(rank.rank)] = host
        if r.get("dump"):
            where = f"dump of rank {rank.rank}"
            try:
                document = read_plain_pickle(base64.b64decode(r["dump"]), where)
                dumps[rank.rank] = parse_dump(document, rank=rank.rank, where=where)
            except (InputError, binascii.Error) as error:
                evidence.notes.append(str(error))
    if told.get("ras"):
        try:
            evidence.clues += read_laggards(find_laggards(parse_ras(str(told["ras"]), f"RAS on {host}")))
        except InputError as error:
            evidence.notes.append(str(error))

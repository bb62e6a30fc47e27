"""A Slurm cluster, accessed through sinfo, squeue, sacct and sbatch."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from prism.datacenter.place.live.snapshot import Form, SeenJob, Snapshot, SubmitError, check

Unit = Literal["gpu", "node", "cpu"]
_JOBS = "%i|%T|%u|%b|%D|%C|%M|%L|%k"  # id, state, user, GPUs per node, nodes, CPUs, time used, time left, comment
_NODES = "%N|%T|%G|%C"  # name, state, resources, CPUs as allocated/idle/other/total
_UP = ("idle", "mixed", "allocated", "completing")
_GPUS = re.compile(r"gpu(?::[a-zA-Z0-9_.-]{1,60})?[:=](\d{1,6})")
_LENGTH = re.compile(r"^(?:(\d{1,6})-)?(?:(\d{1,6}):)?(\d{1,6}):(\d{2})$")


@dataclass(frozen=True, slots=True, kw_only=True)
class SlurmCluster:
    """Reached by its configuration file, by name (`-M`, with slurmdbd), or through a prefix such as ssh."""

    name: str
    conf: str = ""
    cluster: str = ""
    prefix: tuple[str, ...] = ()
    unit: Unit = "gpu"
    timeout_s: float = 20.0
    settle_s: float = 10.0  # after a failed call, until its effect would be visible; Slurm's MessageTimeout

    repeatable: bool = False

    @property
    def form(self) -> Form:
        """Jobs are scripts for sbatch."""
        return "batch script"

    @property
    def arrival_s(self) -> float:
        """sbatch waits for an absent controller, even after its dispatcher has died, up to its time limit."""
        return self.timeout_s + self.settle_s

    def look(self) -> Snapshot:
        """Nodes and jobs, or the failure as an error in the answer."""
        try:
            nodes = self._run("sinfo", "-h", "-N", "-o", _NODES)
            jobs = self._run("squeue", "-h", "-a", "-t", "PENDING,RUNNING,COMPLETING,SUSPENDED", "-o", _JOBS)
            total, usable = self._count_nodes(nodes)
            seen = self._parse_jobs(jobs)
            free = max(0, usable - (0 if self.unit == "cpu" else sum(job.gpus for job in seen if job.running)))
            return check(Snapshot(cluster=self.name, gpus=total, free=free, jobs=seen))
        except SubmitError as error:
            return Snapshot(cluster=self.name, error=str(error))
        except (ValueError, IndexError) as error:
            return Snapshot(cluster=self.name, error=f"its answers are not those of Slurm ({error!r:.60})")

    def submit(self, script: str, mark: str) -> str:
        """Submit a job, with the mark as its comment."""
        words = ["sbatch", "--parsable", f"--comment={mark}"]
        if self._remote:  # the script is a local file, so its text is sent
            text = Path(script).read_text()
            named = re.search(r"^#SBATCH\s.{0,200}(--job-name|-J)", text, re.MULTILINE)
            words += [] if named else [f"--job-name={Path(script).name}"]
            answer = self._run(*words, given=text).strip()
        else:
            answer = self._run(*words, "--", script, given="").strip()
        number = answer.split(";")[0].splitlines()[-1] if answer else ""
        if not number.isdigit():
            raise SubmitError(f"sbatch said '{answer[:60]}', expected a number")
        return number

    def find(self, script: str, mark: str) -> str | None:
        """Search the jobs of all states that the controller keeps, then the accounting if there is one."""
        # Every state, because a job that has already ended was submitted too.
        listed = self._run("squeue", "-h", "-a", "-t", "all", "-o", "%i|%k")
        for line in listed.splitlines():
            number, _, comment = line.partition("|")
            if comment.strip() == mark:
                return number
        try:
            past = self._run("sacct", "-n", "-P", "-X", "-S", "now-14days", "-o", "JobID,Comment")
        except SubmitError:
            return None  # no accounting: only the controller's memory can be searched
        for line in past.splitlines():
            number, _, comment = line.partition("|")
            if comment.strip() == mark:
                return number
        return None

    @property
    def _remote(self) -> bool:
        """Whether a shell on another host parses our arguments."""
        return bool(self.prefix) and Path(self.prefix[0]).name == "ssh"

    def _run(self, *words: str, given: str | None = None) -> str:
        """The output of a command; `given` is its input when it submits, and its time limit applies even if we die."""
        target = (f"--clusters={self.cluster}",) if self.cluster else ()
        limit = ("timeout", "-s", "KILL", f"{self.timeout_s:g}") if given is not None else ()
        own = [*limit, words[0], *target, *words[1:]]
        command = [*self.prefix, *(map(shlex.quote, own) if self._remote else own)]
        environment = {**os.environ, **({"SLURM_CONF": self.conf} if self.conf else {}), "SLURM_TIME_FORMAT": "%s"}
        for name in ("SBATCH_COMMENT", "SLURM_CLUSTERS", "SBATCH_CLUSTERS"):
            environment.pop(name, None)
        try:
            done = subprocess.run(
                command,
                capture_output=True,
                text=True,
                timeout=self.timeout_s + (5.0 if given is not None else 0.0),
                env=environment,
                errors="replace",
                **({"stdin": subprocess.DEVNULL} if given is None else {"input": given}),
            )
        except subprocess.TimeoutExpired:
            raise SubmitError(f"{words[0]} did not answer within {self.timeout_s:g} s") from None
        except OSError as error:
            raise SubmitError(f"{words[0]} cannot be run ({error.strerror})") from None
        if done.returncode != 0:
            text = done.stderr.strip().splitlines()
            said = text[-1][:120] if text else f"exit code {done.returncode}"
            # 124, 128 + 9: the time limit ended it, and it is unknown whether its call arrived; 255 is ssh's own.
            reached = done.returncode not in (124, 137, -9, 255) and not any(
                word in done.stderr for word in ("Unable to contact", "Socket timed out", "timed out", "onnect")
            )
            raise SubmitError(f"{words[0]}: {said}", refused=reached)
        return "\n".join(line for line in done.stdout.splitlines() if not line.startswith("CLUSTER: "))

    def _count_nodes(self, listed: str) -> tuple[int, int]:
        """GPUs (nodes, CPUs) in total, and of nodes that accept jobs; of CPUs only the idle ones."""
        total = usable = 0
        seen = set()
        for line in listed.splitlines():
            name, state, resources, cpus = line.split("|")
            if name in seen:  # a node of several partitions is listed once for each
                continue
            seen.add(name)
            _, idle, _, all_cpus = (int(part) for part in cpus.split("/"))
            size = {"gpu": _count_gpus(resources), "node": 1, "cpu": all_cpus}[self.unit]
            up = state.rstrip("*~#!%$@^-+").lower() in _UP and "*" not in state
            total += size
            usable += (idle if self.unit == "cpu" else size) if up else 0
        return total, usable

    def _parse_jobs(self, listed: str) -> tuple[SeenJob, ...]:
        found = []
        for line in listed.splitlines():
            number, state, user, per_node, nodes, cpus, used, left, comment = line.split("|", 8)
            count = _count_gpus(per_node) * int(nodes)
            size = {"gpu": count, "node": int(nodes), "cpu": int(cpus)}[self.unit]
            if size:
                found.append(
                    SeenJob(
                        id=number,
                        user=user,
                        gpus=size,
                        running=state in ("RUNNING", "COMPLETING", "SUSPENDED"),
                        elapsed_s=parse_length(used) or 0.0,
                        left_s=parse_length(left),
                        comment=comment.strip(),
                    )
                )
        return tuple(found)


def _count_gpus(text: str) -> int:
    return sum(int(number) for number in _GPUS.findall(text))


def parse_length(text: str) -> float | None:
    """Seconds of Slurm's [days-][hours:]minutes:seconds; None if unlimited or unknown."""
    match = _LENGTH.match(text.strip())
    if match is None:
        return None
    days, hours, minutes, seconds = (int(part or 0) for part in match.groups())
    return days * 86_400.0 + hours * 3_600.0 + minutes * 60.0 + seconds


def read_script(text: str, unit: Unit) -> tuple[int, float | None]:
    """The resources in a batch script's #SBATCH lines, and its time limit in seconds."""
    words: dict[str, str] = {}
    short = {"N": "nodes", "n": "ntasks", "t": "time", "G": "gpus", "c": "cpus-per-task"}
    for line in text.splitlines():
        if line.startswith("#SBATCH"):
            for option in re.findall(r"--([a-z-]{1,40})[= ](\S{1,200})|(?<=\s)-([NntGc])\s?(\S{1,60})", line[:2_000]):
                words[option[0] or short[option[2]]] = option[1] or option[3]
        elif line and not line.startswith("#"):
            break  # Slurm reads no options after the first command
    nodes = int(words["nodes"].split("-")[-1]) if words.get("nodes", "").split("-")[-1].isdigit() else 1
    if unit == "node":
        return nodes, _limit(words)
    if unit == "cpu":
        return int(words.get("ntasks", nodes)) * int(words.get("cpus-per-task", 1)), _limit(words)
    per_node = words.get("gpus-per-node") or words.get("gres") or ""
    count = _count_gpus(f"gpu:{per_node}" if per_node.isdigit() else per_node)
    whole = words.get("gpus", "").split(":")[-1]
    return (int(whole) if whole.isdigit() else count * nodes), _limit(words)


def _limit(words: dict[str, str]) -> float | None:
    text = words.get("time", "")
    return float(text) * 60.0 if text.isdigit() else parse_length(text)

"""Who wrote each line of a file, and whether the job itself could have printed it.

A job can print any text in its own output, such as a training sample or a retrieved web page.
Such a line may give a reason, but it cannot prove what the kernel or the scheduler would report.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from prism.evidence.logs.origins import Origin, Writer

# The share of a file's lines, without those marked as a process's output, that must have a system log's frame.
FRAMED_SHARE = 0.8
_DESCRIBE = re.compile(r"^(?:Name: {2,}\S|LAST SEEN\s+TYPE\s+REASON|NAMESPACE\s+LAST SEEN|Type\s+Reason\s+Age\s+From)")
_NODE = re.compile(r"^Node: +([\w.-]+)/")
_NUMBER = re.compile(r"\d+")
_SYSTEM: tuple[Writer, ...] = ("kernel", "scheduler")


def judge_writers(origins: Sequence[Origin]) -> list[tuple[Writer, bool]]:
    """(writer, trusted) of each line of one file."""
    if origins and _DESCRIBE.match(origins[0].text) and not origins[0].is_output:
        # Files of `kubectl describe` and `kubectl get events` contain no output of the job.
        return [("scheduler", True)] * len(origins)
    # Lines of launchers and runtimes occur in both kinds of files and decide nothing.
    beside = [o for o in origins if not o.is_output and (o.is_framed or o.writer not in ("launcher", "framework"))]
    system = sum(o.is_framed or o.writer in _SYSTEM for o in beside)
    is_system_log = bool(beside) and system >= FRAMED_SHARE * len(beside)
    judged = [_judge(origin, is_system_log) for origin in origins]
    for place in _epilogue(origins):
        judged[place] = (judged[place][0], True)
    return judged


def described_node(origins: Sequence[Origin]) -> str | None:
    """The node that `kubectl describe pod` names for its pod."""
    if not origins or not _DESCRIBE.match(origins[0].text):
        return None
    return next((m.group(1) for o in origins if (m := _NODE.match(o.text))), None)


def _judge(origin: Origin, is_system_log: bool) -> tuple[Writer, bool]:
    if origin.is_proven:
        return origin.writer, True
    return origin.writer, is_system_log and not origin.is_output and origin.writer != "application"


def _epilogue(origins: Sequence[Origin]) -> list[int]:
    """Lines of Slurm after the job's last output: when a step is lost, Slurm writes several into the job's own file."""
    places = []
    for place in range(len(origins) - 1, -1, -1):
        origin = origins[place]
        slurm = origin.text.startswith(("slurmstepd", "srun: "))
        if origin.is_output or origin.is_framed or not (slurm or origin.writer == "launcher"):
            break
        if slurm:
            places.append(place)
    return places if len({_NUMBER.sub("#", origins[place].text) for place in places}) > 1 else []

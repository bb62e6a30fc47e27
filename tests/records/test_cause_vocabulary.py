"""Every word for an end that one command writes is read by all the others, also one that a newer version adds."""

from __future__ import annotations

import json

import pytest

from prism.errors import InputError
from prism.records import Verdict
from prism.records.causes import CATEGORY_OF_REASON, CAUSE_KINDS, OUTCOMES, cause_of, cause_of_code, signal_name
from prism.records.jobs import JOB_STATES
from prism.recover.supervise import restarts
from prism.recover.supervise.endings import judge

BEYOND = [
    "Preempted",
    "TimeLimit",
    "Cancelled",
    "Stopped",
    "Hang",
    "Slow",
    "SilentCorruption",
    "LossSpike",
    "PortInUse",
    "WorkerDied",
    "NativeCrash",
]
SIGNALS = [signal_name(number) for number in range(1, 65)]
ALL = [*CATEGORY_OF_REASON, *BEYOND, *SIGNALS]


def verdict(reason: str, **more: object) -> Verdict:
    values = {"category": cause_of(reason).category, "action": "restart", "confidence": 0.5} | more
    return Verdict(log="x", reason=reason, **values)  # type: ignore[arg-type]


@pytest.mark.parametrize("name", ALL)
def test_every_cause_has_a_kind_an_outcome_and_survives_its_document(name: str) -> None:
    cause = cause_of(name)
    assert cause.kind in CAUSE_KINDS and cause.outcome in OUTCOMES
    assert (cause.kind == "unknown") == (name == "Unknown")
    told = verdict(name)
    assert Verdict.from_json(json.loads(json.dumps(told.to_json()))) == told


@pytest.mark.parametrize("name", [name for name in ALL if name != "none"])
def test_the_supervisor_judges_an_end_of_every_cause(name: str) -> None:
    failure = restarts.Failure(at_s=1.0, reason=name, category=cause_of(name).category, step=3)
    assert name in judge(verdict(name), [failure], policy=restarts.RestartPolicy()).why


def test_what_a_newer_version_wrote_is_kept_and_shown_as_unknown() -> None:
    document = verdict("Unknown").to_json() | {
        "reason": "Gremlins", "category": "magic", "action": "pray", "outcome": "vanished", "added": 1,
        "cause": {"name": "Gremlins", "kind": "supernatural", "text": "they came at night"},
        "evidence": [{"line": 3, "text": "boo", "colour": "green"}],
    }  # fmt: skip
    read = Verdict.from_json(document)
    assert (read.reason, read.category, read.action, read.outcome) == ("Gremlins", "magic", "pray", "vanished")
    assert (read.cause.name, read.cause.kind, read.cause.outcome) == ("Gremlins", "supernatural", "unknown")
    assert read.evidence[0].text == "boo" and "Gremlins" in read.says
    assert "unknown" in cause_of("Gremlins").text


def test_a_document_of_the_versions_before_outcomes_is_read() -> None:
    old = {"log": "x", "reason": "SIGKILL", "category": "unknown", "action": "restart", "confidence": 0.5}
    assert Verdict.from_json(old).says == "killed by SIGKILL: the kernel's memory killer or a person"


def test_what_is_no_verdict_is_refused_by_name() -> None:
    with pytest.raises(InputError, match="'log' is None"):
        Verdict.from_json({"reason": "Unknown", "action": "stop"})


@pytest.mark.parametrize(
    ("code", "name", "kind"),
    [(0, "none", "none"), (-9, "SIGKILL", "signal"), (137, "SIGKILL", "signal"), (139, "SIGSEGV", "signal"),
     (1, "exit code 1", "exit_code"), (255, "exit code 255", "exit_code"), (143, "SIGTERM", "signal")],
)  # fmt: skip
def test_an_exit_code_alone_says_so_much(code: int, name: str, kind: str) -> None:
    assert (cause_of_code(code).name, cause_of_code(code).kind) == (name, kind)


def test_every_state_of_a_scheduler_has_an_outcome() -> None:
    from prism.records.causes import outcome_of_state

    assert {outcome_of_state(state) for state in JOB_STATES} <= set(OUTCOMES)
    pairs = {"COMPLETED": "completed", "TIMEOUT": "timed_out", "CANCELLED by 1000": "cancelled", "NODE_FAIL": "lost_node",
             "PREEMPTED": "preempted", "Succeeded": "completed", "DeadlineExceeded": "timed_out", "OOMKilled": "failed",
             "RUNNING": "unknown", "Evicted": "preempted", "FAILED": "failed"}  # fmt: skip
    assert {state: outcome_of_state(state) for state in pairs} == pairs

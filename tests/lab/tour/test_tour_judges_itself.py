"""The tour compares every answer with what it planted."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from prism.errors import PrismError
from prism.lab.tour import parts
from prism.lab.tour.planted import match_faults
from prism.records import Culprit, Finding

SAID: dict[str, Any] = {
    "supervise": {"outcome": "done", "step": 240, "attempt": 2, "num_failures": 1, "decisions": []},
    "explain": {
        "outcome": "failed", "reason": "Unknown", "cause": {"name": "SIGKILL", "text": "killed by SIGKILL"},
        "first_rank": 1, "action": "restart",
    },
    "investigate": {"verdict": {"what": "hang", "culprits": [{"type": "rank", "id": "2"}], "confidence": 0.9}},
    "characterize": {"jobs": 20_000, "mean_gpus": 8.0, "median_duration_s": 60.0},
}  # fmt: skip
WRONG: dict[str, Any] = {
    "supervise": {"num_failures": 3},
    "explain": {"first_rank": 0},
    "investigate": {"verdict": {"what": "hang", "culprits": [{"type": "rank", "id": "1"}], "confidence": 0.9}},
    "characterize": {"jobs": 19_999},
}


def run(name: str, document: dict[str, Any], folder: Path, monkeypatch: pytest.MonkeyPatch) -> parts.Stop:
    monkeypatch.setattr(parts, "call", lambda words: [json.dumps(document)])
    (part,) = (part for part in parts.list_parts(folder) if part.name == name)
    return parts.run_part(replace(part, beside=None), folder)


@pytest.mark.parametrize("name", SAID)
def test_a_part_says_right_and_wrong(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    stop = run(name, SAID[name], tmp_path, monkeypatch)
    assert stop.right and stop.lines[-1].startswith("right: planted was ")
    stop = run(name, SAID[name] | WRONG[name], tmp_path, monkeypatch)
    assert not stop.right and stop.lines[-1].startswith("WRONG: planted was ")


def test_a_part_that_fails_is_wrong_and_ends_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(words: tuple[str, ...]) -> list[str]:
        raise PrismError("prism explain ended with exit code 2: no logs")

    monkeypatch.setattr(parts, "call", fail)
    (part,) = (part for part in parts.list_parts(tmp_path) if part.name == "explain")
    stop = parts.run_part(part, tmp_path)
    assert not stop.right and stop.lines[0].endswith("no logs")


@pytest.mark.parametrize(("host", "right"), [("n5", True), ("n6", False)])
def test_a_planted_fault_is_found_under_the_diagnosis_own_name_of_the_job(host: str, right: bool) -> None:
    culprit = {"type": "host", "id": "n5"}
    fault = {"kind": "slow_compute", "jobs": ["job-3"], "culprit": culprit, "lost_gpu_seconds": 100}
    made = SimpleNamespace(truth={"jobs": [{"id": "job-3", "endpoints": ["a", "b"]}], "faults": [fault]})
    finding = Finding(
        kind="slow_compute", job="job-1", culprit=Culprit(type="host", id=host), start_ns=0, end_ns=1,
        lost_gpu_seconds=50.0, score=0.9, evidence="late",
    )  # fmt: skip
    diagnosis = SimpleNamespace(jobs=[SimpleNamespace(id="job-1", endpoints=("a", "b"))], findings=(finding,))
    (found,) = match_faults(made, diagnosis)  # the two parts of each that are read
    expected = "right: slow_compute of job-3 as job-1; its cost is 50 % of the 100 GPU-seconds planted"
    assert found.judge() == (expected if right else "WRONG: slow_compute of job-3 (host n5) was not found")

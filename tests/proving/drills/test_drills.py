"""Real drills with a real job. The everyday suite runs two, with two ranks; `make drills` runs them all, with four."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

pytest.importorskip("torch")

from proving.drills.__main__ import DRILLS, why_not
from proving.drills.process_drills import Script
from proving.drills.slurm_cluster import why_no_slurm
from proving.drills.slurm_drill import lose_slurm_node
from proving.drills.soak_faults import FAULTS, STEPS_PER_FAULT, draw
from proving.drills.soak_ledger import FaultNote, Ledger, Tally, fingerprint, summarize

EVERYDAY = ("kill-tree", "nan")  # a bug of the program is tested without torch in test_supervised_runs.py

pytestmark = [pytest.mark.xdist_group("drills")]


@pytest.fixture(scope="module")
def script(tmp_path_factory) -> Iterator[Script]:
    yield Script(tmp_path_factory.mktemp("drills"))


@pytest.fixture(scope="module")
def small_script(tmp_path_factory) -> Iterator[Script]:
    yield Script(tmp_path_factory.mktemp("small-drills"), shrink=lambda job: replace(job, ranks=2, step_s=0.05))


@pytest.mark.parametrize("name", EVERYDAY)
def test_the_run_ends_as_a_person_would_want(name: str, small_script: Script):
    assert DRILLS[name](small_script).equal is not False, "losses as in the undisturbed run, where it went on"


@pytest.mark.slow
@pytest.mark.parametrize("name", [name for name in DRILLS if name not in EVERYDAY])
def test_so_it_does_under_every_other_harm(name: str, script: Script):
    reason = why_not(name)
    if reason is not None:
        pytest.skip(reason)
    assert DRILLS[name](script).equal is not False, "losses as in the undisturbed run, where it went on"


@pytest.mark.slow
@pytest.mark.slurm
def test_a_job_on_slurm_goes_on_without_the_node_it_lost(tmp_path: Path):
    reason = why_no_slurm()
    if reason is not None:
        pytest.skip(reason)
    lose_slurm_node(tmp_path)


def test_the_soak_of_200_faults_draws_every_kind_and_the_same_again():
    drawn = [fault for seed in range(20) for fault in draw(10, seed)]
    assert drawn == [fault for seed in range(20) for fault in draw(10, seed)]
    counts = Counter(fault.name for fault in drawn)
    assert set(counts) == set(FAULTS) and min(counts.values()) >= 10
    assert all(1 <= fault.ahead < STEPS_PER_FAULT for fault in drawn)  # so that a run has steps for all its faults


def test_a_soak_goes_on_from_its_ledger_and_tells_which_code_was_under_test(tmp_path: Path):
    path = tmp_path / "soak.jsonl"
    old = {"program": "prism", "seed": 1, "faults": 1, "finished": True, "equal": True}  # as it was written before
    path.write_text(json.dumps(old) + "\n")
    note = FaultNote(name="kill a rank", step=12, kept=10, restored=5, seconds=3.0)
    tally = Tally(program="prism", seed=2, faults=1, finished=True, equal=True, code=fingerprint(), notes=[note])
    Ledger(path).add(tally)
    again = Ledger(path)
    assert again.has("prism", 1) and again.has("prism", 2) and not again.has("torchrun", 2)
    assert again.tallies[1] == tally
    text = "\n".join(summarize(again.tallies, 1))
    assert "checkpoints lost 1 of 1 faults" in text and fingerprint() in text

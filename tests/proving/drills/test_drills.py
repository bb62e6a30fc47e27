"""Real drills with a real job. The everyday suite runs two, with two ranks; `make drills` runs them all, with four."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

pytest.importorskip("torch")

from proving.drills.__main__ import DRILLS, why_not
from proving.drills.process_drills import Script
from proving.drills.slurm_cluster import why_no_slurm
from proving.drills.slurm_drill import lose_slurm_node
from proving.drills.soak import KINDS, SAVE_EVERY, End, draw, is_right

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


def test_the_soak_draws_the_same_again_and_every_kind_of_fault_and_size():
    drawn = [draw(seed, (2, 4, 8), mounts=True) for seed in range(34)]
    assert drawn == [draw(seed, (2, 4, 8), mounts=True) for seed in range(34)]
    assert {training.ranks for training in drawn} == {2, 4, 8} and {one.saves for one in drawn} == {"own", "loop"}
    assert sum(one.small_memory for one in drawn) >= 10
    faults = [fault for training in drawn for fault in training.faults]
    assert {fault["kind"] for fault in faults} == set(KINDS) and len(faults) >= 200
    since_save = [int(str(fault["step"])) % SAVE_EVERY for fault in faults]
    assert sum(steps > SAVE_EVERY / 2 for steps in since_save) > 60, "kills long after saves, too"


def test_a_run_of_the_soak_is_right_only_with_the_weights_of_the_run_without_faults():
    alone = End(runner="alone", code=0, result="abc", met=0, pages=0, seconds=1.0)
    right = replace(alone, runner="prism", met=6)
    assert is_right(right, alone)
    for wrong in (
        replace(right, result="abd"),
        replace(right, result=""),
        replace(right, code=1),
        replace(right, pages=1),
    ):
        assert not is_right(wrong, alone)
    assert not is_right(replace(right, code=None), alone) and not is_right(right, replace(alone, result=""))

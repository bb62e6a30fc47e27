"""Sweep files, the flags of the commands, and captures that are broken."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from prism.cli.emulate import read_fault, read_ranks, read_routing
from prism.emulate.calibrating import list_group_sizes, list_sizes
from prism.emulate.capture import read_capture
from prism.emulate.launch import LaunchConfig
from prism.emulate.predict import choose_costs
from prism.emulate.sweep import evaluate_condition, read_sweep
from prism.errors import BadConfigError, InputError

GOOD = """
script: train.py
arguments: "--tp {tp} --pp {pp}"
world_size: 16
grid: {tp: [1, 2, 4], pp: [1, 2]}
where: tp * pp <= 4
"""


def test_a_sweep_tries_what_its_condition_allows(tmp_path: Path) -> None:
    path = tmp_path / "sweep.yaml"
    path.write_text(GOOD)
    plan = read_sweep(path)
    assert len(plan.choices()) == 5
    assert plan.command(plan.choices()[-1]) == ("train.py", "--tp", "4", "--pp", "1")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[", "not YAML"),
        ("- 1", "expected the keys"),
        ("script: a\narguments: b", "'grid' must name"),
        ("script: a\narguments: b\ngrid: {tp: 1}\nlayers: 2", "'layers' is not a key"),
        ("arguments: b\ngrid: {tp: 1}", "'script' is missing"),
    ],
)
def test_a_bad_sweep_file_is_one_clear_line(tmp_path: Path, text: str, message: str) -> None:
    path = tmp_path / "sweep.yaml"
    path.write_text(text)
    with pytest.raises(InputError, match=message) as caught:
        read_sweep(path)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("text", ["__import__('os')", "tp.real", "dp > 1", "tp +", "tp / 0", "[tp]"])
def test_conditions_are_arithmetic_and_nothing_else(text: str) -> None:
    with pytest.raises(BadConfigError, match="where"):
        evaluate_condition(text, {"tp": 2})


@pytest.mark.parametrize(
    "text", ["hang", "melt:rank=1", "hang:step=2", "hang:rank=x", "slow:rank=1,factor=0", "die:rank=1,at=3"]
)
def test_a_bad_fault_is_one_clear_line(text: str) -> None:
    with pytest.raises(BadConfigError, match="--fault"):
        read_fault(text)


def test_faults_and_ranks_are_read() -> None:
    fault = read_fault("slow:rank=5,step=3,factor=1.5")
    assert (fault.kind, fault.rank, fault.step, fault.factor) == ("slow", 5, 3, 1.5)
    assert read_ranks("5, 0,5") == (0, 5)
    with pytest.raises(BadConfigError, match="'a' is not a rank"):
        read_ranks("0,a")


def test_recorded_routing_needs_its_file(tmp_path: Path) -> None:
    counts = tmp_path / "counts.txt"
    counts.write_text("10\n0\n30\n")
    assert read_routing("recorded", counts) == {"routing": "recorded", "routing_counts": (10, 0, 30)}
    for routing, path in (("recorded", None), ("zipf", counts), ("random", None)):
        with pytest.raises(BadConfigError):
            read_routing(routing, path)
    counts.write_text("ten")
    with pytest.raises(InputError, match="whole number"):
        read_routing("recorded", counts)


@given(st.binary(max_size=300))
def test_a_broken_capture_is_one_clear_line(tmp_path_factory: pytest.TempPathFactory, raw: bytes) -> None:
    path = tmp_path_factory.mktemp("captures") / "rank-0.json"
    path.write_bytes(raw)
    with pytest.raises(InputError, match="not a capture"):
        read_capture(path)


def test_a_calibration_of_another_backend_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "points.csv"
    path.write_text("backend,kind,num_ranks,num_hosts,bytes,duration_ns\ngloo,all_reduce,8,1,1024,5000\n")
    with pytest.raises(BadConfigError, match="measured on gloo, but cluster 'dgx-h100' runs nccl"):
        choose_costs("NVIDIA H100", 8, 8, None, path)
    assert choose_costs("cpu", 8, 8, None, path).calibration is not None


def test_what_calibrate_writes_on_a_host_of_many_cores_is_taken_for_hosts_of_fewer_ranks(tmp_path: Path) -> None:
    """A host of 16 cores measures groups of 16, which a job with 8 ranks on a host does not have."""
    path = tmp_path / "here.csv"
    rows = [f"gloo,all_reduce,{ranks},1,{size},{1000 * ranks + size}" for ranks in (2, 16) for size in (1024, 65536)]
    path.write_text("backend,kind,num_ranks,num_hosts,bytes,duration_ns\n" + "\n".join(rows) + "\n")
    costs = choose_costs("cpu", 8, 8, None, path)
    assert costs.calibration is not None and costs.calibration.points["num_ranks"].max() == 2
    sizes = np.array([4096], np.int64)
    assert costs.price(["all_reduce"], sizes, np.zeros(1, np.int64), [costs.place([0, 0], [0, 1])])[0] > 0
    with pytest.raises(BadConfigError, match="raise --gpus-per-node or calibrate with a smaller --world-size"):
        choose_costs("cpu", 8, 1, None, path)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"world_size": 0}, "--world-size"),
        ({"script": ()}, "no script"),
        ({"script": ("absent.py",)}, "no such script"),
    ],
)
def test_a_launch_that_cannot_be_is_refused(changes: dict[str, object], message: str) -> None:
    with pytest.raises(BadConfigError, match=message):
        LaunchConfig(**{"script": (__file__,), "world_size": 2, **changes})  # type: ignore[arg-type]


def test_calibration_covers_powers_of_two() -> None:
    assert list_group_sizes(12) == [2, 4, 12]
    assert list_group_sizes(2) == [2]
    assert list_sizes(4096) == [1024, 2048, 4096]

"""The scripts of examples/ run unmodified, at scales that this machine does not have."""

from __future__ import annotations

from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from prism.emulate import CaptureConfig, EmulateConfig, LaunchConfig, emulate
from prism.emulate.sweep import read_sweep, run_sweep

EXAMPLES = Path(__file__).parents[2] / "examples"
TINY = ("--width", "32", "--layers", "4", "--length", "16", "--batch", "4", "--vocab", "64")


def _config(script: str, *arguments: str, world: int = 8) -> EmulateConfig:
    launch = LaunchConfig(script=(str(EXAMPLES / script), *arguments), world_size=world, timeout_s=600)
    capture = CaptureConfig(
        launch=launch, iterations=2, warmup=2, at_once=0, check_symmetry=False, track_memory=False, quick=True
    )
    return EmulateConfig(capture=capture)


def _kinds(emulation: Any) -> set[str]:
    return set(emulation.stitched.graph.ops["kind"].cast(str).unique().to_list())


@pytest.mark.slow
@pytest.mark.parametrize(
    ("arguments", "kind"),
    [
        (("--data", "hsdp"), "reduce_scatter"),
        (("--tp", "2", "--data", "fsdp", "--sequence-parallel"), "all_gather"),
        (("--pp", "2", "--schedule", "gpipe", "--data", "fsdp"), "send"),
        (("--pp", "2", "--schedule", "interleaved", "--data", "fsdp"), "send"),
        (("--cp", "4"), "recv"),
        (("--experts", "8"), "all_to_all"),
        (("--data", "ddp", "--compile"), "all_reduce"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, tuple) else value,
)
def test_every_layout_of_the_small_gpt_runs(arguments: tuple[str, ...], kind: str) -> None:
    emulation = emulate(_config("gpt/train.py", *TINY, *arguments))
    assert kind in _kinds(emulation)
    assert emulation.prediction.headline_ms > 0


@pytest.mark.slow
def test_the_llama_of_the_published_table_runs_in_small() -> None:
    emulation = emulate(_config("llama/train.py", world=128))
    assert {"all_gather", "reduce_scatter", "all_reduce"} <= _kinds(emulation)


@pytest.mark.slow
@pytest.mark.parametrize(("library", "script"), [("megatron.core", "megatron"), ("torchtitan", "torchtitan")])
def test_frameworks_from_the_package_index_run(library: str, script: str) -> None:
    if find_spec(library.split(".")[0]) is None:
        pytest.skip(f"{library} is not installed")
    emulation = emulate(_config(f"{script}/train.py", "--tp", "2"))
    assert _kinds(emulation) & {"all_reduce", "all_gather"}
    assert emulation.prediction.headline_ms > 0


@pytest.mark.slow
def test_a_sweep_ranks_layouts_and_keeps_those_that_the_script_refuses(tmp_path: Path) -> None:
    path = tmp_path / "sweep.yaml"
    path.write_text(
        f"script: {EXAMPLES / 'gpt' / 'train.py'}\narguments: '{' '.join(TINY)} --data fsdp --pp {{pp}}'\n"
        "world_size: 4\ngpu_memory_gb: 1\ngrid: {pp: [1, 2, 3]}\n"
    )
    base = _config("gpt/train.py")
    trials = run_sweep(read_sweep(path), replace(base), print)
    assert [trial.choice["pp"] for trial in trials][-1] == 3
    assert "does not divide the world size 4" in trials[-1].problem
    assert all(trial.predicted_ms and trial.fits for trial in trials[:-1])

"""The examples of recover, run for real: they end, start again, and go on as if nothing had been."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest

from prism.recover import Catalog

torch = pytest.importorskip("torch")

EXAMPLES = Path(__file__).parents[2] / "examples" / "recover"

pytestmark = [pytest.mark.slow]


def load(name: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(name, EXAMPLES / f"{name}.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.filterwarnings("ignore")  # Lightning's own, of torch and of Slurm on this machine
def test_a_lightning_run_that_was_cut_off_ends_as_one_that_was_not(tmp_path: Path):
    pytest.importorskip("lightning", reason="needs the package lightning")
    example = load("lightning_callback")
    whole = example.main(tmp_path / "whole", 60, 10)
    example.main(tmp_path / "cut", 35, 10)
    assert [entry.step for entry in Catalog(tmp_path / "cut").entries()] == [20, 30, 35]
    again = example.main(tmp_path / "cut", 60, 10)
    assert torch.equal(whole.layer.weight, again.layer.weight) and torch.equal(whole.layer.bias, again.layer.bias)


@pytest.mark.parametrize("name", ["plain_loop", "torchtitan_style"])
def test_a_torchrun_example_goes_on_from_its_checkpoint(name: str, tmp_path: Path):
    program = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "2", "--master-port", "0"]
    command = [*program, "--rdzv-backend", "c10d", "--rdzv-endpoint", "localhost:0", str(EXAMPLES / f"{name}.py")]
    for steps in ("12", "25"):
        environment = {**os.environ, "STEPS": steps, "OMP_NUM_THREADS": "1"}
        done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=600)
        assert done.returncode == 0, done.stderr[-2_000:]
    assert Catalog(tmp_path / "checkpoints").last_good().step >= 20

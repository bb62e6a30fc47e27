"""Automatic checkpoints: what is put into a job's processes, and that it never stands in their way."""

from __future__ import annotations

import os
import random
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest

from prism.recover.catalog import Catalog
from prism.recover.progress import AUTO_FOLDER
from prism.recover.supervise.config import AutomaticCheckpoints, SuperviseConfig, read_config


def run(program: str, tmp_path: Path, *, enabled: bool = True, path: Path | None = None) -> subprocess.CompletedProcess:
    settings = AutomaticCheckpoints(enabled=True)
    variables = {**os.environ, **settings.variables(tmp_path)}
    if path is not None:
        variables["PYTHONPATH"] += os.pathsep + str(path)
    if not enabled:
        variables.pop("PRISM_CHECKPOINT")
    return subprocess.run([sys.executable, "-c", program], env=variables, capture_output=True, text=True)


def test_a_job_that_imports_no_known_trainer_is_left_as_it_is(tmp_path: Path):
    done = run("import sys; print('torch' in sys.modules, 'prism' in sys.modules)", tmp_path)
    assert done.stdout.split() == ["False", "False"] and done.stderr == ""


def test_a_sitecustomize_that_was_there_before_is_run_as_well(tmp_path: Path):
    (tmp_path / "sitecustomize.py").write_text("print('mine')")
    assert run("pass", tmp_path, path=tmp_path).stdout == "mine\n"


def fake_transformers(folder: Path) -> None:
    (folder / "transformers").mkdir()
    (folder / "transformers" / "__init__.py").write_text("")
    (folder / "transformers" / "trainer.py").write_text("class Trainer:\n    def train(self): return 'trained'\n")


def test_a_trainer_that_is_too_old_runs_as_before_and_says_so_in_a_line(tmp_path: Path):
    pytest.importorskip("torch")
    fake_transformers(tmp_path)
    done = run("from transformers.trainer import Trainer; print(Trainer().train())", tmp_path, path=tmp_path)
    assert done.stdout == "trained\n" and done.returncode == 0
    assert done.stderr.startswith("prism: no automatic checkpoints for transformers.trainer")


def test_without_the_flag_nothing_is_attached(tmp_path: Path):
    fake_transformers(tmp_path)
    program = "from transformers.trainer import Trainer; print(Trainer().train())"
    done = run(program, tmp_path, enabled=False, path=tmp_path)
    assert (done.stdout, done.stderr) == ("trained\n", "")


def test_the_flag_is_a_setting_too(tmp_path: Path):
    path = tmp_path / "run.yaml"
    path.write_text("checkpoint: {enabled: true, folder: /data/checkpoints, interval_steps: 50}")
    variables = read_config(path).checkpoint.variables(tmp_path)
    assert (variables["PRISM_CHECKPOINT_DIR"], variables["PRISM_CHECKPOINT_STEPS"]) == ("/data/checkpoints", "50")
    assert SuperviseConfig().checkpoint.variables(tmp_path) == {}


def test_random_states_come_back_as_they_were():
    torch = pytest.importorskip("torch")
    import numpy as np

    from prism.recover.checkpoint.integrations.automatic import random_states, set_random_states

    kept = random_states()
    drawn = (random.random(), float(np.random.rand()), float(torch.rand(1)), random.gauss(0, 1))  # noqa: NPY002
    set_random_states(kept)
    again = (random.random(), float(np.random.rand()), float(torch.rand(1)), random.gauss(0, 1))  # noqa: NPY002
    assert drawn == again


def test_a_data_loader_worker_outlives_a_warning_that_reaches_everyone():
    pytest.importorskip("torch")
    program = """
import os, subprocess, time, torch
from prism.recover.checkpoint.preemption import PreemptionNotice
from torch.utils.data import DataLoader
class Slow(torch.utils.data.Dataset):
    def __len__(self): return 6
    def __getitem__(self, index): time.sleep(0.05); return index
if __name__ == "__main__":
    notice = PreemptionNotice()
    os.setpgid(0, 0)
    seen = []
    for batch in DataLoader(Slow(), num_workers=2):
        seen.append(int(batch))
        if len(seen) == 2:
            subprocess.run(["sh", "-c", f"kill -TERM -{os.getpgrp()}"], start_new_session=True)  # as a scheduler does
    print(notice.given, seen)
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=600)
    assert done.stdout == "True [0, 1, 2, 3, 4, 5]\n", done.stderr


@pytest.mark.slow
@pytest.mark.parametrize(("package", "script"), [("transformers", "hf_trainer.py"), ("lightning", "lightning_fit.py")])
@pytest.mark.parametrize("steps", [12, 32, 40])  # within the first epoch, at the end of one, after it
def test_a_script_that_fails_after_its_last_step_does_not_train_for_it_again(
    tmp_path: Path, package: str, script: str, steps: int
):
    pytest.importorskip(package)
    program = Path(__file__).parents[2] / "proving" / "drills" / "trainers" / script
    variables = {**os.environ, **AutomaticCheckpoints(enabled=True).variables(tmp_path), "WORKERS": "0"}
    words = [sys.executable, str(program), str(tmp_path / "out"), str(steps)]
    first, again = (subprocess.run(words, env=variables, capture_output=True, text=True, check=True) for _ in range(2))
    assert Catalog(tmp_path / "checkpoints").entries()[-1].step == steps
    assert first.stdout.rsplit("weights", 1)[1] == again.stdout.rsplit("weights", 1)[1]
    assert "'loss'" not in again.stdout  # which the Trainer prints after every step


@pytest.mark.parametrize("through", ["megatron.core", "megatron.training"])
def test_megatron_is_left_alone_with_one_line(tmp_path: Path, monkeypatch, capsys, through: str):
    pytest.importorskip("torch")
    from prism.recover.checkpoint.integrations.megatron_training import attach

    monkeypatch.setenv(AUTO_FOLDER, str(tmp_path))
    core = ModuleType("megatron.core.pipeline_parallel.schedules")
    core.get_forward_backward_func = lambda: "schedule"
    attach(core)
    if through == "megatron.training":
        training = ModuleType("megatron.training.training")
        monkeypatch.setitem(sys.modules, training.__name__, training)
        attach(training)
    get_schedule = core.get_forward_backward_func  # as a script imports it
    assert [get_schedule() for _ in range(3)] == ["schedule"] * 3
    said = capsys.readouterr().err.splitlines()
    assert len(said) == 1 and ("megatron-core" in said[0]) == (through == "megatron.core")

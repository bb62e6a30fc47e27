"""lm-evaluation-harness through Prism gives the harness's own numbers: plainly, with two workers, and after kills."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("lm_eval")

import harness_parts
from command_runs import (
    LIMIT_S,
    descendants,
    finish,
    inferred_twice,
    phases,
    start,
    wait_for_first_part,
    wait_until,
)
from marks import needs_transformers
from ray_nodes import RayNodes

from prism.errors import InputError
from prism.evaluate.run.adapters import WorkerCache, open_adapter
from prism.evaluate.run.worker_context import WorkerContext
from prism.evaluate.schedule.trials import Dataset

pytestmark = [pytest.mark.timeout(2 * LIMIT_S), needs_transformers]


@pytest.fixture(scope="module", autouse=True)
def offline(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Nothing is fetched, and datasets are cached apart."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("HF_HUB_OFFLINE", "1")
        patch.setenv("HF_DATASETS_CACHE", str(tmp_path_factory.mktemp("datasets")))
        patch.setenv("TQDM_DISABLE", "1")
        yield


@pytest.fixture(scope="module")
def parts(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """A model, twelve tasks, and what the harness itself says of them, in a process of its own."""
    base = tmp_path_factory.mktemp("harness")
    made = subprocess.run(
        [sys.executable, "-W", "ignore", str(Path(harness_parts.__file__)), str(base)], capture_output=True, text=True
    )
    assert made.returncode == 0, made.stderr[-2000:]
    line = next(line for line in made.stdout.splitlines() if line.startswith("RESULT"))
    plain = json.loads(line.removeprefix("RESULT"))
    settings = {"include_path": "tasks", "bootstrap_iters": 100}
    datasets = [{"name": name, "adapter": "lm-eval", "settings": settings} for name in plain]
    plan = {"checkpoints": "step-7", "datasets": datasets, "hardware": {"device": "cpu", "workers": 2, "score_cpus": 1}}
    (base / "plan.yaml").write_text(json.dumps(plan))  # JSON is YAML
    return base, plain


def test_the_tasks_are_no_trivial_ones(parts: Any) -> None:
    _, plain = parts
    values = [v for metrics in plain.values() for k, v in metrics.items() if "stderr" not in k]
    assert len(plain) >= 8 and len(values) >= 12
    assert sum(v > 0 for v in values) >= len(values) * 0.6


@pytest.mark.parametrize(
    ("task", "spoil", "message"),
    [
        ("choice_fwe", lambda tasks: None, "dataset 'x': the harness has no task 'choice_fwe'.*did you mean 'choice_few'"),
        ("choice", lambda tasks: (tasks / "rows.jsonl").unlink(), "dataset 'x': its data cannot be opened .*rows.jsonl"),
        ("choice", shutil.rmtree, "tasks: no such folder of tasks; check 'include_path'"),
    ],
)  # fmt: skip
def test_a_harness_task_that_is_not_there_is_named_in_one_line(
    parts: Any, tmp_path: Path, task: str, spoil: Any, message: str
) -> None:
    harness_parts.copy_tasks(parts[0] / "tasks", tmp_path / "tasks")
    spoil(tmp_path / "tasks")
    settings = {"include_path": "tasks", "folder": str(tmp_path)}
    with pytest.raises(InputError, match=message) as told:
        open_adapter("lm-eval").survey(Dataset(name="x", adapter="lm-eval", task=task, samples=0, settings=settings))
    assert "\n" not in str(told.value)


def test_two_workers_give_the_numbers_of_the_harness(parts: Any, tmp_path: Path) -> None:
    base, plain = parts
    document = finish(start(base / "plan.yaml", tmp_path / "run", "--engine", "local"))
    assert document["results"] == {"step-7": plain}
    assert inferred_twice(tmp_path / "run") == []


@pytest.mark.slow
def test_any_cut_gives_the_numbers_of_the_harness(parts: Any) -> None:
    """Without processes, so that the cut is ours to choose: few-shot prompts and filters do not depend on it."""
    base, plain = parts
    adapter, cache = open_adapter("lm-eval"), WorkerCache()
    import torch

    torch.set_num_threads(1)
    for name in ("choice_few", "written_vote", "rolling"):
        settings = {"include_path": "tasks", "bootstrap_iters": 100, "folder": str(base)}
        dataset = Dataset(name=name, adapter="lm-eval", task=name, samples=0, settings=settings)
        scores: list[dict[str, Any]] = []
        for first, last in ((0, 1), (1, 6), (6, adapter.survey(dataset).samples)):
            outputs = json.loads(json.dumps(adapter.infer(dataset, base / "step-7", cache, first, last, 0)))
            scores += json.loads(json.dumps(adapter.score(dataset, cache, outputs, first)))
        assert adapter.combine(dataset, scores) == plain[name]


@pytest.mark.slow
def test_the_bootstrap_of_a_worker_forks_nothing_and_draws_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    """A fork of a Ray worker may hang; the harness forks unless it is told not to."""
    from lm_eval.api.metrics import bootstrap_stderr, mean

    values = [float(n % 7) for n in range(50)]
    monkeypatch.setenv("DISABLE_MULTIPROC", "")
    forked = bootstrap_stderr(mean, values, 3000)
    monkeypatch.delenv("DISABLE_MULTIPROC")
    WorkerContext().close()
    monkeypatch.setattr("multiprocessing.Pool", None)
    assert bootstrap_stderr(mean, values, 3000) == forked


@pytest.mark.slow
def test_a_killed_worker_changes_nothing(parts: Any, tmp_path: Path) -> None:
    base, plain = parts
    process = start(base / "plan.yaml", tmp_path / "run", "--engine", "local")
    wait_for_first_part(tmp_path / "run", process)
    worker = next(pid for pid, args in descendants(process.pid).items() if "/worker-" in args)
    os.kill(worker, signal.SIGKILL)
    document = finish(process)
    assert document["results"] == {"step-7": plain}


@pytest.mark.slow
@pytest.mark.parametrize("engine", ["local", pytest.param("ray", marks=pytest.mark.ray)])
def test_a_killed_coordinator_continues_with_another_number_of_workers(parts: Any, tmp_path: Path, engine: str) -> None:
    base, plain = parts
    process = start(base / "plan.yaml", tmp_path / "run", "--engine", engine)
    wait_for_first_part(tmp_path / "run", process)
    below = descendants(process.pid)
    os.kill(process.pid, signal.SIGKILL)
    process.communicate()
    before = len(phases(tmp_path / "run", "infer"))
    end = time.monotonic() + 600
    while any(Path(f"/proc/{pid}").exists() for pid in below) and time.monotonic() < end:
        time.sleep(0.1)
    plan = json.loads((base / "plan.yaml").read_text())
    plan["hardware"]["workers"] = 1
    (base / "plan.yaml").write_text(json.dumps(plan))
    try:
        document = finish(start(base / "plan.yaml", tmp_path / "run", "--engine", "local"))
    finally:
        plan["hardware"]["workers"] = 2
        (base / "plan.yaml").write_text(json.dumps(plan))
    assert document["results"] == {"step-7": plain}
    assert before > 0 and inferred_twice(tmp_path / "run") == []


@pytest.mark.slow
@pytest.mark.ray
def test_killing_a_ray_worker_and_then_rays_node_process_changes_nothing(parts: Any, tmp_path: Path) -> None:
    pytest.importorskip("ray")
    base, plain = parts
    process = start(base / "plan.yaml", tmp_path / "run", "--engine", "ray")
    wait_for_first_part(tmp_path / "run", process)
    hands = [pid for pid, args in descendants(process.pid).items() if args.startswith("ray::_WorkerActor")]
    assert hands
    os.kill(hands[0], signal.SIGKILL)
    time.sleep(2)
    raylets = [pid for pid, args in descendants(process.pid).items() if "raylet/raylet" in args.split(" ")[0]]
    assert len(raylets) == 1
    os.kill(raylets[0], signal.SIGKILL)
    document = finish(process)
    assert document["results"] == {"step-7": plain}


@pytest.mark.slow
@pytest.mark.ray
def test_a_killed_node_process_of_a_ray_cluster_changes_nothing(
    parts: Any, tmp_path: Path, ray_nodes: RayNodes
) -> None:
    """Two nodes of `ray start`; the second one's raylet is killed while both infer."""
    base, plain = parts
    run, lost = tmp_path / "run", ray_nodes.node_id(1)
    process = start(base / "plan.yaml", run, "--ray-address", ray_nodes.address, env=ray_nodes.environment)
    wait_until(lambda: any(line["node"] == lost for line in phases(run, "infer")), process, "a part of the second node")
    ray_nodes.kill(1)
    killed_ns = time.time_ns()
    document = finish(process)
    assert document["results"] == {"step-7": plain}
    later = [line for line in phases(run, "infer") if line["start_ns"] > killed_ns]
    assert later and lost not in {line["node"] for line in later}, "the run was over before the node was lost"

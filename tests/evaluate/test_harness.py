"""lm-evaluation-harness through Prism gives the harness's own numbers: plainly, with two workers, and after kills."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("lm_eval")
pytest.importorskip("transformers")

import harness_parts

from prism.evaluate.adapters import Bench, open_adapter
from prism.evaluate.trials import Dataset

LIMIT_S = 600.0  # processes import torch, transformers and the harness; a busy machine takes its time

pytestmark = pytest.mark.timeout(2 * LIMIT_S)


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
    """A model, ten tasks, and what the harness itself says of them, in a process of its own."""
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


def start(base: Path, output: Path, *flags: str) -> subprocess.Popen[str]:
    """`prism evaluate` as a user starts it."""
    words = ["evaluate", str(base / "plan.yaml"), "--output", str(output), "--json", *flags]
    return subprocess.Popen(
        [sys.executable, "-W", "ignore", "-c", "from prism.cli.main import main; main()", *words],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )


def finish(process: subprocess.Popen[str]) -> dict[str, Any]:
    out, told = process.communicate(timeout=LIMIT_S)
    assert process.returncode == 0, told[-3000:]
    document: dict[str, Any] = json.loads(out)
    return document


def phases(output: Path, phase: str) -> list[dict[str, Any]]:
    with contextlib.suppress(FileNotFoundError):
        lines = [json.loads(line) for line in (output / "trials.jsonl").read_text().splitlines()]
        return [line for line in lines if line["phase"] == phase and line["state"] == "done"]
    return []


def wait_for_first_part(output: Path, process: subprocess.Popen[str]) -> None:
    end = time.monotonic() + LIMIT_S
    while not phases(output, "infer"):
        assert process.poll() is None and time.monotonic() < end, "no part was ever inferred"
        time.sleep(0.05)


def descendants(pid: int) -> dict[int, str]:
    """All processes below one, with their command lines."""
    rows = [row.split(None, 2) for row in subprocess.run(
        ["ps", "-ww", "-eo", "pid,ppid,args", "--no-headers"], capture_output=True, text=True).stdout.splitlines()]  # fmt: skip
    found: dict[int, str] = {}
    level = {pid}
    while level:
        below = {int(p): args for p, parent, args in rows if int(parent) in level}
        found |= below
        level = set(below)
    return found


def inferred_twice(output: Path) -> list[tuple[str, int]]:
    """Samples whose inference was finished more than once."""
    seen: dict[tuple[str, int], int] = {}
    for line in phases(output, "infer"):
        first, last = line["trial"].rpartition("[")[2].rstrip("]").split(":")
        for sample in range(int(first), int(last)):
            seen[line["dataset"], sample] = seen.get((line["dataset"], sample), 0) + 1
    return [key for key, count in seen.items() if count > 1]


def test_the_tasks_are_no_trivial_ones(parts: Any) -> None:
    _, plain = parts
    values = [v for metrics in plain.values() for k, v in metrics.items() if "stderr" not in k]
    assert len(plain) >= 8 and len(values) >= 12
    assert sum(v > 0 for v in values) >= len(values) * 0.6


def test_two_workers_give_the_numbers_of_the_harness(parts: Any, tmp_path: Path) -> None:
    base, plain = parts
    document = finish(start(base, tmp_path / "run", "--engine", "local"))
    assert document["results"] == {"step-7": plain}
    assert inferred_twice(tmp_path / "run") == []


@pytest.mark.slow
def test_any_cut_gives_the_numbers_of_the_harness(parts: Any) -> None:
    """Without processes, so that the cut is ours to choose: few-shot prompts and filters do not depend on it."""
    base, plain = parts
    adapter, bench = open_adapter("lm-eval"), Bench()
    import torch

    torch.set_num_threads(1)
    for name in ("choice_few", "written_vote", "rolling"):
        settings = {"include_path": "tasks", "bootstrap_iters": 100, "folder": str(base)}
        dataset = Dataset(name=name, adapter="lm-eval", task=name, samples=0, settings=settings)
        scores: list[dict[str, Any]] = []
        for first, last in ((0, 1), (1, 6), (6, adapter.survey(dataset).samples)):
            outputs = json.loads(json.dumps(adapter.infer(dataset, base / "step-7", bench, first, last, 0)))
            scores += json.loads(json.dumps(adapter.score(dataset, outputs, first)))
        assert adapter.combine(dataset, scores) == plain[name]


@pytest.mark.slow
def test_a_killed_worker_changes_nothing(parts: Any, tmp_path: Path) -> None:
    base, plain = parts
    process = start(base, tmp_path / "run", "--engine", "local")
    wait_for_first_part(tmp_path / "run", process)
    worker = next(pid for pid, args in descendants(process.pid).items() if "/worker-" in args)
    os.kill(worker, signal.SIGKILL)
    document = finish(process)
    assert document["results"] == {"step-7": plain}


@pytest.mark.slow
@pytest.mark.parametrize("engine", ["local", pytest.param("ray", marks=pytest.mark.ray)])
def test_a_killed_coordinator_continues_with_another_number_of_workers(parts: Any, tmp_path: Path, engine: str) -> None:
    base, plain = parts
    process = start(base, tmp_path / "run", "--engine", engine)
    wait_for_first_part(tmp_path / "run", process)
    below = descendants(process.pid)
    os.kill(process.pid, signal.SIGKILL)
    process.communicate()
    before = len(phases(tmp_path / "run", "infer"))
    end = time.monotonic() + 60
    while any(Path(f"/proc/{pid}").exists() for pid in below) and time.monotonic() < end:
        time.sleep(0.1)
    plan = json.loads((base / "plan.yaml").read_text())
    plan["hardware"]["workers"] = 1
    (base / "plan.yaml").write_text(json.dumps(plan))
    try:
        document = finish(start(base, tmp_path / "run", "--engine", "local"))
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
    process = start(base, tmp_path / "run", "--engine", "ray")
    wait_for_first_part(tmp_path / "run", process)
    hands = [pid for pid, args in descendants(process.pid).items() if args.startswith("ray::_Hand")]
    assert hands
    os.kill(hands[0], signal.SIGKILL)
    time.sleep(2)
    raylets = [pid for pid, args in descendants(process.pid).items() if "raylet/raylet" in args.split(" ")[0]]
    assert len(raylets) == 1
    os.kill(raylets[0], signal.SIGKILL)
    document = finish(process)
    assert document["results"] == {"step-7": plain}

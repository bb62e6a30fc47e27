"""Forty-six tasks through Prism and through plain lm-evaluation-harness: every metric equal, groups and code included."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("lm_eval")

import forty_tasks
from command_runs import LIMIT_S, finish, start
from marks import needs_transformers

from prism.evaluate.run.scoring.sandbox import why_not

pytestmark = [pytest.mark.timeout(2 * LIMIT_S), pytest.mark.slow, needs_transformers]
CHAT = {"apply_chat_template": True, "system_instruction": "Be short.", "fewshot_as_multiturn": True}


@pytest.fixture(scope="module", autouse=True)
def offline(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("HF_HUB_OFFLINE", "1")
        patch.setenv("HF_DATASETS_CACHE", str(tmp_path_factory.mktemp("datasets")))
        patch.setenv("TQDM_DISABLE", "1")
        yield


@pytest.fixture(scope="module")
def parts(tmp_path_factory: pytest.TempPathFactory) -> Any:
    base = tmp_path_factory.mktemp("forty")
    made = subprocess.run(
        [sys.executable, "-W", "ignore", str(Path(forty_tasks.__file__)), str(base)], capture_output=True, text=True
    )
    assert made.returncode == 0, made.stderr[-2000:]
    line = next(line for line in made.stdout.splitlines() if line.startswith("RESULT"))
    plain, templated = json.loads(line.removeprefix("RESULT"))
    return base, plain, templated


@pytest.mark.skipif(why_not("own") is not None, reason="no walls here")
def test_all_metrics_of_forty_six_tasks_are_the_harnesss(parts: Any, tmp_path: Path) -> None:
    base, plain, templated = parts
    listed = json.loads((base / "tasks" / "names.json").read_text())
    settings = {"include_path": "tasks", "bootstrap_iters": 100}
    names = [*listed, "mm", "mm_plain", "sums", "sums_zero", "programs"]
    datasets = [{"name": name, "adapter": "lm-eval", "settings": settings} for name in names]
    datasets += [
        {"name": f"chat_{task}", "adapter": "lm-eval", "task": task, "settings": {**settings, **CHAT}}
        for task in ("mm_stem_0", "sums")
    ]
    plan = {
        "checkpoints": "step-7",
        "datasets": datasets,
        "confirm_run_unsafe_code": True,
        "hardware": {"device": "cpu", "workers": 1, "score_cpus": 1},
    }
    (base / "plan.yaml").write_text(json.dumps(plan))
    document = finish(start(base / "plan.yaml", tmp_path / "run", "--engine", "local"))
    found = document["results"]["step-7"]
    assert len([name for name in plain if document["datasets"][name]["adapter"] == "lm-eval"]) >= 44
    assert {name: found[name] for name in plain} == plain
    assert {name: found[f"chat_{name}"] for name in templated} == templated
    assert set(plain) | {f"chat_{name}" for name in templated} == set(found)
    assert document["datasets"]["mm"]["version"] == "2" and document["datasets"]["sums"]["version"] == "3.0"
    assert 0 < found["programs"]["passes,made"] < 1

"""Harness tasks that run code of models: not without consent, and not outside the walls."""

from __future__ import annotations

import socket
import sys
from collections.abc import Iterator
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

pytest.importorskip("lm_eval")

import forty_tasks

from prism.errors import BadConfigError
from prism.evaluate.plan_file import parse_plan
from prism.evaluate.run.adapters import BUILTIN_DATASETS, WorkerCache, open_adapter
from prism.evaluate.run.adapters.harness_code import CodeMetric, install_code_metric
from prism.evaluate.run.adapters.harness_tasks import build_requests, open_task
from prism.evaluate.run.scoring.sandbox import why_no_isolation, why_not
from prism.evaluate.schedule.trials import Dataset


@pytest.fixture
def base(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A task whose metric runs the program itself; one row reads a secret, one opens a socket."""
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    monkeypatch.setenv("HF_DATASETS_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("TQDM_DISABLE", "1")
    monkeypatch.setenv("SECRET", "prism-secret")
    (tmp_path / "tasks").mkdir()
    (tmp_path / "secret").write_text("42")
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        tries = [
            "1",
            f"1\\nopen({str(tmp_path / 'secret')!r}).read()",
            f"1\\nimport socket\\nsocket.create_connection(('127.0.0.1', {port}), 2)",
            "1\\nimport os\\nassert 'prism-secret' in str(os.environ)",
            "2",
        ]
        rows = [{"start": "", "end": text.replace("\\n", "\n"), "test": "assert x == 1"} for text in tries]
        (tmp_path / "tasks" / "metric.py").write_text(forty_tasks.CODE_METRIC)
        forty_tasks._write_code(tmp_path / "tasks", rows)
        yield tmp_path


def make_dataset(base: Path, task: str = "programs", **settings: Any) -> Dataset:
    common = {"include_path": "tasks", "bootstrap_iters": 100, "folder": str(base)}
    return Dataset(name=task, adapter="lm-eval", task=task, samples=0, settings={**common, **settings})


def test_code_is_not_run_without_consent_and_the_plan_gives_it(base: Path) -> None:
    """Neither the task nor a group that holds it, and nothing of the task's own functions is loaded before."""
    (base / "tasks" / "metric.py").write_text("raise SystemExit('the metric was loaded')")
    forty_tasks._write(base / "tasks", "all", {"group": "all", "task": ["programs"]})
    for name in ("programs", "all"):
        with pytest.raises(BadConfigError, match="task 'programs' runs code that the model writes.*confirm_run_unsafe"):
            open_adapter("lm-eval").survey(make_dataset(base, name))
    text = "{checkpoints: [], datasets: ['lm-eval:programs', order], confirm_run_unsafe_code: true}"
    first, second = parse_plan(text, "p", base, BUILTIN_DATASETS, watching=True).datasets
    assert first.settings == {"confirm_run_unsafe_code": True} and second.settings == {}


@pytest.mark.skipif(why_not("own") is not None, reason="no walls of our own here")
def test_a_metric_that_runs_programs_itself_does_so_behind_walls(base: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also where packages are looked for above /tmp, which programs write to and do not read.

    Its process imports nothing from the folder that Prism is used in, where others may have left files.
    """
    monkeypatch.setattr(sys, "path", [*sys.path, "/"])
    (base / "json.py").write_text("raise SystemExit('a file of the current folder was run')")
    monkeypatch.chdir(base)
    dataset = make_dataset(base, confirm_run_unsafe_code=True)
    outputs = [{"replies": [["generate_until", 0, ""]]} for _ in range(5)]
    scores = open_adapter("lm-eval").score(dataset, WorkerCache(), outputs, 0)
    assert [score["passes,made"] for score in scores] == [1.0, 0.0, 0.0, 0.0, 0.0]


@pytest.mark.skipif(why_no_isolation() is not None, reason="no walls here")
def test_programs_of_code_eval_run_in_the_sandbox() -> None:
    """pass@k of Chen et al.: 1 - C(n-c, k) / C(n, k)."""
    right, wrong, forged = "def f(): return 1", "def f(): return 2", "import os; os._exit(0)"
    tests = ["assert f() == 1", "assert f() == 1"]
    rates, endings = CodeMetric().compute(
        tests, [[right, wrong, wrong], [right, right, forged]], k=[1, 2, 5], timeout=600
    )
    assert rates == pytest.approx({"pass@1": (1 / 3 + 2 / 3) / 2, "pass@2": ((1 - 1 / 3) + 1) / 2})
    assert [done["passed"] for _, done in endings[1]] == [True, True, False]


def test_a_chat_template_and_a_system_prompt_are_in_the_requests(base: Path) -> None:
    class Model:
        tokenizer_name = "t"

        def apply_chat_template(self, history: list[dict[str, str]], add_generation_prompt: bool = True) -> str:
            return "".join(f"<{m['role']}>{m['content']}" for m in history)

    settings = {"apply_chat_template": True, "system_instruction": "Be short.", "confirm_run_unsafe_code": True}
    dataset = make_dataset(base, **settings)
    requests = build_requests(open_task(dataset), dataset, Model())
    assert requests[0].args[0].startswith("<system>Be short.<user>x = ")


def test_a_module_called_evaluate_that_is_no_library_is_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """A user's own evaluate.py beside the plan goes before the installed package."""
    own = ModuleType("evaluate")
    own.__spec__ = ModuleSpec("evaluate", None)
    monkeypatch.setitem(sys.modules, "evaluate", own)
    install_code_metric()
    assert not hasattr(own, "load")

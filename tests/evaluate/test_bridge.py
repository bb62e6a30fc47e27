"""Other harnesses as commands: what they measured is taken in, what they did not say is not."""

from __future__ import annotations

import json
import shutil
import sys
from pathlib import Path

import harness_parts
import pytest
from forty_tasks import add_template

from prism.errors import BadConfigError, PrismError
from prism.evaluate.run.adapters import Bench, open_adapter
from prism.evaluate.run.adapters.bridge import read_inspect, read_opencompass
from prism.evaluate.schedule.trials import Dataset


def make_log(status: str = "success") -> str:
    """As Inspect writes its logs, with the fields that are read."""
    metrics = {"accuracy": {"name": "accuracy", "value": 0.75}, "stderr": {"name": "stderr", "value": 0.1}}
    return json.dumps({"version": 2, "status": status, "results": {"scores": [{"name": "match", "metrics": metrics}]}})


def test_scores_of_inspect_are_taken_in_with_their_error(tmp_path: Path) -> None:
    (tmp_path / "log.json").write_text(make_log())
    assert read_inspect(tmp_path) == {"match/accuracy": 0.75, "match/accuracy_stderr": 0.1}
    failed = {"version": 2, "status": "error", "results": None, "error": {"message": "no route", "traceback": "..."}}
    (tmp_path / "log.json").write_text(json.dumps(failed))
    with pytest.raises(PrismError, match="inspect's log says 'error': no route"):
        read_inspect(tmp_path)


def test_scores_of_opencompass_are_taken_in(tmp_path: Path) -> None:
    (tmp_path / "x" / "summary").mkdir(parents=True)
    text = "dataset,version,metric,mode,local\nsiqa,e8d8c5,accuracy,ppl,41.5\nwinograd,-,-,-,-\n"
    (tmp_path / "x" / "summary" / "summary_20260101.csv").write_text(text)
    assert read_opencompass(tmp_path) == {"siqa/accuracy": 41.5}


def test_a_tool_runs_as_a_command_and_is_told_where_it_is_missing(tmp_path: Path) -> None:
    script = tmp_path / "tool.py"
    script.write_text(f"import sys, pathlib\npathlib.Path(sys.argv[2], 'log.json').write_text({make_log()!r})\n")
    settings = {"command": f"{sys.executable} {script} {{model}} {{output}}", "folder": str(tmp_path)}
    dataset = Dataset(name="x", adapter="inspect", task="t", samples=0, settings=settings)
    adapter = open_adapter("inspect")
    assert adapter.survey(dataset).samples == 1
    outputs = adapter.infer(dataset, tmp_path, Bench(), 0, 1, 0)
    assert adapter.combine(dataset, adapter.score(dataset, Bench(), outputs, 0))["match/accuracy"] == 0.75
    script.write_text("import sys; sys.exit('no such task')")
    with pytest.raises(PrismError, match="inspect ended with 1: no such task"):
        adapter.infer(dataset, tmp_path, Bench(), 0, 1, 0)
    with pytest.raises(BadConfigError, match="no program 'nowhere' can be run here"):
        adapter.survey(Dataset(name="x", adapter="inspect", task="t", samples=0, settings={"command": "nowhere x"}))


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.skipif(shutil.which("inspect") is None, reason="Inspect is not installed")
def test_inspect_itself_runs_by_the_documented_command(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    model = harness_parts.write_model(tmp_path / "model")
    add_template(model)
    (tmp_path / "task.py").write_text(
        "from inspect_ai import Task, task\nfrom inspect_ai.dataset import Sample\n"
        "from inspect_ai.scorer import includes\n@task\ndef words():\n"
        "    samples = [Sample(input=str(i), target='' if i % 2 else 'never written') for i in range(4)]\n"
        "    return Task(dataset=samples, scorer=includes())\n"
    )
    settings = {"args": "--max-tokens 8 --display none", "folder": str(tmp_path)}
    dataset = Dataset(name="x", adapter="inspect", task="task.py", samples=0, settings=settings)
    (found,) = open_adapter("inspect").infer(dataset, model, Bench(), 0, 1, 0)
    assert found["metrics"]["includes/accuracy"] == 0.5
    assert found["metrics"]["includes/accuracy_stderr"] == pytest.approx(0.2887, abs=1e-4)

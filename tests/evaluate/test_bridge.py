"""Other harnesses as commands: what they measured is taken in, what they did not say is not."""

from __future__ import annotations

import json
import os
import shutil
import site
import sys
import sysconfig
from pathlib import Path

import harness_parts
import pytest
from forty_tasks import add_template

from prism.errors import BadConfigError, PrismError
from prism.evaluate.run.adapters import WorkerCache, open_adapter
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


def write_compass(run: Path, rows: str, results: dict[str, dict[str, object]]) -> None:
    """A work folder as OpenCompass 0.5.4 leaves it, with the files that are read."""
    (run / "summary").mkdir(parents=True)
    (run / "summary" / "summary_20260101_120000.csv").write_text(f"dataset,version,metric,mode,local_hf\n{rows}")
    (run / "results" / "local_hf").mkdir(parents=True)
    for name, result in results.items():
        (run / "results" / "local_hf" / f"{name}.json").write_text(json.dumps(result))


def test_scores_of_opencompass_are_taken_in(tmp_path: Path) -> None:
    rows = (
        "siqa,e8d8c5,accuracy,ppl,66.67\nlambada,2d5f1a,bpb,ppl,0.99\nboth,-,naive_average,ppl,33.83\nother,-,-,-,-\n"
    )
    results: dict[str, dict[str, object]] = {
        "siqa": {"accuracy": 200 / 3, "details": {"0": {"correct": True}}},
        "lambada": {"bpb": 7.5},  # not the number of the summary: the summary is believed
    }
    write_compass(tmp_path / "20260101_120000", rows, results)
    taken = {"siqa/accuracy": 200 / 3, "lambada/bpb": 0.99, "both/naive_average": 33.83}
    assert read_opencompass(tmp_path) == taken


def test_a_dataset_that_opencompass_could_not_score_is_a_failure(tmp_path: Path) -> None:
    write_compass(tmp_path, "choice,db3826,accuracy,ppl,66.67\nwritten,-,-,-,-\n", {"choice": {"accuracy": 66.67}})
    trace = "Traceback (most recent call last):\n  File 'x.py', line 1, in run\n    run()\n"
    for name, text in {
        "infer/local_hf/choice": f"loading\n{trace}ValueError: no such argument\n",
        "eval/local_hf/choice": f"{trace}ImportError: told and lived with\ndone\n",
        "eval/local_hf/written": f"{trace}FileNotFoundError: no predictions\n",
    }.items():
        path = tmp_path / "logs" / f"{name}.out"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    with pytest.raises(PrismError, match=r"opencompass could not score 'written': ValueError: no such argument$"):
        read_opencompass(tmp_path)
    (tmp_path / "results" / "local_hf" / "written.json").write_text('{"error": "no references"}')
    with pytest.raises(PrismError, match="opencompass could not score 'written': no references"):
        read_opencompass(tmp_path)


def test_a_summary_of_two_models_is_not_guessed_at(tmp_path: Path) -> None:
    write_compass(tmp_path, "siqa,e8d8c5,accuracy,ppl,1.00,2.00\n", {})
    path = tmp_path / "summary" / "summary_20260101_120000.csv"
    path.write_text(path.read_text().replace("local_hf", "one_hf,two_hf"))
    with pytest.raises(PrismError, match="not of one model: its columns are .*one_hf, two_hf"):
        read_opencompass(tmp_path)


def test_a_tool_is_told_its_gpus_and_not_the_packages_of_a_worker(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    packages = site.getsitepackages()[0]
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(tmp_path), packages, sysconfig.get_path("stdlib")]))
    script = tmp_path / "tool.py"
    script.write_text(
        "import json, os, pathlib, sys\nmetrics = {'gpus': {'value': int(sys.argv[1])}}\n"
        "assert os.environ['PYTHONPATH'] == sys.argv[3], os.environ['PYTHONPATH']\n"
        "log = {'status': 'success', 'results': {'scores': [{'name': 'told', 'metrics': metrics}]}}\n"
        "pathlib.Path(sys.argv[2], 'log.json').write_text(json.dumps(log))\n"
    )
    command = f"{sys.executable} {script} {{gpus}} {{output}} {tmp_path}"
    dataset = Dataset(name="x", adapter="inspect", task="t", samples=0, settings={"command": command})
    for device, gpus in {"cpu": 0, "cuda": 1}.items():
        (found,) = open_adapter("inspect").infer(dataset, tmp_path, WorkerCache(device=device), 0, 1, 0)
        assert found["metrics"] == {"told/gpus": gpus}


def test_a_program_of_the_user_does_not_get_the_packages_of_a_worker_either(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(tmp_path), site.getsitepackages()[0]]))
    script = tmp_path / "infer.py"
    script.write_text(
        "import json, os, pathlib, sys\n"
        "pathlib.Path(sys.argv[1]).write_text(json.dumps({'path': os.environ['PYTHONPATH']}) + '\\n')\n"
    )
    settings = {"infer": f"{sys.executable} {script} {{output}}", "score": "true"}
    dataset = Dataset(name="x", adapter="command", task="t", samples=1, settings=settings)
    (found,) = open_adapter("command").infer(dataset, tmp_path, WorkerCache(device="cpu"), 0, 1, 0)
    assert found["path"] == str(tmp_path)


def test_a_tool_runs_as_a_command_and_is_told_where_it_is_missing(tmp_path: Path) -> None:
    script = tmp_path / "tool.py"
    script.write_text(f"import sys, pathlib\npathlib.Path(sys.argv[2], 'log.json').write_text({make_log()!r})\n")
    settings = {"command": f"{sys.executable} {script} {{model}} {{output}}", "folder": str(tmp_path)}
    dataset = Dataset(name="x", adapter="inspect", task="t", samples=0, settings=settings)
    adapter = open_adapter("inspect")
    assert adapter.survey(dataset).samples == 1
    outputs = adapter.infer(dataset, tmp_path, WorkerCache(), 0, 1, 0)
    assert adapter.combine(dataset, adapter.score(dataset, WorkerCache(), outputs, 0))["match/accuracy"] == 0.75
    script.write_text("import sys; sys.exit('no such task')")
    with pytest.raises(PrismError, match="inspect ended with 1: no such task"):
        adapter.infer(dataset, tmp_path, WorkerCache(), 0, 1, 0)
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
    (found,) = open_adapter("inspect").infer(dataset, model, WorkerCache(), 0, 1, 0)
    assert found["metrics"]["includes/accuracy"] == 0.5
    assert found["metrics"]["includes/accuracy_stderr"] == pytest.approx(0.2887, abs=1e-4)


COMPASS = shutil.which("opencompass", path=f"{os.environ.get('PRISM_OPENCOMPASS', '')}/bin:{os.environ['PATH']}")
needs_compass = pytest.mark.skipif(
    COMPASS is None, reason="no opencompass on the path, nor PRISM_OPENCOMPASS, its venv"
)
COMPASS_CONFIG = """
from opencompass.datasets import CustomDataset
from opencompass.openicl.icl_evaluator import AccEvaluator
from opencompass.openicl.icl_inferencer import GenInferencer, PPLInferencer
from opencompass.openicl.icl_prompt_template import PromptTemplate
from opencompass.openicl.icl_retriever import ZeroRetriever
kinds = dict(
    letter=(dict(A="{question} A", B="{question} B"), dict(type=PPLInferencer)),
    answer=("{question}:", dict(type=GenInferencer, max_out_len=6)),
)
words_datasets = [
    dict(
        abbr=column, type=CustomDataset, path=ROWS, eval_cfg=dict(evaluator=dict(type=AccEvaluator)),
        reader_cfg=dict(input_columns=["question"], output_column=column),
        infer_cfg=dict(
            prompt_template=dict(type=PromptTemplate, template=template), retriever=dict(type=ZeroRetriever),
            inferencer=inferencer,
        ),
    )
    for column, (template, inferencer) in kinds.items()
]
"""


def choose_letter(model: Path, question: str) -> str:
    """The letter that the model finds likelier after a question, by its loss over the whole text."""
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    tokenizer, network = AutoTokenizer.from_pretrained(model), AutoModelForCausalLM.from_pretrained(model)
    ids = {letter: torch.tensor([tokenizer.encode(f"{question} {letter}")]) for letter in "AB"}
    return min(ids, key=lambda letter: float(network(ids[letter], labels=ids[letter]).loss.detach()))


def run_compass(folder: Path, monkeypatch: pytest.MonkeyPatch, **tokenizer: object) -> dict[str, float]:
    """What OpenCompass, run as on a worker, measures of a small model: half of its letters and answers are right."""
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    monkeypatch.setenv("PATH", os.pathsep.join([str(Path(COMPASS or "").absolute().parent), os.environ["PATH"]]))
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(filter(None, sys.path)))
    model = harness_parts.write_model(folder / "model")
    path = model / "tokenizer_config.json"  # as the older transformers that OpenCompass needs can read it
    plain = {"tokenizer_class": "PreTrainedTokenizerFast", **tokenizer}
    path.write_text(json.dumps({**json.loads(path.read_text()), **plain}))
    rows = []
    for number, question in enumerate(harness_parts.WORDS[:8]):
        letter, answer = choose_letter(model, question), harness_parts.continue_text(model, f"{question}:")
        right = {"letter": letter, "answer": answer}
        wrong = {"letter": "AB".replace(letter, ""), "answer": "never written"}
        rows.append({"question": question, **(wrong if number % 2 else right)})
    (folder / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    (folder / "datasets").mkdir()
    (folder / "datasets" / "words.py").write_text(f"ROWS = {str(folder / 'rows.jsonl')!r}\n{COMPASS_CONFIG}")
    settings = {"args": f"--config-dir {folder}", "folder": str(folder)}
    dataset = Dataset(name="x", adapter="opencompass", task="words", samples=0, settings=settings)
    (found,) = open_adapter("opencompass").infer(dataset, model, WorkerCache(), 0, 1, 0)
    return dict(found["metrics"])


@pytest.mark.slow
@pytest.mark.timeout(900)
@needs_compass
def test_opencompass_itself_runs_by_the_documented_command(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    found = run_compass(tmp_path, monkeypatch, model_input_names=["input_ids", "attention_mask"])
    assert found == {"letter/accuracy": 50.0, "answer/accuracy": 50.0}


@pytest.mark.slow
@pytest.mark.timeout(900)
@needs_compass
def test_opencompass_itself_fails_on_one_of_two_datasets(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(PrismError, match=r"could not score 'answer': ValueError: .*token_type_ids"):
        run_compass(tmp_path, monkeypatch, model_input_names=["input_ids", "token_type_ids", "attention_mask"])

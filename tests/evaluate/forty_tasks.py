"""Forty-odd local harness tasks: an mmlu-like group of groups, gsm8k-like, humaneval-like, perplexity, chat prompts."""

from __future__ import annotations

import json
import random
import sys
from pathlib import Path
from typing import Any

from harness_parts import WORDS, continue_text, write_model, write_tasks

SUBJECTS = {"stem": 9, "humanities": 8, "social": 7, "other": 6}  # tasks of each subgroup, sizes differ
CHAT_TEMPLATE = (
    "{% for m in messages %}<{{ m['role'] }}>{{ m['content'] }}\n{% endfor %}"
    "{% if add_generation_prompt %}<assistant>{% endif %}"
)
CODE_METRIC = '''
import os, subprocess, sys, tempfile


def passes(references, predictions, **kwargs):
    """A metric that runs the program itself, as tasks of the harness may."""
    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, "program.py")
        with open(path, "w") as handle:
            handle.write(predictions[0][0] + "\\n" + references[0])
        return float(subprocess.run([sys.executable, path], capture_output=True, timeout=60).returncode == 0)


def programs(resps, docs):
    return [["x = " + doc["start"] + resp[0].split("\\n")[0][:0] + doc["end"]] for resp, doc in zip(resps, docs)]
'''


def write_forty(folder: Path, model: Path) -> None:
    """Tasks and their rows; names are found by the groups and the list of `names`."""
    names = write_tasks(folder, model)
    rng = random.Random(11)
    for group, count in SUBJECTS.items():
        members = [f"mm_{group}_{i}" for i in range(count)]
        for i, name in enumerate(members):
            _write(folder, name, _choices(folder, name, rng, 3 + (i * 5) % 9))
        _write(folder, f"mm_{group}", _group(f"mm_{group}", members, by_size=True))
    _write(folder, "mm", _group("mm", [f"mm_{group}" for group in SUBJECTS], by_size=True))
    plain = [f"plain_{i}" for i in range(3)]
    for i, name in enumerate(plain):
        _write(folder, name, _choices(folder, name, rng, 4 + 3 * i))
    _write(folder, "mm_plain", _group("mm_plain", plain, by_size=False))
    _write_generated(folder, model, rng)
    (folder / "metric.py").write_text(CODE_METRIC)
    rows = [{"start": f"{i} + ", "end": f"{i % 3}", "test": f"assert x == {i + 1}"} for i in range(9)]
    _write_code(folder, rows)
    (folder / "names.json").write_text(json.dumps(names))


def _choices(folder: Path, name: str, rng: random.Random, size: int) -> dict[str, Any]:
    rows = []
    for _ in range(size + 3):
        words = rng.sample(WORDS, 4)
        rows.append({"question": f"Which is {rng.choice(words)}?", "choices": words, "answer": rng.randrange(4)})
    data = _rows(folder, name, rows[3:], rows[:3])
    letters = "".join(f"\n{c}. {{{{choices[{i}]}}}}" for i, c in enumerate("ABCD"))
    return {
        **data, "task": name, "output_type": "multiple_choice", "fewshot_config": {"sampler": "first_n"},
        "num_fewshot": 2, "doc_to_text": f"{{{{question.strip()}}}}{letters}\nAnswer:",
        "doc_to_choice": ["A", "B", "C", "D"], "doc_to_target": "answer",
        "metric_list": [{"metric": m, "aggregation": "mean", "higher_is_better": True} for m in ("acc", "acc_norm")],
        "metadata": {"version": 1.0},
    }  # fmt: skip


def _group(name: str, members: list[str], *, by_size: bool) -> dict[str, Any]:
    metrics = [{"metric": m, "weight_by_size": by_size} for m in ("acc", "acc_norm")]
    return {"group": name, "task": members, "aggregate_metric_list": metrics, "metadata": {"version": 2}}


def _write_generated(folder: Path, model: Path, rng: random.Random) -> None:
    rows = []
    for i in range(10):
        question = f"{rng.choice(WORDS)} has {rng.randrange(9)}"
        said = continue_text(model, f"Question: {question}\nAnswer:") if i % 2 else "none"
        rows.append({"question": question, "answer": f"{said}#### {rng.randrange(9)}"})
    base = {
        **_rows(folder, "sums", rows, rows[:4]), "output_type": "generate_until", "num_fewshot": 3,
        "doc_to_text": "Question: {{question}}\nAnswer:", "doc_to_target": "{{answer}}",
        "generation_kwargs": {"until": ["Question:"], "max_gen_toks": 12, "do_sample": False},
        "metric_list": [{"metric": "exact_match", "aggregation": "mean", "higher_is_better": True,
                         "ignore_case": True, "regexes_to_ignore": [",", "#### .*"]}],
        "filter_list": [
            {"name": "strict", "filter": [{"function": "regex", "regex_pattern": "(.*)"}, {"function": "take_first"}]},
            {"name": "flexible", "filter": [{"function": "regex", "regex_pattern": "([a-z]+)", "group_select": -1},
                                            {"function": "take_first"}]},
        ],
        "metadata": {"version": 3.0},
    }  # fmt: skip
    _write(folder, "sums", {**base, "task": "sums"})
    _write(folder, "sums_zero", {**base, "task": "sums_zero", "num_fewshot": 0})


def _write_code(folder: Path, rows: list[dict[str, Any]]) -> None:
    document = {
        **_rows(folder, "code", rows, rows), "task": "programs", "unsafe_code": True, "output_type": "generate_until",
        "doc_to_text": "x = {{start}}", "doc_to_target": "{{test}}", "num_fewshot": 0,
        "generation_kwargs": {"until": ["\n"], "max_gen_toks": 4, "do_sample": False},
        "metadata": {"version": 1.0},
    }  # fmt: skip
    text = json.dumps(document)[:-1]
    text += ', "metric_list": [{"metric": !function metric.passes , "aggregation": "mean", "higher_is_better": true}]'
    text += ', "filter_list": [{"name": "made", "filter": [{"function": "custom", '
    text += '"filter_fn": !function metric.programs }]}]}'
    (folder / "programs.yaml").write_text(text)


def _rows(folder: Path, name: str, rows: list[dict[str, Any]], shots: list[dict[str, Any]]) -> dict[str, Any]:
    for kind, chosen in (("test", rows), ("shots", shots)):
        (folder / f"{name}-{kind}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in chosen))
    files = {"test": str(folder / f"{name}-test.jsonl"), "validation": str(folder / f"{name}-shots.jsonl")}
    return {
        "dataset_path": "json",
        "dataset_kwargs": {"data_files": files},
        "test_split": "test",
        "fewshot_split": "validation",
    }


def _write(folder: Path, name: str, document: dict[str, Any]) -> None:
    (folder / f"{name}.yaml").write_text(json.dumps(document))


def add_template(model: Path) -> None:
    """Give the model's tokenizer a chat template."""
    path = model / "tokenizer_config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), "chat_template": CHAT_TEMPLATE}))


def evaluate_plainly(model: Any, tasks: Path, names: list[str], **settings: Any) -> dict[str, dict[str, float]]:
    """What the harness says when nobody else takes part."""
    import lm_eval
    import torch
    from lm_eval.tasks import TaskManager

    torch.set_num_threads(1)
    chosen = {"model": "hf", "model_args": {"pretrained": str(model)}} if isinstance(model, Path) else model
    found = lm_eval.simple_evaluate(
        **chosen,
        tasks=names,
        device="cpu",
        batch_size=1,
        bootstrap_iters=100,
        confirm_run_unsafe_code=True,
        log_samples=False,
        task_manager=TaskManager(include_path=str(tasks), include_defaults=False),
        **settings,
    )
    assert found is not None
    kept = {
        name: {k: v for k, v in metrics.items() if isinstance(v, int | float) and k not in ("sample_len", "name")}
        for name, metrics in found["results"].items()
    }
    return {name: metrics for name, metrics in kept.items() if metrics}


if __name__ == "__main__":
    base = Path(sys.argv[1])
    write_forty(base / "tasks", write_model(base / "step-7"))
    add_template(base / "step-7")
    listed = json.loads((base / "tasks" / "names.json").read_text())
    plain = evaluate_plainly(
        base / "step-7", base / "tasks", [*listed, "mm", "mm_plain", "sums", "sums_zero", "programs"]
    )
    chat = {"apply_chat_template": True, "system_instruction": "Be short.", "fewshot_as_multiturn": True}
    templated = evaluate_plainly(base / "step-7", base / "tasks", ["mm_stem_0", "sums"], **chat)
    print("RESULT" + json.dumps([plain, templated]))

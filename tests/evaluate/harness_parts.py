"""A tiny Hugging Face model and twelve local harness tasks, made on the spot."""

from __future__ import annotations

import json
import random
import sys
from functools import cache
from numbers import Real
from pathlib import Path
from typing import Any

WORDS = [
    "model",
    "layer",
    "token",
    "batch",
    "step",
    "loss",
    "rank",
    "node",
    "flow",
    "trace",
    "graph",
    "cache",
    "queue",
    "shard",
    "link",
    "switch",
]


def write_model(folder: Path, seed: int = 0) -> Path:
    """A randomly initialised Llama of 60,000 parameters with a tokenizer of bytes."""
    import torch
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers
    from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

    letters = sorted(pre_tokenizers.ByteLevel.alphabet())
    tokenizer = Tokenizer(models.BPE(vocab={"<s>": 0, **{c: i + 1 for i, c in enumerate(letters)}}, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    fast = PreTrainedTokenizerFast(tokenizer_object=tokenizer, bos_token="<s>", eos_token="<s>", pad_token="<s>")
    torch.manual_seed(seed)
    config = LlamaConfig(
        vocab_size=257, hidden_size=32, intermediate_size=64, num_hidden_layers=2, num_attention_heads=4,
        num_key_value_heads=2, max_position_embeddings=512, bos_token_id=0, eos_token_id=0, initializer_range=0.3,
    )  # fmt: skip
    LlamaForCausalLM(config).save_pretrained(folder)
    fast.save_pretrained(folder)
    return folder


@cache
def _load(model: Path) -> tuple[Any, Any]:
    from transformers import AutoModelForCausalLM, AutoTokenizer

    return AutoTokenizer.from_pretrained(model), AutoModelForCausalLM.from_pretrained(model)


def continue_text(model: Path, prompt: str) -> str:
    """What the model itself writes after a prompt, so that some of its answers count as right."""
    import torch

    tokenizer, loaded = _load(model)
    ids = torch.tensor([tokenizer.encode(prompt, add_special_tokens=False)])
    made = loaded.generate(ids, attention_mask=torch.ones_like(ids), max_new_tokens=6, do_sample=False, pad_token_id=0)
    return str(tokenizer.decode(made[0, ids.shape[1] :], skip_special_tokens=True)).split("\n")[0]


def write_tasks(folder: Path, model: Path, samples: int = 12) -> list[str]:
    """Twelve tasks over local JSON files: choices, likelihoods, rolling perplexity, generation, few-shot, filters."""
    folder.mkdir(parents=True, exist_ok=True)
    rng = random.Random(7)
    rows: list[dict[str, Any]] = []
    for number in range(samples):
        words = rng.sample(WORDS, 4)
        question = f"Which of {', '.join(words)} comes first"
        gold = rng.randrange(4)
        answer = continue_text(model, f"{question}:") if number % 2 else words[gold]
        rows.append(
            {
                "question": question,
                "choices": words,
                "gold": gold,
                "answer": answer,
                "text": " ".join(rng.choices(WORDS, k=10)),
            }
        )
    (folder / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    (folder / "shots.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows[:6]))
    made = {name: {**_common(folder), "task": name, **keys} for name, keys in _tasks().items()}
    for name, document in made.items():
        text = json.dumps(document)  # JSON is YAML, but for functions of the task's author
        (folder / f"{name}.yaml").write_text(text.replace('"!function own.', "!function own.").replace('!"', ""))
    (folder / "own.py").write_text(_OWN_FUNCTIONS)
    return list(made)


_OWN_FUNCTIONS = """
import numpy as np

def process_results(doc, results):
    logs = np.array([log for log, _ in results], dtype=np.float32)
    best = {"picked": int(logs.argmax()), "gold": doc["gold"], "words": {*doc["choices"]}}
    return {"narrow": logs[doc["gold"]], "pairs": (best, doc["question"]), "spread": logs}

def share(items):
    return sum(a["picked"] == a["gold"] and isinstance(a["words"], set) for a, _ in items) / len(items)

def spread(items):
    return float(np.std(np.stack(items)).astype(np.float32))
"""


def copy_tasks(source: Path, target: Path) -> None:
    """The same tasks over the same rows in another folder."""
    target.mkdir()
    for path in source.glob("*.*"):  # not the folder that Python compiles functions of tasks into
        (target / path.name).write_text(path.read_text().replace(str(source), str(target)))


def _common(folder: Path) -> dict[str, Any]:
    return {
        "dataset_path": "json",
        "dataset_kwargs": {
            "data_files": {"test": str(folder / "rows.jsonl"), "validation": str(folder / "shots.jsonl")}
        },
        "test_split": "test",
        "fewshot_split": "validation",
        "doc_to_text": "{{question}}:",
        "doc_to_target": "gold",
        "metadata": {"version": 1},
    }


def _tasks() -> dict[str, dict[str, Any]]:
    choice = {"output_type": "multiple_choice", "doc_to_choice": "choices"}
    written = {"output_type": "generate_until", "doc_to_target": "{{answer}}"}
    short = {"until": ["\n"], "max_gen_toks": 6, "do_sample": False}
    mean = {"aggregation": "mean", "higher_is_better": True}
    return {
        "choice": {
            **choice,
            "metric_list": [{"metric": "acc", **mean}, {"metric": "acc_norm", **mean}],
        },
        "choice_few": {**choice, "num_fewshot": 2, "metric_list": [{"metric": "acc", **mean}]},
        "choice_f1": {
            **choice,
            "doc_to_choice": ["yes", "no"],
            "doc_to_target": "{{gold % 2}}",
            "metric_list": [{"metric": "f1", "aggregation": "f1", "higher_is_better": True}, {"metric": "mcc"}],
        },
        "choice_brier": {**choice, "metric_list": [{"metric": "brier_score"}]},
        "choice_own": {
            **choice,
            "process_results": "!function own.process_results!",
            "metric_list": [
                {"metric": "narrow", **mean},
                {"metric": "pairs", "aggregation": "!function own.share!", "higher_is_better": True},
                {"metric": "spread", "aggregation": "!function own.spread!", "higher_is_better": False},
            ],
        },
        "choice_gap": {**choice, "target_delimiter": " -> ", "metric_list": [{"metric": "acc", **mean}]},
        "likelihood": {
            "output_type": "loglikelihood",
            "doc_to_target": "{{answer}}",
            "metric_list": [
                {"metric": "perplexity", "aggregation": "perplexity", "higher_is_better": False},
                {"metric": "acc", **mean},
            ],
        },
        "rolling": {
            "output_type": "loglikelihood_rolling",
            "doc_to_text": "",
            "doc_to_target": "{{text}}",
            "metric_list": [{"metric": name} for name in ("word_perplexity", "byte_perplexity", "bits_per_byte")],
        },
        "written": {
            **written,
            "generation_kwargs": short,
            "metric_list": [{"metric": "exact_match", **mean}],
        },
        "written_few": {
            **written,
            "num_fewshot": 3,
            "generation_kwargs": short,
            "metric_list": [{"metric": "exact_match", **mean}],
        },
        "written_vote": {
            **written,
            "repeats": 2,
            "generation_kwargs": short,
            "metric_list": [{"metric": "exact_match", **mean}],
            "filter_list": [
                {"name": "vote", "filter": [{"function": "majority_vote"}, {"function": "take_first"}]},
                {
                    "name": "first-letter",
                    "filter": [{"function": "regex", "regex_pattern": "([a-z])"}, {"function": "take_first"}],
                },
            ],
        },
        "written_bleu": {
            **written,
            "generation_kwargs": short,
            "metric_list": [{"metric": "bleu"}, {"metric": "chrf"}],
        },
    }


def evaluate_plainly(model: Path, tasks: Path, names: list[str]) -> dict[str, dict[str, float]]:
    """What the harness says when nobody else takes part."""
    import lm_eval
    import torch
    from lm_eval.tasks import TaskManager

    torch.set_num_threads(1)
    found = lm_eval.simple_evaluate(
        model="hf", model_args={"pretrained": str(model)}, tasks=names, device="cpu", batch_size=1, bootstrap_iters=100,
        task_manager=TaskManager(include_path=str(tasks), include_defaults=False),
    )  # fmt: skip
    assert found is not None
    return {
        name: {k: float(v) for k, v in found["results"][name].items() if isinstance(v, Real) and k != "sample_len"}
        for name in names
    }


if __name__ == "__main__":
    base = Path(sys.argv[1])
    made = write_tasks(base / "tasks", write_model(base / "step-7"))
    print("RESULT" + json.dumps(evaluate_plainly(base / "step-7", base / "tasks", made)))

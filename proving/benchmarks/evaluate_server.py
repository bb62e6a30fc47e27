"""A running OpenAI-compatible server against the same weights in process: how far likelihoods and scores differ.

    vllm serve MODEL --served-model-name m --port 8000 --dtype float32          # or any other server
    python proving/benchmarks/evaluate_server.py http://127.0.0.1:8000/v1 m MODEL [--samples 6]

`--write MODEL` makes a small random Llama with heads of 64 and a tokenizer of bytes, which every server can load.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2] / "tests" / "evaluate"))


def write_model(folder: Path) -> None:
    """A random Llama with heads of 64, which vLLM's attention on CPUs needs."""
    import harness_parts
    import torch
    from forty_tasks import add_template
    from transformers import LlamaConfig, LlamaForCausalLM

    harness_parts.write_model(folder)
    torch.manual_seed(0)
    sizes = {"hidden_size": 128, "intermediate_size": 128, "num_hidden_layers": 2, "num_attention_heads": 2}
    config = LlamaConfig(vocab_size=257, max_position_embeddings=512, bos_token_id=0, eos_token_id=0,
                         num_key_value_heads=2, initializer_range=0.3, **sizes)  # fmt: skip
    LlamaForCausalLM(config).save_pretrained(folder)
    add_template(folder)


def compare_answers(model: Path, end: Path) -> None:
    """Log probabilities and generations of a few prompts."""
    from prism.evaluate.run.models import open_model
    from prism.evaluate.run.models.model import Continuation

    ours, theirs = open_model(model, "cpu"), open_model(end, "cpu")
    asked = [
        Continuation(context=f"model layer {i} ", continuation=word) for i in range(4) for word in ("token", "node")
    ]
    pairs = list(zip(ours.likelihoods(asked, 1), theirs.likelihoods(asked, 1), strict=True))
    worst = max(abs(a - b) for a, b in pairs)
    prompts = [f"queue shard {i}" for i in range(8)]
    same = sum(a == b for a, b in zip(ours.generate(prompts, 6, 1), theirs.generate(prompts, 6, 1), strict=True))
    print(f"likelihoods: worst difference {worst:.2e}; generations alike {same}/8")


def compare_tasks(model: Path, end: Path, folder: Path, samples: int) -> None:
    """The metrics of small tasks of each kind, from both."""
    import harness_parts

    from prism.evaluate.run.adapters import WorkerCache, open_adapter
    from prism.evaluate.schedule.trials import Dataset

    adapter = open_adapter("lm-eval")
    worst, count = 0.0, 0
    for name in harness_parts.write_tasks(folder / "tasks", model, samples=samples):
        settings = {"include_path": "tasks", "bootstrap_iters": 100, "folder": str(folder)}
        dataset = Dataset(name=name, adapter="lm-eval", task=name, samples=0, settings=settings)
        found = []
        for place in (model, end):
            outputs = adapter.infer(dataset, place, WorkerCache(), 0, adapter.survey(dataset).samples, 0)
            scores = adapter.score(dataset, WorkerCache(), json.loads(json.dumps(outputs)), 0)
            found.append(adapter.combine(dataset, scores))
        apart = {m: abs(v - found[1][m]) / max(1.0, abs(v)) for m, v in found[0].items()}
        worst, count = max(worst, *apart.values()), count + len(apart)
        print(f"{name:<24} {len(apart)} metrics, worst relative difference {max(apart.values()):.2e}", flush=True)
    print(f"all: {count} metrics, worst relative difference {worst:.2e}")


def main() -> None:
    """Compare, or write the model."""
    reader = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    reader.add_argument("place", nargs="*", metavar="URL NAME MODEL")
    reader.add_argument("--write", type=Path)
    reader.add_argument("--samples", type=int, default=6)
    options = reader.parse_args()
    os.environ["HF_HUB_OFFLINE"] = "1"
    if options.write:
        write_model(options.write)
        return
    from test_endpoint import write_folder

    from prism.evaluate.run.models.endpoint import Endpoint

    url, name, model = options.place[0], options.place[1], Path(options.place[2])
    with tempfile.TemporaryDirectory() as folder:
        os.environ["HF_DATASETS_CACHE"] = str(Path(folder) / "cache")
        end = write_folder(Path(folder) / "end", Endpoint(url=url, model=name, tokenizer=str(model), max_length=512))
        compare_answers(model, end)
        compare_tasks(model, end, Path(folder), options.samples)


if __name__ == "__main__":
    main()

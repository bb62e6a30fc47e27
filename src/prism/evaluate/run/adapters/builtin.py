"""Built-in tasks: made from a seed, nothing to download. They prove a pipeline, not a model."""

from __future__ import annotations

import hashlib
import math
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from prism.evaluate.run.adapters.adapter import Record, SampleError, Survey, WorkerCache, batch_of, check_known
from prism.evaluate.run.models import Continuation, LanguageModel, open_model
from prism.evaluate.run.models.lora import split_adapter
from prism.evaluate.run.scoring.judge import judge_answer
from prism.evaluate.run.scoring.sandbox import SandboxConfig, run_sandboxed
from prism.evaluate.schedule.trials import Dataset

_WORDS = (
    "model", "layer", "token", "batch", "step", "loss", "rank", "node", "flow", "trace", "graph", "cache", "queue",
)  # fmt: skip
_VERSION = "1"
_SETTINGS = ("batch_size", "folder", "generate", "judge", "length", "score_timeout_s")


@dataclass(frozen=True, slots=True, kw_only=True)
class Sample:
    """One question: choices to weigh, or a prompt to continue, and what is right."""

    prompt: str
    answer: str
    choices: tuple[str, ...] = ()
    generate: int = 0  # tokens


@dataclass(frozen=True, slots=True, kw_only=True)
class _Task:
    make: Callable[[random.Random, int], Sample]
    samples: int
    metrics: tuple[str, ...]
    length: int  # words of filling, unless settings say otherwise


def _arithmetic(rng: random.Random, length: int) -> Sample:
    a, b = rng.randrange(50), rng.randrange(50)
    wrong = rng.sample([n for n in range(100) if n != a + b], 3)
    choices = [str(n) for n in (a + b, *wrong)]
    rng.shuffle(choices)
    return Sample(prompt=f"{_filling(rng, length)}{a} + {b} = ", answer=str(a + b), choices=tuple(choices))


def _order(rng: random.Random, length: int) -> Sample:
    words = rng.sample(_WORDS, 4)
    return Sample(
        prompt=f"{_filling(rng, length)}First of {', '.join(words)} in the alphabet: ",
        answer=min(words),
        choices=tuple(words),
    )


def _text(rng: random.Random, length: int) -> Sample:
    return Sample(prompt="", answer=" ".join(rng.choices(_WORDS, k=max(8, length))))


def _copy(rng: random.Random, length: int) -> Sample:
    word = rng.choice(_WORDS)
    return Sample(prompt=f"{_filling(rng, length)}{word} {word} {word} ", answer=word, generate=len(word))


def _code(rng: random.Random, length: int) -> Sample:
    a, b = rng.randrange(10), rng.randrange(10)
    return Sample(
        prompt=f"{_filling(rng, length)}x = {a} +", answer=f"assert x == {a + b}", generate=4
    )  # the model writes the rest of the line; the answer is the test that runs after it


TASKS = {
    "arithmetic": _Task(make=_arithmetic, samples=64, metrics=("acc",), length=0),
    "order": _Task(make=_order, samples=48, metrics=("acc",), length=0),
    "text": _Task(make=_text, samples=32, metrics=("bits_per_byte",), length=12),
    "copy": _Task(make=_copy, samples=24, metrics=("exact_match",), length=0),
    "code": _Task(make=_code, samples=8, metrics=("pass_rate",), length=0),
}

BUILTIN_DATASETS = {
    name: Dataset(name=name, adapter="builtin", task=name, samples=task.samples, tokens=64)
    for name, task in TASKS.items()
}


class BuiltinAdapter:
    """Runs the built-in tasks on any model that `open_model` opens."""

    def survey(self, dataset: Dataset) -> Survey:
        """Their samples are made, so there are as many as asked for."""
        task = _task_of(dataset)
        return Survey(
            samples=dataset.samples or task.samples,
            identity=f"{dataset.task}/{_VERSION}",
            tokens=64,
            version=_VERSION,
            directions={name: name != "bits_per_byte" for name in (*task.metrics, "judged")},
        )

    def prepare(self, dataset: Dataset, model: Path, cache: WorkerCache, shrink: int) -> None:
        """Put the model in the cache."""
        _task_of(dataset)
        _model_on(cache, model)

    def infer(
        self, dataset: Dataset, model: Path, cache: WorkerCache, first: int, last: int, shrink: int
    ) -> list[Record]:
        """Weigh choices or continue prompts."""
        samples = [make_sample(dataset, number) for number in range(first, last)]
        batch = batch_of(dataset, shrink, default=16)
        loaded = _model_on(cache, model)
        if samples and samples[0].generate:
            tokens = int(dataset.settings.get("generate", samples[0].generate))
            return [{"text": text} for text in loaded.generate([s.prompt for s in samples], tokens, batch)]
        asked = [Continuation(context=s.prompt, continuation=c) for s in samples for c in s.choices or (s.answer,)]
        found = iter(loaded.likelihoods(asked, batch))
        return [{"log_probabilities": [next(found) for _ in s.choices or (s.answer,)]} for s in samples]

    def score(self, dataset: Dataset, cache: WorkerCache, outputs: Sequence[Record], first: int) -> list[Record]:
        """Compare with the right answers."""
        scores = []
        for number, output in enumerate(outputs, start=first):
            try:
                scores.append(_score(dataset, make_sample(dataset, number), output))
            except (KeyError, TypeError, ValueError, IndexError) as error:
                raise SampleError(number, error) from None
        return scores

    def combine(self, dataset: Dataset, scores: Sequence[Record]) -> dict[str, float]:
        """Means over samples; bits per byte over all bytes."""
        if dataset.task == "text" and "bits" in scores[0]:
            return {"bits_per_byte": math.fsum(s["bits"] for s in scores) / sum(s["bytes"] for s in scores)}
        return {name: math.fsum(s[name] for s in scores) / len(scores) for name in scores[0]}


def make_sample(dataset: Dataset, number: int) -> Sample:
    """Sample `number` of a dataset; the same on every machine, whatever else is made."""
    task = _task_of(dataset)
    seed = hashlib.sha256(f"{dataset.task}/{_VERSION}/{number}".encode()).digest()
    return task.make(random.Random(seed), int(dataset.settings.get("length", task.length)))


def _score(dataset: Dataset, sample: Sample, output: Record) -> Record:
    settings = dataset.settings
    if "judge" in settings:
        return {"judged": judge_answer(settings["judge"], sample.prompt, sample.answer, output["text"])}
    if dataset.task == "code":
        program = f"x = {sample.prompt.split('= ')[-1]}{output['text']}\n"
        return {"pass_rate": float(run_sandboxed(program, sample.answer, SandboxConfig()).passed)}
    if sample.generate:
        return {"exact_match": float(output["text"].strip() == sample.answer)}
    found = output["log_probabilities"]
    if not sample.choices:
        return {"bits": -found[0] / math.log(2), "bytes": len(sample.answer.encode())}
    return {"acc": float(sample.choices[max(range(len(found)), key=found.__getitem__)] == sample.answer)}


def _task_of(dataset: Dataset) -> _Task:
    check_known(dataset, _SETTINGS)
    return TASKS[dataset.task]


def _model_on(cache: WorkerCache, folder: Path) -> LanguageModel:
    base, adapter = split_adapter(folder)
    model: Any = cache.keep("model", ("builtin", base), lambda: open_model(base, cache.device))
    if hasattr(model, "use_adapter"):
        model.use_adapter(adapter)
    return model  # type: ignore[no-any-return]


def _filling(rng: random.Random, length: int) -> str:
    return " ".join(rng.choices(_WORDS, k=length)) + ". " if length else ""

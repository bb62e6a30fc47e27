"""EleutherAI's lm-evaluation-harness, taken apart: its requests, its model, its filters, its metrics, its aggregation.

Every number is the harness's own. Requests are built for the whole task (few-shot examples are drawn in the order of
the documents, so a part of them alone would be another prompt) and those of a part are run. Scores per document come
from the task's `process_results`, metrics from the harness's aggregation over all documents in order.
"""

from __future__ import annotations

import json
import math
from collections import defaultdict
from collections.abc import Callable, Sequence
from functools import partial
from numbers import Real
from pathlib import Path
from typing import Any

import numpy as np

from prism.errors import PrismError
from prism.evaluate.run.adapters.adapter import Record, SampleError, Survey, WorkerCache
from prism.evaluate.run.adapters.harness_models import open_harness_model
from prism.evaluate.run.adapters.harness_tasks import (
    build_requests,
    check_settings,
    is_unsafe,
    open_task,
    seed_everything,
    survey_task,
)
from prism.evaluate.schedule.trials import Dataset


class HarnessAdapter:
    """Runs a harness task on a checkpoint."""

    def survey(self, dataset: Dataset) -> Survey:
        """Open the task, or all tasks of the group, and count the documents."""
        check_settings(dataset)
        return survey_task(dataset)

    def prepare(self, dataset: Dataset, model: Path, cache: WorkerCache, shrink: int) -> None:
        """Put the model on the device and build the task's requests."""
        lm = open_harness_model(dataset, model, cache, shrink)
        self._requests(dataset, cache, lm, model)

    def infer(
        self, dataset: Dataset, model: Path, cache: WorkerCache, first: int, last: int, shrink: int
    ) -> list[Record]:
        """Run the requests of some documents through the harness's own model."""
        lm = open_harness_model(dataset, model, cache, shrink)
        chosen = [r for r in self._requests(dataset, cache, lm, model) if first <= r.doc_id < last]
        seed_everything()
        replies: dict[int, list[list[Any]]] = {number: [] for number in range(first, last)}
        by_kind = defaultdict(list)
        for request in chosen:
            by_kind[request.request_type].append(request)
        for kind, requests in by_kind.items():
            cloned = [request for request in requests for _ in range(request.repeats)]
            for request, reply in zip(cloned, getattr(lm, kind)(cloned, disable_tqdm=True), strict=True):
                replies[request.doc_id].append([kind, request.idx, reply])
        _check_finite(replies)
        return [{"replies": replies[number]} for number in range(first, last)]

    def score(self, dataset: Dataset, cache: WorkerCache, outputs: Sequence[Record], first: int) -> list[Record]:
        """Filter the replies and let the task score each document; in the sandbox where it runs the model's code."""
        task, requests = cache.keep("scoring", _key(dataset), lambda: _open_with_requests(dataset))
        if is_unsafe(task):
            from prism.evaluate.run.adapters.harness_code import score_behind_walls

            return score_behind_walls(dataset, outputs, first)
        return _score(task, requests, outputs, first, lambda work: work())

    def combine(self, dataset: Dataset, scores: Sequence[Record]) -> dict[str, float]:
        """Aggregate as the harness does, standard errors included."""
        from lm_eval.evaluator_utils import _process_results

        task = open_task(dataset)
        raw: dict[tuple[str, str], list[Any]] = defaultdict(list)
        for score in scores:
            for key, value in score.items():
                metric, _, filtered = key.rpartition(",")
                raw[metric, filtered].append(_restore(value))
        account: Any = {dataset.task: {"task": task, "raw_metrics": raw, "logged_samples": []}}
        found = _process_results(account, {}, dataset.settings.get("bootstrap_iters", 100_000))
        results = found._to_eval_results(samples=None)["results"][dataset.task]
        return {
            name: float(value)
            for name, value in results.items()
            if isinstance(value, Real) and not isinstance(value, bool) and name != "sample_len"
        }

    def _requests(self, dataset: Dataset, cache: WorkerCache, lm: Any, model: Path) -> Any:
        chat = bool(dataset.settings.get("apply_chat_template"))
        key = (*_key(dataset), str(model) if chat else "")  # a template comes with the model
        return cache.keep("dataset", key, lambda: build_requests(open_task(dataset), dataset, lm))


def score_documents(
    dataset: Dataset, outputs: Sequence[Record], first: int, call: Callable[[Callable[[], Any]], Any]
) -> list[Record]:
    """Score documents of a task, its own code called through `call`."""
    task, requests = _open_with_requests(dataset)
    return _score(task, requests, outputs, first, call)


def _score(
    task: Any, requests: Any, outputs: Sequence[Record], first: int, call: Callable[[Callable[[], Any]], Any]
) -> list[Record]:
    seed_everything()
    _give_replies(task, requests, outputs, first)
    task.apply_filters()
    by_document = defaultdict(list)
    for request in task.instances:
        by_document[request.doc_id].append(request)
    scores: list[Record] = [{} for _ in outputs]
    for filtered in task.instances[0].filtered_resps if task.instances else ():
        for number, mine in sorted(by_document.items()):
            mine.sort(key=lambda r: r.idx)
            replies = [r.filtered_resps[filtered] for r in mine]
            try:
                found = call(partial(_measure, task, mine[0].doc, replies))
            except Exception as error:  # whatever a task's own metric raises
                raise SampleError(number, error) from None
            scores[number - first] |= {f"{metric},{filtered}": value for metric, value in found.items()}
    return scores


def _measure(task: Any, document: Any, replies: list[Any]) -> dict[str, Any]:
    return {metric: _plain(value) for metric, value in task.process_results(document, replies).items()}


def _check_finite(replies: dict[int, list[list[Any]]]) -> None:
    """A log probability that is no finite number would choose an answer at random, so it must not become a score."""
    bad = []
    for number, found in replies.items():
        values = [reply[0] if isinstance(reply, list | tuple) else reply for kind, _, reply in found if "log" in kind]
        if any(isinstance(v, float) and (math.isnan(v) or v == math.inf) for v in values):
            bad.append(number)
    if bad:
        told = ", ".join(map(str, bad[:10])) + (" ..." if len(bad) > 10 else "")
        raise PrismError(f"the model gave no finite log probability for {len(bad)} samples: {told}")


def _key(dataset: Dataset) -> tuple[str, str]:
    return dataset.name, json.dumps(dict(dataset.settings), sort_keys=True, default=str)


def _open_with_requests(dataset: Dataset) -> tuple[Any, Any]:
    """Without a chat template: scores follow from documents and replies, not from prompts."""
    task = open_task(dataset)
    return task, build_requests(task, dataset)


def _give_replies(task: Any, requests: Any, outputs: Sequence[Record], first: int) -> None:
    """Put kept replies where the model would have put them, and leave the other documents out."""
    kept = [r for r in requests if first <= r.doc_id < first + len(outputs)]
    queues = {
        number: {
            (kind, idx): [_restore(reply) for k, i, reply in output["replies"] if (k, i) == (kind, idx)]
            for kind, idx in {(k, i) for k, i, _ in output["replies"]}
        }
        for number, output in enumerate(outputs, start=first)
    }
    for request in kept:
        request.resps = queues[request.doc_id].get((request.request_type, request.idx), [])
        if len(request.resps) != request.repeats:
            raise SampleError(request.doc_id, ValueError("the kept outputs do not fit the task; has it changed?"))
    task._instances = kept


def _plain(value: Any) -> Any:
    """A metric's value as JSON that `_restore` turns back into the same types: sums depend on the type of a number."""
    if isinstance(value, list):
        return [_plain(v) for v in value]
    if isinstance(value, tuple | set | frozenset):
        return {type(value).__name__: [_plain(v) for v in value]}
    if isinstance(value, dict):
        return {"dict": [[_plain(k), _plain(v)] for k, v in value.items()]}
    if hasattr(value, "dtype"):
        array = np.asarray(value)
        plain = array.tolist()
        kept = array.ndim == 0 and isinstance(plain, float | int) and array.dtype in (np.float64, np.int64, np.bool_)
        return _plain(plain) if kept else {"array": _plain(plain), "dtype": array.dtype.str}
    if isinstance(value, float) and not math.isfinite(value):
        return {"float": repr(value)}
    return value


def _restore(value: Any) -> Any:
    if isinstance(value, list):
        return [_restore(v) for v in value]
    if not isinstance(value, dict):
        return value
    if "array" in value:
        return np.asarray(_restore(value["array"]), dtype=value["dtype"])[()]
    ((kind, content),) = value.items()
    if kind == "dict":
        return {_restore(k): _restore(v) for k, v in content}
    make: dict[str, Callable[[Any], Any]] = {"float": float, "tuple": tuple, "set": set, "frozenset": frozenset}
    return make[kind](_restore(content))

"""EleutherAI's lm-evaluation-harness, taken apart: its requests, its model, its filters, its metrics, its aggregation.

Every number is the harness's own. Requests are built for the whole task (few-shot examples are drawn in the order of
the documents, so a part of them alone would be another prompt) and those of a part are run. Scores per document come
from the task's `process_results`, metrics from the harness's aggregation over all documents in order.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from prism.errors import BadConfigError, BadFileError, MissingExtraError
from prism.evaluate.run.adapters.adapter import Bench, Record, SampleError, Survey, batch_of
from prism.evaluate.run.failures import first_line
from prism.evaluate.schedule.trials import Dataset
from prism.version import __version__

_KNOWN = (
    "batch_size", "bootstrap_iters", "folder", "gen_kwargs", "include_path", "limit", "model_args", "num_fewshot",
    "score_timeout_s",
)  # fmt: skip
_SEED = 1234  # the harness's own default for few-shot examples (lm_eval.defaults.DEFAULT_OTHER_SEED)


class HarnessAdapter:
    """Runs a harness task on a local checkpoint."""

    def survey(self, dataset: Dataset) -> Survey:
        """Open the task and count its documents."""
        unknown = sorted(set(dataset.settings) - set(_KNOWN))
        if unknown:
            raise BadConfigError(f"dataset '{dataset.name}': no setting '{unknown[0]}'; known: {', '.join(_KNOWN)}")
        task = open_task(dataset)
        import lm_eval

        requests = _requests(task, dataset)
        prompts = [[r.request_type, r.doc_id, r.idx, r.arguments] for r in requests]
        digest = hashlib.sha256(json.dumps([prompts, task.dump_config()], default=str, sort_keys=True).encode())
        samples = len({r.doc_id for r in requests})
        words = sum(len(str(r.args[0])) for r in requests) // 4  # about four letters to a token
        identity = f"{digest.hexdigest()}/lm_eval {lm_eval.__version__}/{__version__}"
        return Survey(samples=samples, identity=identity, tokens=max(1, words // max(1, samples)))

    def prepare(self, dataset: Dataset, model: Path, bench: Bench, shrink: int) -> None:
        """Put the model on the device and build the task's requests."""
        self._model(dataset, model, bench, shrink)
        self._requests(dataset, bench)

    def infer(self, dataset: Dataset, model: Path, bench: Bench, first: int, last: int, shrink: int) -> list[Record]:
        """Run the requests of some documents through the harness's own model."""
        lm = self._model(dataset, model, bench, shrink)
        chosen = [r for r in self._requests(dataset, bench) if first <= r.doc_id < last]
        _seed()
        replies: dict[int, list[list[Any]]] = {number: [] for number in range(first, last)}
        by_kind = defaultdict(list)
        for request in chosen:
            by_kind[request.request_type].append(request)
        for kind, requests in by_kind.items():
            cloned = [request for request in requests for _ in range(request.repeats)]
            for request, reply in zip(cloned, getattr(lm, kind)(cloned, disable_tqdm=True), strict=True):
                replies[request.doc_id].append([kind, request.idx, reply])
        return [{"replies": replies[number]} for number in range(first, last)]

    def score(self, dataset: Dataset, bench: Bench, outputs: Sequence[Record], first: int) -> list[Record]:
        """Filter the replies and let the task score each document."""
        task, requests = bench.keep("scoring", _key(dataset), lambda: _open_with_requests(dataset))
        _seed()
        _give_replies(task, requests, outputs, first)
        task.apply_filters()
        by_document = defaultdict(list)
        for request in task.instances:
            by_document[request.doc_id].append(request)
        scores: list[Record] = [{} for _ in outputs]
        for filtered in task.instances[0].filtered_resps if task.instances else ():
            for number, mine in sorted(by_document.items()):
                mine.sort(key=lambda r: r.idx)
                try:
                    found = task.process_results(mine[0].doc, [r.filtered_resps[filtered] for r in mine])
                except Exception as error:  # whatever a task's own metric raises
                    raise SampleError(number, error) from None
                scores[number - first] |= {f"{metric},{filtered}": _plain(v) for metric, v in found.items()}
        return scores

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
            if isinstance(value, int | float) and not isinstance(value, bool) and name != "sample_len"
        }

    def _model(self, dataset: Dataset, model: Path, bench: Bench, shrink: int) -> Any:
        from lm_eval.models.huggingface import HFLM

        settings = dict(dataset.settings.get("model_args", {}))
        lm = bench.keep(
            "model",
            ("lm-eval", model, json.dumps(settings, sort_keys=True)),
            lambda: HFLM(pretrained=str(model), device=bench.device, batch_size=1, **settings),
        )
        lm.batch_size_per_gpu = batch_of(dataset, shrink)
        return lm

    def _requests(self, dataset: Dataset, bench: Bench) -> Any:
        return bench.keep("dataset", _key(dataset), lambda: _open_with_requests(dataset)[1])


def _key(dataset: Dataset) -> tuple[str, str]:
    return dataset.name, json.dumps(dict(dataset.settings), sort_keys=True, default=str)


def _open_with_requests(dataset: Dataset) -> tuple[Any, Any]:
    task = open_task(dataset)
    return task, _requests(task, dataset)


def open_task(dataset: Dataset) -> Any:
    """The harness's task, set up as `simple_evaluate` does it."""
    try:
        from lm_eval.tasks import TaskManager
    except ImportError:
        raise MissingExtraError(f"dataset '{dataset.name}' (adapter lm-eval)", "harness") from None
    settings = dataset.settings
    include = settings.get("include_path")
    folder = None if include is None else Path(settings.get("folder", ".")) / str(include)
    if folder is not None and not folder.is_dir():
        raise BadFileError(f"dataset '{dataset.name}': {folder}: no such folder of tasks; check 'include_path'")
    manager = TaskManager(include_path=str(folder) if folder else None, include_defaults=folder is None)
    if dataset.task not in manager.all_tasks:
        from prism.records.settings import nearest

        hint = nearest(dataset.task, manager.all_tasks)
        raise BadConfigError(f"dataset '{dataset.name}': the harness has no task '{dataset.task}'{hint}")
    if dataset.task not in manager.all_subtasks:
        raise BadConfigError(f"dataset '{dataset.name}': '{dataset.task}' is a group; name its tasks one by one")
    try:
        task = manager.load([dataset.task])["tasks"][dataset.task]
    except Exception as error:  # datasets raises its own kinds: files missing, hub not reachable
        why = first_line(error)
        raise BadFileError(f"dataset '{dataset.name}': its data cannot be opened ({why}); check the task") from None
    _configure(task, settings)
    return task


def _configure(task: Any, settings: Any) -> None:
    if task.get_config("output_type") == "generate_until" and settings.get("gen_kwargs"):
        task.set_config(key="generation_kwargs", value=dict(settings["gen_kwargs"]), update=True)
    default = task.get_config("num_fewshot")
    if settings.get("num_fewshot") is not None and default != 0:
        task.set_config(key="num_fewshot", value=settings["num_fewshot"])
    elif default is None:
        task.set_config(key="num_fewshot", value=0)
    task.set_fewshot_seed(seed=_SEED)


def _requests(task: Any, dataset: Dataset) -> Any:
    """All requests of a task; the harness draws few-shot examples from seeds that must be set before."""
    from lm_eval.evaluator_utils import get_sample_size

    _seed()
    task.build_all_requests(limit=get_sample_size(task, dataset.settings.get("limit")), rank=0, world_size=1)
    return task.instances


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


def _seed() -> None:
    """The seeds of `simple_evaluate`."""
    import random

    import numpy as np
    import torch

    random.seed(0)
    np.random.seed(_SEED)  # noqa: NPY002  the harness reads the global generator
    torch.manual_seed(_SEED)


def _plain(value: Any) -> Any:
    """A metric's value as JSON that `_restore` turns back: tuples and numbers that JSON cannot hold are marked."""
    if isinstance(value, tuple):
        return {"tuple": [_plain(v) for v in value]}
    if isinstance(value, list):
        return [_plain(v) for v in value]
    if hasattr(value, "item") and not isinstance(value, str):
        return _plain(value.item())
    if isinstance(value, float) and not math.isfinite(value):
        return {"float": repr(value)}
    return value


def _restore(value: Any) -> Any:
    if isinstance(value, dict):
        return float(value["float"]) if "float" in value else tuple(_restore(v) for v in value["tuple"])
    if isinstance(value, list):
        return [_restore(v) for v in value]
    return value

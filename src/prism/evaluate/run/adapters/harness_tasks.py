"""Tasks, groups and requests of lm-evaluation-harness, opened and set up as `simple_evaluate` does it."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from prism.errors import BadConfigError, BadFileError, MissingExtraError
from prism.evaluate.run.adapters.adapter import Survey, check_known
from prism.evaluate.run.failures import first_line
from prism.evaluate.schedule.trials import Dataset, Group, GroupMetric
from prism.version import __version__

_SEED = 1234  # the harness's own default for few-shot examples (lm_eval.defaults.DEFAULT_OTHER_SEED)
_KINDS = {str: "a text", bool: "true or false", int: "a number", dict: "keys and values"}
KNOWN: dict[str, tuple[type, ...]] = {
    "apply_chat_template": (bool, str),
    "batch_size": (int,),
    "bootstrap_iters": (int,),
    "confirm_run_unsafe_code": (bool,),
    "fewshot_as_multiturn": (bool,),
    "folder": (str,),
    "gen_kwargs": (dict,),
    "group": (str,),
    "include_path": (str,),
    "inference": (dict,),
    "limit": (int, float),
    "model_args": (dict,),
    "num_fewshot": (int,),
    "score_timeout_s": (int, float),
    "system_instruction": (str,),
}


def check_settings(dataset: Dataset) -> None:
    """Refuse unknown settings, and values of the wrong kind."""
    check_known(dataset, KNOWN)
    for key, value in dataset.settings.items():
        if not isinstance(value, KNOWN[key]) or (isinstance(value, bool) and bool not in KNOWN[key]):
            kinds = " or ".join(_KINDS.get(kind, "a number") for kind in KNOWN[key])
            raise BadConfigError(f"dataset '{dataset.name}': 'settings.{key}' is {value!r}, expected {kinds}")


def survey_task(dataset: Dataset) -> Survey:
    """Count the documents of a task, or of all tasks of a group."""
    manager = _open_manager(dataset)
    if dataset.task in manager.all_subtasks:
        task = open_task(dataset)
        return _survey(task, dataset)
    _check_consent(dataset, manager)
    loaded = _load(manager, dataset.task, dataset)
    prefix = "" if dataset.name == dataset.task else f"{dataset.name}/"
    members = []
    for name, task in loaded["tasks"].items():
        settings = dict(dataset.settings)
        if name not in manager.task_index or _has_overrides(manager, dataset.task):
            settings["group"] = dataset.task  # the group changes its tasks: they are taken from it
        configure(task, settings)
        member = Dataset(name=prefix + name, adapter="lm-eval", task=name, samples=0, settings=settings)
        members.append((member, _survey(task, member)))
    groups = tuple(_describe_group(group, prefix, dataset) for group in loaded.get("groups", {}).values())
    return Survey(
        samples=sum(survey.samples for _, survey in members), identity="", members=tuple(members), groups=groups
    )


def open_task(dataset: Dataset) -> Any:
    """The harness's task; one that runs code of models only with consent."""
    manager = _open_manager(dataset)
    source = str(dataset.settings.get("group", dataset.task))
    _check_consent(dataset, manager, source)
    task = _load(manager, source, dataset)["tasks"][dataset.task]
    configure(task, dataset.settings)
    return task


def configure(task: Any, settings: Mapping[str, Any]) -> None:
    """What `simple_evaluate` sets on each task."""
    if task.get_config("output_type") == "generate_until" and settings.get("gen_kwargs"):
        task.set_config(key="generation_kwargs", value=dict(settings["gen_kwargs"]), update=True)
    default = task.get_config("num_fewshot")
    if settings.get("num_fewshot") is not None and default != 0:
        task.set_config(key="num_fewshot", value=settings["num_fewshot"])
    elif default is None:
        task.set_config(key="num_fewshot", value=0)
    task.set_fewshot_seed(seed=_SEED)


def build_requests(task: Any, dataset: Dataset, model: Any = None) -> Any:
    """All requests of a task; with a model, its chat template is applied where the settings ask for it.

    The harness draws few-shot examples from seeds that must be set before.
    """
    from lm_eval.evaluator_utils import get_sample_size

    settings = dataset.settings
    chat = settings.get("apply_chat_template", False) if model is not None else False
    if isinstance(chat, str):
        model.chat_template(chat)
    seed_everything()
    task.build_all_requests(
        limit=get_sample_size(task, settings.get("limit")),
        rank=0,
        world_size=1,
        system_instruction=settings.get("system_instruction"),
        apply_chat_template=bool(chat),
        fewshot_as_multiturn=settings.get("fewshot_as_multiturn", True),
        chat_template=model.apply_chat_template if chat else None,
        tokenizer_name=getattr(model, "tokenizer_name", "") if chat else "",
    )
    return task.instances


def seed_everything() -> None:
    """The seeds of `simple_evaluate`."""
    import random

    import numpy as np
    import torch

    random.seed(0)
    np.random.seed(_SEED)  # noqa: NPY002  the harness reads the global generator
    torch.manual_seed(_SEED)


def _survey(task: Any, dataset: Dataset) -> Survey:
    import lm_eval

    requests = build_requests(task, dataset)
    prompts = [[r.request_type, r.doc_id, r.idx, r.arguments] for r in requests]
    digest = hashlib.sha256(json.dumps([prompts, task.dump_config()], default=str, sort_keys=True).encode())
    samples = len({r.doc_id for r in requests})
    words = sum(len(str(r.args[0])) for r in requests) // 4  # about four letters to a token
    directions = {str(k): bool(v) for k, v in (task.higher_is_better() or {}).items() if v is not None}
    return Survey(
        samples=samples,
        identity=f"{digest.hexdigest()}/lm_eval {lm_eval.__version__}/{__version__}",
        tokens=max(1, words // max(1, samples)),
        version=str(task.VERSION),
        directions=directions,
    )


def _open_manager(dataset: Dataset) -> Any:
    try:
        from lm_eval.tasks import TaskManager
    except ImportError:
        raise MissingExtraError(f"dataset '{dataset.name}' (adapter lm-eval)", "harness") from None
    include = dataset.settings.get("include_path")
    folder = None if include is None else Path(dataset.settings.get("folder", ".")) / str(include)
    if folder is not None and not folder.is_dir():
        raise BadFileError(f"dataset '{dataset.name}': {folder}: no such folder of tasks; check 'include_path'")
    manager = TaskManager(include_path=str(folder) if folder else None, include_defaults=folder is None)
    known = {*manager.all_tasks, *manager.all_groups, *manager.all_tags}
    source = str(dataset.settings.get("group", dataset.task))
    if source not in known:
        from prism.records.settings import nearest

        raise BadConfigError(
            f"dataset '{dataset.name}': the harness has no task '{source}'{nearest(source, sorted(known))}"
        )
    return manager


def _load(manager: Any, name: str, dataset: Dataset) -> Any:
    if dataset.settings.get("confirm_run_unsafe_code"):
        from prism.evaluate.run.adapters.harness_code import install_code_metric

        install_code_metric()
    try:
        return manager.load([name])
    except Exception as error:  # datasets raises its own kinds: files missing, hub not reachable
        why = first_line(error)
        raise BadFileError(f"dataset '{dataset.name}': its data cannot be opened ({why}); check the task") from None


def _check_consent(dataset: Dataset, manager: Any, source: str | None = None) -> None:
    """The harness runs such a task only with a flag; nothing of it is loaded before, as its functions may run code."""
    if dataset.settings.get("confirm_run_unsafe_code"):
        return
    if (unsafe := _find_unsafe(manager, source or dataset.task)) is not None:
        raise BadConfigError(
            f"dataset '{dataset.name}': task '{unsafe}' runs code that the model writes; to allow it, in the sandbox, "
            "set 'confirm_run_unsafe_code: true' in the plan or give --confirm-run-unsafe-code"
        )


def is_unsafe(task: Any) -> bool:
    """Whether the task's author says that it runs code of the model."""
    return bool(getattr(task, "UNSAFE_CODE", False))


def _find_unsafe(manager: Any, name: str) -> str | None:
    """A task that is marked unsafe: this one or one below."""
    entry = manager.task_index.get(name)
    config = (entry.cfg if entry is not None else None) or {}
    if config.get("unsafe_code"):
        return name
    below = config.get("task") if "group" in config else None
    names = [*(below if isinstance(below, list) else ()), *(entry.tags if entry and config == {} else ())]
    for item in names:
        if isinstance(item, dict) and item.get("unsafe_code"):
            return str(item.get("task", name))
        child = item if isinstance(item, str) else str(item.get("task") or item.get("group"))
        if child != name and (found := _find_unsafe(manager, child)) is not None:
            return found
    return None


def _has_overrides(manager: Any, name: str) -> bool:
    """Whether a group changes the tasks that it names."""
    entry = manager.task_index.get(name)
    config = (entry.cfg if entry is not None else None) or {}
    if "group" not in config:
        return False
    structure = {"group", "group_alias", "task", "aggregate_metric_list", "metadata", "tag", "include"}
    below = config.get("task")
    items = below if isinstance(below, list) else []
    return bool(set(config) - structure) or any(
        isinstance(item, dict) or _has_overrides(manager, item) for item in items
    )


def _describe_group(group: Any, prefix: str, dataset: Dataset) -> Group:
    name = dataset.name if group.name == dataset.task else prefix + group.name
    for entry in group.aggregate_metric_list or ():
        if entry.aggregation != "mean":
            raise BadConfigError(f"dataset '{dataset.name}': group '{group.name}' is no mean of its tasks")
    return Group(
        name=name,
        datasets=tuple(prefix + task.task_name for task in group.get_all_tasks()),
        metrics=tuple(
            GroupMetric(
                metric=entry.metric,
                filters=None if entry.filter_list is None else tuple(entry.filter_list),
                by_size=bool(entry.weight_by_size),
            )
            for entry in group.aggregate_metric_list or ()
        ),
        version=group.version,
    )

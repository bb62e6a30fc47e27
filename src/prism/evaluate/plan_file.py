"""PLAN.yaml: which checkpoints to score, on which datasets, with which hardware."""

from __future__ import annotations

import dataclasses
import glob
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, get_args

from prism.errors import BadConfigError, BadFileError
from prism.evaluate.push import Push, read_pushes
from prism.evaluate.run.checkpoints.folder import find_step, inspect_folder
from prism.evaluate.run.loading.endpoint_source import make_address
from prism.evaluate.run.models.endpoint import Endpoint
from prism.evaluate.schedule.hardware import Hardware
from prism.evaluate.schedule.trials import Checkpoint, Dataset
from prism.records.settings import Checked, build, describe, nearest, number, one_of, parse_mapping, read_text

Adapter = Literal["builtin", "lm-eval", "command"]
ADAPTERS: tuple[str, ...] = get_args(Adapter)
_FILE_ENDS = (".safetensors", ".ckpt", ".pt", ".pth", ".bin")
_REMOTE = ("s3://", "http://", "https://")


@dataclass(frozen=True, slots=True, kw_only=True)
class EvaluationPlan:
    """A plan that was read and checked."""

    checkpoints: tuple[Checkpoint, ...]
    datasets: tuple[Dataset, ...]
    hardware: Hardware
    ray_address: str | None = None  # None: an embedded Ray
    priors: str | None = None  # a file of run times from earlier evaluations
    assets: str | None = None  # a folder with config.json and tokenizer, for checkpoints that have none
    base: str | None = None  # the model of adapters that do not name one that is here
    push: tuple[Push, ...] = ()  # where results are sent


@dataclass(frozen=True, slots=True, kw_only=True)
class _CheckpointEntry(Checked):
    path: str | None = None
    endpoint: Endpoint | None = None
    assets: str | None = None
    base: str | None = None
    name: str | None = None
    step: int | None = number(None, 0, 2**62)
    priority: int = number(0, -1000, 1000)
    weight: float = number(1.0, 0.001, 1000)
    gpus: int | None = number(None, 0, 64)


@dataclass(frozen=True, slots=True, kw_only=True)
class _DatasetEntry(Checked):
    name: str
    adapter: Adapter = field(default="builtin", metadata=one_of(Adapter))
    task: str | None = None
    samples: int = number(0, 0, 2**31)
    tokens: int = number(0, 0, 2**31)
    splittable: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class _PlanDocument:
    hardware: Hardware = field(default_factory=Hardware)
    ray_address: str | None = None
    priors: str | None = None
    assets: str | None = None
    base: str | None = None
    confirm_run_unsafe_code: bool = False


_KEYS = ("checkpoints", "datasets", "inference", "push", *(spec.name for spec in dataclasses.fields(_PlanDocument)))


def read_plan(path: Path, known: Mapping[str, Dataset], *, watching: bool = False) -> EvaluationPlan:
    """Read a plan; paths in it count from its folder, `known` are the datasets that go by a name alone.

    While `watching`, checkpoints are still to come and need not be named.
    """
    return parse_plan(read_text(path), str(path), path.parent, known, watching=watching)


def parse_plan(
    text: str, where: str, folder: Path, known: Mapping[str, Dataset], *, watching: bool = False
) -> EvaluationPlan:
    """The plan in a text; `where` is what errors call it."""
    document = parse_mapping(text, where, "'checkpoints' and 'datasets'")
    for key in document:
        if key not in _KEYS:
            raise BadConfigError(
                f"{where}: '{key}' is not a key here{nearest(str(key), _KEYS)}; keys: {', '.join(_KEYS)}"
            )
    for key in ("datasets",) if watching else ("checkpoints", "datasets"):
        if not document.get(key):
            raise BadConfigError(f"{where}: '{key}' is missing; name at least one")
    rest: _PlanDocument = build(_PlanDocument, {k: v for k, v in document.items() if k in _KEYS[4:]}, where)
    datasets = _read_datasets(document["datasets"], where, known)
    shared = {"inference": document["inference"]} if "inference" in document else {}
    if rest.confirm_run_unsafe_code:
        shared["confirm_run_unsafe_code"] = True
    return EvaluationPlan(
        checkpoints=_read_checkpoints(document.get("checkpoints") or [], where, folder, rest.hardware),
        datasets=share_settings(datasets, shared),
        hardware=rest.hardware,
        ray_address=rest.ray_address,
        priors=str(folder / rest.priors) if rest.priors else None,
        assets=str(folder / rest.assets) if rest.assets else None,
        base=str(folder / rest.base) if rest.base else None,
        push=read_pushes(document.get("push", []), where),
    )


def share_settings(datasets: Sequence[Dataset], shared: Mapping[str, Any]) -> tuple[Dataset, ...]:
    """Give what a plan says for all tasks of the harness to those that say nothing else."""
    return tuple(
        dataclasses.replace(d, settings={**shared, **d.settings}) if d.adapter == "lm-eval" else d for d in datasets
    )


def _read_checkpoints(document: Any, where: str, folder: Path, hardware: Hardware) -> tuple[Checkpoint, ...]:
    entries = document if isinstance(document, list) else [document]
    found: list[Checkpoint] = []
    for i, given in enumerate(entries):
        key = f"checkpoints[{i}]"
        keys = {"path": given} if isinstance(given, str) else given
        entry: _CheckpointEntry = build(_CheckpointEntry, keys, where, prefix=f"{key}.")
        gpus = 0 if hardware.device == "cpu" else entry.gpus if entry.gpus is not None else hardware.gpus_per_worker
        if gpus > hardware.gpus_per_worker:
            raise BadConfigError(
                f"{where}: '{key}.gpus' is {gpus}, 'hardware.gpus_per_worker' is {hardware.gpus_per_worker}; raise it"
            )
        matches = _find(entry, folder, f"{where}: '{key}'")
        if entry.name is not None and len(matches) > 1:
            raise BadConfigError(f"{where}: '{key}.name' is one name for {len(matches)} checkpoints; leave it out")
        found.extend(
            dataclasses.replace(
                checkpoint,
                name=entry.name or checkpoint.name,
                step=checkpoint.step if entry.step is None else entry.step,
                gpus=gpus,
                priority=entry.priority,
                weight=entry.weight,
                assets=str(folder / entry.assets) if entry.assets else None,
                base=str(folder / entry.base) if entry.base else None,
            )
            for checkpoint in matches
        )
    return tell_apart(found, where)


def _find(entry: _CheckpointEntry, folder: Path, where: str) -> list[Checkpoint]:
    """The checkpoints that an entry means: files, or a served model."""
    if (entry.path is None) == (entry.endpoint is None):
        raise BadConfigError(f"{where}: give 'path' or 'endpoint', one of them")
    if entry.path is not None:
        return _match(entry.path, folder, where)
    assert entry.endpoint is not None
    name = entry.endpoint.model.rstrip("/").rsplit("/", 1)[-1]
    end = entry.endpoint
    if end.tokenizer is not None:
        end = dataclasses.replace(end, tokenizer=str(folder / end.tokenizer))
    return [Checkpoint(name=name, path=make_address(end), bytes=0, parameters=0, step=find_step(name))]


def _match(path: str, folder: Path, where: str) -> list[Checkpoint]:
    """The checkpoints that a path, a pattern or an address means, in the order of their steps."""
    if path.startswith(_REMOTE):
        name = path.rstrip("/").rsplit("/", 1)[-1]
        return [Checkpoint(name=name, path=path, bytes=0, parameters=0, step=find_step(name))]
    full = folder / path
    if not glob.has_magic(path):
        if not full.is_dir() and not (full.is_file() and full.suffix in _FILE_ENDS):
            siblings = [p.name for p in full.parent.glob("*/")] if full.parent.is_dir() else []
            raise BadFileError(f"{where}: {full} is no checkpoint folder{nearest(full.name, siblings)}; check the path")
        return [_inspect(full, where)]
    root = Path(full.anchor)
    folders = [p for p in root.glob(str(full.relative_to(root))) if p.is_dir() or p.suffix in _FILE_ENDS]
    if not folders:
        raise BadFileError(f"{where}: no folder matches {full}; check the pattern")
    return sorted((_inspect(p, where) for p in folders), key=lambda c: (c.step is None, c.step or 0, c.name))


def _inspect(folder: Path, where: str) -> Checkpoint:
    try:
        return inspect_folder(folder)
    except BadFileError as error:
        raise BadFileError(f"{where}: {error}") from None


def tell_apart(checkpoints: Sequence[Checkpoint], where: str) -> tuple[Checkpoint, ...]:
    """Give checkpoints of one name the folder above as well; the same path twice is a mistake."""
    paths = [c.path for c in checkpoints]
    for path in paths:
        if paths.count(path) > 1:
            raise BadConfigError(f"{where}: checkpoint {path} is named twice; keep one entry")
    names = [c.name for c in checkpoints]
    renamed = tuple(
        dataclasses.replace(c, name="/".join(Path(c.path).parts[-2:])) if names.count(c.name) > 1 else c
        for c in checkpoints
    )
    for c in renamed:
        if [other.name for other in renamed].count(c.name) > 1:
            raise BadConfigError(f"{where}: two checkpoints are called '{c.name}'; give each a name")
    return renamed


def _read_datasets(document: Any, where: str, known: Mapping[str, Dataset]) -> tuple[Dataset, ...]:
    if not isinstance(document, list):
        raise BadConfigError(f"{where}: 'datasets' is {describe(document)}, expected a list")
    datasets: list[Dataset] = []
    for i, given in enumerate(document):
        dataset = _read_dataset(given, where, f"datasets[{i}]", known)
        if any(other.name == dataset.name for other in datasets):
            raise BadConfigError(f"{where}: 'datasets[{i}]' is '{dataset.name}' again; keep one or name them apart")
        datasets.append(dataset)
    return tuple(datasets)


def _read_dataset(given: Any, where: str, key: str, known: Mapping[str, Dataset]) -> Dataset:
    """A known name, `adapter:task`, or keys."""
    if isinstance(given, str):
        if given in known:
            return known[given]
        adapter, colon, task = given.partition(":")
        if colon and adapter in ADAPTERS and adapter != "command" and task:
            return Dataset(name=task, adapter=adapter, task=task, samples=0, splittable=adapter == "lm-eval")
        hint = nearest(adapter, ADAPTERS) if colon else nearest(given, known)
        raise BadConfigError(
            f"{where}: '{key}' is '{given}', no known dataset{hint}; known: {', '.join(known) or 'none'}, "
            "or lm-eval:TASK, or keys name, adapter, task"
        )
    if not isinstance(given, Mapping):
        raise BadConfigError(f"{where}: '{key}' is {describe(given)}, expected a name or keys")
    settings = given.get("settings", {})
    if not isinstance(settings, Mapping):
        raise BadConfigError(f"{where}: '{key}.settings' is {describe(settings)}, expected keys and values")
    keys = {k: v for k, v in given.items() if k != "settings"}
    entry: _DatasetEntry = build(_DatasetEntry, keys, where, prefix=f"{key}.")
    task = entry.task or entry.name
    if entry.adapter == "builtin":
        if task not in known:
            raise BadConfigError(
                f"{where}: '{key}.task' is '{task}', no built-in dataset{nearest(task, known)}; "
                f"known: {', '.join(known) or 'none'}"
            )
        base = known[task]
        merged = {**base.settings, **settings}
        samples = entry.samples or base.samples
        return dataclasses.replace(base, name=entry.name, samples=samples, settings=merged)
    return Dataset(
        name=entry.name,
        adapter=entry.adapter,
        task=task,
        samples=entry.samples,
        tokens=entry.tokens,
        splittable=entry.splittable,
        settings=dict(settings),
    )

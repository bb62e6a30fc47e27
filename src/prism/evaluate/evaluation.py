"""`evaluate`: a plan in, scores out. The only file that chains the others."""

from __future__ import annotations

import contextlib
import dataclasses
import math
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from prism.errors import BadConfigError, BadFileError, PrismError
from prism.evaluate.run.assignments import Assignments, Model
from prism.evaluate.run.checkpoints.convert import make_readable
from prism.evaluate.run.coordinator import Coordinator
from prism.evaluate.run.engines import Engine, EngineNode
from prism.evaluate.run.failures import is_disk_full
from prism.evaluate.run.jobs import WarmUpJob
from prism.evaluate.run.loading import Shelf, open_source
from prism.evaluate.run.loading.source import identify
from prism.evaluate.run.models.model import is_tiny
from prism.evaluate.run.node_states import Layout
from prism.evaluate.run.outcomes import Findings, Problem
from prism.evaluate.run.run_log import RunLog
from prism.evaluate.run.store import Store
from prism.evaluate.run.surveying import survey_datasets
from prism.evaluate.run.watching import Seen
from prism.evaluate.run.workers import WorkerPool
from prism.evaluate.schedule.priors import Priors, read_priors, write_priors
from prism.evaluate.schedule.scheduler import Scheduler, SchedulerConfig
from prism.evaluate.schedule.trials import Checkpoint, Dataset, Group, Kept

if TYPE_CHECKING:
    from prism.evaluate.plan_file import EvaluationPlan
    from prism.evaluate.schedule.hardware import Hardware

KEY_LETTERS = 20


@dataclass(frozen=True, slots=True, kw_only=True)
class EvaluateConfig:
    """Where an evaluation writes, and how it is watched."""

    folder: Path
    priors: Path | None = None
    say: Callable[[str], None] = field(default=lambda text: None)
    show: Callable[[dict[str, Any]], None] = field(default=lambda document: None)
    arrivals: Callable[[], Iterable[Checkpoint] | None] = field(default=lambda: None)
    publish: Callable[[Evaluation], None] = field(default=lambda evaluation: None)  # gets results as they come
    watched: Mapping[str, Seen] = field(default_factory=dict)  # entries of a watched folder, as they are now
    busy_gpus: Callable[[], frozenset[int]] = frozenset  # that others use; workers there make way


@dataclass(frozen=True, slots=True, kw_only=True)
class Evaluation:
    """What an evaluation gave."""

    checkpoints: tuple[Checkpoint, ...]
    datasets: tuple[Dataset, ...]
    found: Findings
    makespan_s: float  # from the moment the engine was there
    lower_bound_s: float
    groups: tuple[Group, ...] = ()
    models: Mapping[str, str] = field(default_factory=dict)  # by checkpoint: a word for its files
    watched: Mapping[str, Seen] = field(default_factory=dict)


def evaluate(plan: EvaluationPlan, open_engine: Callable[[], Engine], config: EvaluateConfig) -> Evaluation:
    """Score every checkpoint of a plan on every dataset; what an earlier run finished in the same folder is kept."""
    with Store(config.folder).lock():
        models = {c.name: find_model(c, plan, config.folder) for c in plan.checkpoints}
        engine = open_engine()
        try:
            return _evaluate(plan, models, engine, config)
        except OSError as error:
            if not is_disk_full(error):
                raise
            raise PrismError(
                f"{config.folder}: {error.strerror}; make room and run again, what is finished is kept"
            ) from None
        finally:
            engine.close()
            Shelf().sweep()  # copies of workers that were killed while they worked


def _evaluate(plan: EvaluationPlan, models: dict[str, Model], engine: Engine, config: EvaluateConfig) -> Evaluation:
    layout = choose_layout(plan.hardware, engine.nodes())
    checkpoints = [_settle(c, models[c.name], layout) for c in plan.checkpoints]
    looked = survey_datasets(plan.datasets, engine)
    datasets = {dataset.name: dataset for dataset in looked.datasets}
    assignments = Assignments(folder=config.folder, models=models, datasets=datasets)
    scheduler = _make_scheduler(plan, checkpoints, assignments, config)
    worker_pool = WorkerPool(engine, layout, WarmUpJob(modules=choose_imports(plan.checkpoints, plan.datasets)))
    if looked.worker is not None:
        worker_pool.adopt_scorer(looked.worker, looked.node)
    steps = {c.name: c.step for c in checkpoints}
    coordinator = Coordinator(
        scheduler,
        worker_pool,
        assignments,
        RunLog(config.folder, steps, len(looked.datasets), say=config.say, show=config.show),
        config.busy_gpus,
    )

    def describe(found: Findings) -> Evaluation:
        return Evaluation(
            checkpoints=tuple(checkpoints),
            datasets=looked.datasets,
            found=found,
            makespan_s=coordinator.now_s,
            # The bound follows from run times, some of them estimates: one that was beaten was too high.
            lower_bound_s=min(coordinator.now_s, scheduler.lower_bound_s()),
            groups=looked.groups,
            models={name: model.key for name, model in models.items()},
            watched=dict(config.watched),
        )

    def arrive() -> list[tuple[Checkpoint, Kept]] | None:
        news = config.arrivals()
        if news is None:
            return None
        received = []
        for checkpoint in news:
            try:
                models[checkpoint.name] = find_model(checkpoint, plan, config.folder)
            except BadFileError as error:  # it looked whole, and cannot be converted
                problem = Problem(checkpoint=checkpoint.name, dataset="", phase="convert", text=str(error))
                coordinator.report(problem)
                continue
            checkpoints.append(_settle(checkpoint, models[checkpoint.name], layout))
            config.say(f"{checkpoint.name}: found, {checkpoints[-1].bytes / 1e6:,.1f} MB")
            received.append((checkpoints[-1], assignments.find_kept(checkpoint.name)))
        return received

    try:
        found = coordinator.run(arrive, lambda found: config.publish(describe(found)))
    finally:
        with contextlib.suppress(OSError):  # a full disk is reported by the write that failed first
            write_priors(scheduler.priors, config.folder / "priors.json")
    return describe(found)


def _make_scheduler(
    plan: EvaluationPlan, checkpoints: Sequence[Checkpoint], assignments: Assignments, config: EvaluateConfig
) -> Scheduler:
    """With what is known of run times, and with what an earlier run has left in the folder."""
    path = config.priors or config.folder / "priors.json"
    return Scheduler(
        checkpoints,
        tuple(assignments.datasets.values()),
        read_priors(path) if path.exists() else Priors(),
        SchedulerConfig.from_hardware(plan.hardware),
        kept={checkpoint.name: assignments.find_kept(checkpoint.name) for checkpoint in checkpoints},
    )


def choose_layout(hardware: Hardware, nodes: Sequence[EngineNode]) -> Layout:
    """How processors are used; without GPUs, CPU workers do the inference."""
    most_gpus = max((node.gpus for node in nodes), default=0)
    if hardware.device == "gpu" and most_gpus == 0:
        raise BadConfigError("'hardware.device' is gpu and no node has one; set it to auto or cpu")
    use_gpus = hardware.device != "cpu" and most_gpus > 0
    if use_gpus and hardware.gpus_per_worker > most_gpus:
        raise BadConfigError(
            f"'hardware.gpus_per_worker' is {hardware.gpus_per_worker}, the largest node has {most_gpus} GPUs"
        )
    return Layout(
        gpus_per_worker=hardware.gpus_per_worker,
        cpu_workers=math.ceil(hardware.workers / max(1, len(nodes))) if hardware.workers else None,
        score_cpus=hardware.score_cpus,
        use_gpus=use_gpus,
        max_workers=hardware.workers,
        memory_bytes=int((hardware.shared_memory_gb or 0) * 1e9),
    )


def choose_imports(checkpoints: Sequence[Checkpoint], datasets: Sequence[Dataset]) -> tuple[str, ...]:
    """Modules that take seconds to import and that inference will need."""
    adapters = {dataset.adapter for dataset in datasets}
    found = ["lm_eval.models.huggingface", "lm_eval.evaluator_utils"] if "lm-eval" in adapters else []
    local = [c.path for c in checkpoints if not c.path.startswith("endpoint:")]
    if "builtin" in adapters and not all(is_tiny(Path(path)) for path in local):
        found.append("prism.evaluate.run.models.pretrained")
    return tuple(found)


def count_slots(hardware: Hardware) -> int:
    """Processes that may work at once on this machine, for an engine that must know it at its start."""
    cores = len(os.sched_getaffinity(0))
    workers = hardware.workers or max(1, cores // 2)
    return workers + (hardware.score_cpus or max(1, cores - workers))


def find_model(checkpoint: Checkpoint, plan: EvaluationPlan, folder: Path) -> Model:
    """Ask the source of a checkpoint for its files; one that lies here is converted first where it has to be."""
    address = checkpoint.path
    if "://" not in address and not address.startswith("endpoint:"):
        assets, base = checkpoint.assets or plan.assets, checkpoint.base or plan.base
        cache = folder / "converted"
        address = str(
            make_readable(Path(address), Path(assets) if assets else None, Path(base) if base else None, cache)
        )
    files = open_source(address).files()
    return Model(address=address, key=identify(files)[:KEY_LETTERS], files=files)


def _settle(checkpoint: Checkpoint, model: Model, layout: Layout) -> Checkpoint:
    """On the devices there are; one that lies elsewhere with sizes from its listing, two bytes to a parameter."""
    settled = checkpoint if layout.use_gpus else dataclasses.replace(checkpoint, gpus=0)
    if checkpoint.bytes:
        return settled
    size = sum(file.num_bytes for file in model.files)
    return dataclasses.replace(settled, bytes=size, parameters=checkpoint.parameters or size // 2)

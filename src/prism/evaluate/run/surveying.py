"""Datasets looked up before the run: how many samples, which data. What needs heavy imports runs in a worker."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass

from prism.errors import BadConfigError, PrismError
from prism.evaluate.run.adapters import open_adapter
from prism.evaluate.run.adapters.adapter import Survey
from prism.evaluate.run.engines.engine import Engine, Gone, WorkerSpec
from prism.evaluate.run.jobs import SurveyJob
from prism.evaluate.schedule.trials import Dataset, Group

_WORKER = "surveyor"
_LIMIT_S = 1800.0  # building the prompts of a large task takes minutes


@dataclass(frozen=True, slots=True, kw_only=True)
class Surveyed:
    """Datasets with their samples counted, and the worker that counted them, if one did."""

    datasets: tuple[Dataset, ...]
    groups: tuple[Group, ...] = ()
    worker: str | None = None
    node: str = ""


def survey_datasets(datasets: Sequence[Dataset], engine: Engine) -> Surveyed:
    """Count the samples of all datasets; raises InputError for one that cannot be used."""
    heavy = tuple(dataset for dataset in datasets if dataset.adapter == "lm-eval")
    node = engine.nodes()[0].id if heavy else ""
    found = dict(zip((d.name for d in heavy), _survey_in_worker(heavy, engine, node) if heavy else (), strict=True))
    for dataset in datasets:
        if dataset.name not in found:
            found[dataset.name] = open_adapter(dataset.adapter).survey(dataset)
    counted: dict[str, Dataset] = {}
    for dataset in datasets:
        for member, survey in found[dataset.name].members or ((dataset, found[dataset.name]),):
            known, one = counted.get(member.name), _count(member, survey)
            if known is not None and known.settings != one.settings:
                raise BadConfigError(
                    f"dataset '{member.name}' comes twice, with other settings in '{dataset.name}'; rename one"
                )
            counted[member.name] = one
    return Surveyed(
        datasets=tuple(counted.values()),
        groups=tuple(group for dataset in datasets for group in found[dataset.name].groups),
        worker=_WORKER if heavy else None,
        node=node,
    )


def _survey_in_worker(datasets: tuple[Dataset, ...], engine: Engine, node: str) -> list[Survey]:
    engine.start(WorkerSpec(id=_WORKER, node=node))
    engine.submit(_WORKER, SurveyJob(datasets=datasets))
    reports = engine.wait(_LIMIT_S)
    if not reports:
        raise PrismError(f"the datasets could not be looked up within {_LIMIT_S:g} s; name fewer, or local ones")
    report = reports[0]
    if isinstance(report, Gone):
        raise PrismError(f"the process that looks datasets up is gone ({report.text}); is there enough memory?")
    if report.outcome.failure is not None:
        raise PrismError(f"the datasets could not be looked up: {report.outcome.text}")
    found: list[Survey] | str = report.outcome.value
    if isinstance(found, str):
        raise BadConfigError(found)
    return found


def _count(dataset: Dataset, survey: Survey) -> Dataset:
    if survey.samples < 1:
        raise BadConfigError(f"dataset '{dataset.name}' has no samples; check its data")
    if dataset.samples and dataset.samples != survey.samples:
        raise BadConfigError(
            f"dataset '{dataset.name}': the plan says {dataset.samples} samples, it has {survey.samples}; leave it out"
        )
    return dataclasses.replace(
        dataset,
        samples=survey.samples,
        tokens=dataset.tokens or survey.tokens,
        version=survey.version,
        identity=survey.identity,
        directions=dict(survey.directions),
    )

"""Groups of datasets: their metrics averaged as lm-evaluation-harness averages them."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence

from prism.evaluate.schedule.trials import Dataset, Group, GroupMetric

Metrics = Mapping[tuple[str, str], Mapping[str, float]]  # by checkpoint and dataset


def average_groups(
    groups: Iterable[Group], datasets: Sequence[Dataset], checkpoints: Iterable[str], metrics: Metrics
) -> dict[tuple[str, str], dict[str, float]]:
    """Metrics of each group for each checkpoint; none where a dataset of the group has no result yet."""
    sizes = {dataset.name: dataset.samples for dataset in datasets}
    names = list(checkpoints)
    found: dict[tuple[str, str], dict[str, float]] = {}
    for group in groups:
        for checkpoint in names:
            members = [metrics.get((checkpoint, name)) for name in group.datasets]
            if members and all(member is not None for member in members):
                whole = [member for member in members if member is not None]
                averaged = _average(group, whole, [sizes[name] for name in group.datasets])
                if averaged:
                    found[checkpoint, group.name] = averaged
    return found


def describe_group(group: Group, datasets: Sequence[Dataset]) -> Dataset:
    """A group as a dataset of a leaderboard: the samples of all, directions where its datasets agree."""
    members = [dataset for dataset in datasets if dataset.name in group.datasets]
    directions: dict[str, bool] = {}
    for name in {name for dataset in members for name in dataset.directions}:
        said = {dataset.directions[name] for dataset in members if name in dataset.directions}
        if len(said) == 1:
            directions[name] = said.pop()
    return Dataset(
        name=group.name,
        adapter="group",
        task=group.name,
        samples=sum(dataset.samples for dataset in members),
        version=group.version,
        directions=directions,
    )


def _average(group: Group, members: Sequence[Mapping[str, float]], sizes: Sequence[int]) -> dict[str, float]:
    found: dict[str, float] = {}
    for entry in group.metrics:
        for word in _filters(entry, members):
            have = [(m, n) for m, n in zip(members, sizes, strict=True) if f"{entry.metric},{word}" in m]
            if not have:
                continue
            weights = [n if entry.by_size else 1 for _, n in have]
            values = [m[f"{entry.metric},{word}"] for m, _ in have]
            found[f"{entry.metric},{word}"] = sum(v * w for v, w in zip(values, weights, strict=True)) / sum(weights)
            errors = [m[key] for m, _ in have if (key := f"{entry.metric}_stderr,{word}") in m]
            if len(errors) == len(have):
                counts = [n for _, n in have]
                found[f"{entry.metric}_stderr,{word}"] = _pool(errors, counts) if entry.by_size else _mean_error(errors)
    return found


def _filters(entry: GroupMetric, members: Sequence[Mapping[str, float]]) -> Sequence[str]:
    if entry.filters is not None:
        return entry.filters
    start = f"{entry.metric},"
    return sorted({name.removeprefix(start) for member in members for name in member if name.startswith(start)})


def _pool(errors: Sequence[float], sizes: Sequence[int]) -> float:
    """Of a mean over all samples: the pooled variance of the datasets, by their samples."""
    squares = sum((n - 1) * e**2 * n for n, e in zip(sizes, errors, strict=True))
    freedom = sum(sizes) - len(sizes)
    return math.sqrt(squares / freedom / sum(sizes)) if freedom else 0.0


def _mean_error(errors: Sequence[float]) -> float:
    """Of a plain mean of independent means."""
    return math.sqrt(sum(e**2 for e in errors)) / len(errors)

"""Work of every rank by step, as tables to compare: with its replicas, with its own past, with other stages."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from prism.observe.findings.case import Case
from prism.observe.findings.windows import Floats, Window, quantile_rows, spread_of

Ints = NDArray[np.int64]


@dataclass(frozen=True)
class WorkTable:
    """Seconds of work by phase: one row per endpoint, one column per step, nan where not seen."""

    endpoints: Ints
    stage: Ints
    host: NDArray[np.str_]
    phases: dict[str, Floats]

    @property
    def num_stages(self) -> int:
        """Stages that work was seen of, counted from 0."""
        return int(self.stage.max(initial=-1)) + 1

    @cached_property
    def against_replicas(self) -> Floats:
        """How much longer each rank works than the quicker of its replicas in the same step, as a share."""
        return _mean_over_phases([self._compare_rows(values) for values in self.phases.values()])

    @cached_property
    def against_past(self) -> Floats:
        """How much longer each rank works than in its own quicker steps, as a share."""
        compared = []
        for values in self.phases.values():
            usual = quantile_rows(values, 0.25, axis=1)
            enough = (~np.isnan(values)).sum(axis=1) >= 5
            compared.append(values / np.where(enough, usual, np.nan)[:, None] - 1)
        return _mean_over_phases(compared)

    def _compare_rows(self, values: Floats) -> Floats:
        out = np.full_like(values, np.nan)
        for s in range(self.num_stages):
            rows = np.flatnonzero(self.stage == s)
            if len(np.unique(self.host[rows])) < 2 and len(rows) < 2:
                continue
            # Tensor-parallel ranks of a host act as one, so half of the rows may be slow when there are two replicas.
            out[rows] = values[rows] / quantile_rows(values[rows], 0.25, axis=0) - 1
        return out

    def find_extra_s(self, row: int, window: Window) -> float:
        """Seconds that a rank works longer than the quicker of its replicas, in the phase in which that is most."""
        steps = slice(window.first, window.last + 1)
        rows = np.flatnonzero(self.stage == self.stage[row])
        extra = [v[row, steps] - quantile_rows(v[rows, steps], 0.25, axis=0) for v in self.phases.values()]
        return max((float(np.median(e[~np.isnan(e)])) for e in extra if not np.isnan(e).all()), default=0.0)

    def spread(self) -> float:
        """Usual spread between replicas."""
        return spread_of(self.against_replicas)


def noise_of(excess: Floats) -> float:
    """Spread of an excess from step to step within ranks: what chance alone does."""
    moves = np.abs(np.diff(excess, axis=1)) / np.sqrt(2)
    known = moves[~np.isnan(moves)]
    return max(float(1.4826 * np.median(known)) if len(known) else 0.0, 0.002)


def tabulate_work(case: Case) -> WorkTable:
    """The work of a case as one table per phase, all with the same rows."""
    work = case.work
    endpoints = np.unique(work["endpoint"].to_numpy()).astype(np.int64)
    stage = np.zeros(len(endpoints), np.int64)
    stage[np.searchsorted(endpoints, work["endpoint"].to_numpy())] = work["stage"].to_numpy()
    host = np.array([case.hosts[int(e)] for e in endpoints], dtype=str)
    phases = {}
    for (phase,), part in work.group_by("phase", maintain_order=True):
        if float(part["work_ns"].median()) < 10 * case.resolution_ns:  # type: ignore[arg-type]
            continue
        values = np.full((len(endpoints), case.steps.height), np.nan)
        rows = np.searchsorted(endpoints, part["endpoint"].to_numpy())
        values[rows, part["step"].to_numpy()] = part["work_ns"].to_numpy() / 1e9
        phases[str(phase)] = values
    return WorkTable(endpoints, stage, host, phases)


def _mean_over_phases(tables: list[Floats]) -> Floats:
    """Mean of what is known; a rank that is slow is so in all it does."""
    stack = np.stack(tables)
    known = ~np.isnan(stack)
    count = known.sum(axis=0)
    total = np.where(known, stack, 0.0).sum(axis=0)
    return np.where(count > 0, total / np.maximum(count, 1), np.nan)

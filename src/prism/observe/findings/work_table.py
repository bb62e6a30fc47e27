"""Work of every rank by step, as tables for comparison."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from prism.observe.findings.case import Case
from prism.observe.findings.windows import Floats

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

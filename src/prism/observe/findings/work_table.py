"""Work of every rank by step, as tables for comparison."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from prism.observe.findings.case import Case
from prism.observe.findings.windows import Floats
from prism.observe.traffic.medians import take_median

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
    endpoints, row = np.unique(work["endpoint"].to_numpy().astype(np.int64), return_inverse=True)
    stage = np.zeros(len(endpoints), np.int64)
    stage[row] = work["stage"].to_numpy()
    host = np.array([case.hosts[int(e)] for e in endpoints], dtype=str)
    phases = {}
    step, took = (work[c].to_numpy() for c in ("step", "work_ns"))
    for phase in work["phase"].unique(maintain_order=True).to_list():
        own = (work["phase"] == phase).to_numpy()
        if take_median(took[own]) < 10 * case.resolution_ns:
            continue
        phases[phase] = np.full((len(endpoints), case.steps.height), np.nan)
        phases[phase][row[own], step[own]] = took[own] / 1e9
    return WorkTable(endpoints, stage, host, phases)

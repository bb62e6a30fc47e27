"""A clean bill: what was compared in a job without a finding, and the smallest fault that would have been seen."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from prism.observe.delays.lateness import Lateness
from prism.observe.delays.posterior import DelayConfig, measure_limits
from prism.observe.findings.case import Case
from prism.observe.findings.windows import quantile_rows

_WHAT = {
    "sender": "when each rank was ready for its calls, with all others of the call",
    "both": "when each rank was ready for its calls, with all others of the call",
    "ring": "how long blocks of sequences wait for each host, with how long its own wait",
    "idle": "how long each rank works before its calls, with its own quick steps",
    "past": "how long each rank works on a micro-batch, with its own quick steps",
    "like": "how long each rank works on a micro-batch, with the replicas of its stage",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """What was compared; the shares are of a step, or of a rank's work, and None where no fault would be seen."""

    what: tuple[str, ...]
    steps: int
    ranks: int
    least_begun: float | None  # that begins or ends within the observation
    least_lasting: float | None  # that lasts for all of it
    nearest: str | None = None  # the host that was latest
    nearest_late: float = 0.0

    def to_json(self) -> dict[str, Any]:
        """The document form that `prism diagnose --json` prints."""
        near = {"host": self.nearest, "late": round(self.nearest_late, 4)} if self.nearest else None
        least = {"begins": self.least_begun, "lasts": self.least_lasting}
        return {
            "what": list(self.what), "steps": self.steps, "ranks": self.ranks,
            "smallest_fault": {k: None if v is None else round(v, 4) for k, v in least.items()}, "nearest": near,
        }  # fmt: skip


def compare_nothing(case: Case) -> Comparison:
    """Of a job whose ranks cannot be compared only the lengths of steps are known."""
    return Comparison(what=(), steps=case.steps.height, ranks=0, least_begun=None, least_lasting=None)


def describe(case: Case, tables: Sequence[Lateness], config: DelayConfig | None = None) -> Comparison:
    """What the tables of a job compare, and who was nearest to being told."""
    config = config or DelayConfig()
    begun, lasting = [], []
    nearest, most = None, 0.0
    for table in tables:
        limits = measure_limits(table, config)
        begun.append(limits.begun)
        if table.of_past:
            continue
        lasting.append(limits.lasting)
        usual = np.nan_to_num(quantile_rows(table.late, 0.5, axis=1))
        at = int(usual.argmax()) if len(usual) else -1
        if at >= 0 and usual[at] > most:
            nearest, most = case.hosts[int(table.endpoints[at])], float(usual[at])
    return Comparison(
        what=tuple(dict.fromkeys(_WHAT[table.how] for table in tables)),
        steps=case.steps.height,
        ranks=len({e for table in tables for e in table.endpoints.tolist()}),
        least_begun=min(begun, default=None),
        least_lasting=min(lasting, default=None),
        nearest=nearest,
        nearest_late=most,
    )

"""The case file of one job: everything the findings are drawn from."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np
import polars as pl
from numpy.typing import NDArray

from prism.observe.jobs import ObservedJob
from prism.observe.layout import StageMap
from prism.records.findings import Culprit, CulpritType, Finding, FindingKind
from prism.records.layout import Layout


@dataclass(frozen=True, kw_only=True)
class Case:
    """One job as observed: its messages with their kind and step, where its endpoints sit, how it is laid out."""

    job: ObservedJob
    layout: Layout
    stages: StageMap
    steps: pl.DataFrame
    messages: pl.DataFrame  # pair size_class src dst kind role per_step start_ns end_ns bytes
    work: pl.DataFrame
    endpoints: pl.DataFrame
    observed_until_ns: int  # the last moment of the whole observation, over all jobs

    @cached_property
    def length_s(self) -> NDArray[np.float64]:
        """Seconds of each step."""
        lengths: NDArray[np.float64] = (self.steps["end_ns"] - self.steps["start_ns"]).to_numpy() / 1e9
        return lengths

    @property
    def gpus(self) -> int:
        """Ranks that wait when one is late; an endpoint counts as one."""
        return len(self.job.endpoints)

    def address(self, endpoint: int) -> str:
        """An endpoint's address."""
        return str(self.endpoints["address"][endpoint])

    def host(self, endpoint: int) -> str:
        """An endpoint's host."""
        return str(self.endpoints["host"][endpoint])

    def name_worker(self, members: list[int]) -> Culprit:
        """A culprit of one or more endpoints: the host where they are all the job has there, else their addresses."""
        hosts = {self.host(e) for e in members}
        if len(hosts) == 1:
            host = hosts.pop()
            own = self.endpoints[self.job.endpoints].filter(pl.col("host") == host).height
            if len(members) > 1 and len(members) >= 0.75 * own:
                return Culprit(type="host", id=host)
        return Culprit(type="endpoint", id=",".join(self.address(e) for e in sorted(members)))

    def finding(
        self, kind: FindingKind, culprit: Culprit, first: int, last: int, *, lost_s: float, score: float, evidence: str
    ) -> Finding:
        """A finding over the steps `first` to `last`; `lost_s` is what each of the job's GPUs lost, in seconds."""
        return Finding(
            kind=kind,
            job=self.job.id,
            culprit=culprit,
            start_ns=int(self.steps["start_ns"][first]),
            end_ns=int(self.steps["end_ns"][last]),
            lost_gpu_seconds=round(max(lost_s, 0.0) * self.gpus, 3),
            score=round(float(np.clip(score, 0.0, 0.99)), 3),
            evidence=evidence,
        )


def culprit(kind: CulpritType, name: str) -> Culprit:
    """Short for a culprit."""
    return Culprit(type=kind, id=name)

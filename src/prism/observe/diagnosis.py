"""The result of a diagnosis, for each job and for the cluster."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import polars as pl

from prism.observe.delays.comparison import Comparison
from prism.observe.delays.ledger import Seconds
from prism.observe.jobs.grouping import ObservedJob
from prism.observe.parallelism.stages import StageMap
from prism.observe.steps.life import Life
from prism.observe.steps.visibility import Visibility
from prism.observe.traffic.table import Traffic
from prism.records.findings import Finding
from prism.records.layout import DEGREES, Layout
from prism.records.ports import PortLoad


@dataclass(frozen=True, slots=True, kw_only=True)
class Phase:
    """A part of a job's life in which it has the same hosts."""

    started_ns: int
    ended_ns: int  # the last message
    endpoints: tuple[str, ...]
    layout: Layout

    def to_json(self) -> dict[str, Any]:
        """The document form that `prism diagnose --json` prints."""
        degrees = {k: v for k, v in self.layout.to_json().items() if k in DEGREES}
        times = {"started_ns": self.started_ns, "ended_ns": self.ended_ns}
        return {**times, "endpoints": list(self.endpoints), "layout": degrees}


@dataclass(frozen=True, slots=True, kw_only=True)
class JobDiagnosis:
    """What was learned of one job."""

    id: str
    endpoints: tuple[str, ...]
    hosts: tuple[str, ...]
    layout: Layout
    pairs: pl.DataFrame  # pair src dst kind confidence; src and dst are addresses
    steps: pl.DataFrame
    streams: pl.DataFrame
    stages: StageMap
    observed: ObservedJob
    bursts: pl.DataFrame | None = None  # its messages with those of a burst as one, where only these show its steps
    clock: str | None = None  # that its steps go by
    regular: bool = False  # whether its steps are known to send the same
    life: Life = field(default_factory=Life)
    visible: Visibility = field(default_factory=Visibility)
    ports: tuple[str, ...] = ()  # of its connections at its first endpoint, where records have them
    notes: tuple[str, ...] = ()  # what the records cannot show of it, and why it could not be analysed
    compared: Comparison | None = None  # what was compared, where there is no finding
    seconds: Seconds = field(default_factory=Seconds)
    phases: tuple[Phase, ...] = ()  # where it went on with other hosts

    @property
    def studied(self) -> bool:
        """Whether anything beyond its endpoints was learned by Prism's own method."""
        return self.streams.width > 0

    @property
    def finding_stages(self) -> dict[str, int]:
        """The stage of each address as findings count them: a host that holds several stages counts as one."""
        own = zip(self.endpoints, self.observed.endpoints.tolist(), strict=True)
        return {address: self.stages.stage[e] for address, e in own if e in self.stages.stage}

    def messages_in(self, traffic: Traffic) -> pl.DataFrame:
        """The messages that its steps and findings are read from."""
        return self.bursts if self.bursts is not None else traffic.messages_of(self.observed.pairs)

    def to_json(self) -> dict[str, Any]:
        """The document form that `prism diagnose --json` prints."""
        document = self.layout.to_json()
        return {
            "id": self.id,
            **({"name": self.observed.given.name} if self.observed.given is not None else {}),
            "state": self.life.state,
            "started_ns": self.life.started_ns,
            "ended_ns": self.life.ended_ns,
            "endpoints": list(self.endpoints),
            "hosts": list(self.hosts),
            "layout": {k: document[k] for k in (*DEGREES, "confidence", "confidences", "sharding", "alternatives")},
            "pairs": self.pairs.select("src", "dst", "kind", "confidence").to_dicts(),
            "groups": document["groups"],
            "stages": document["stages"],
            "finding_stages": self.finding_stages,
            "steps": self.steps.to_dicts(),
            "seconds": self.seconds.to_json(),
            "notes": list(self.notes),
            **({"given": self.observed.given.to_json()} if self.observed.given is not None else {}),
            **({"compared": self.compared.to_json()} if self.compared is not None else {}),
            **({"phases": [phase.to_json() for phase in self.phases]} if self.phases else {}),
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class Diagnosis:
    """What was learned of a cluster."""

    jobs: tuple[JobDiagnosis, ...]
    findings: tuple[Finding, ...]
    notes: tuple[str, ...]
    traffic: Traffic
    ports: tuple[PortLoad, ...] = ()  # of switches, where counters came with the records

    def to_json(self) -> dict[str, Any]:
        """The document form that `prism diagnose --json` prints."""
        return {
            "schema": "prism.diagnosis/1",
            "jobs": [job.to_json() for job in self.jobs],
            "findings": [finding.to_json() for finding in self.findings],
            "notes": list(self.notes),
            **({"ports": [port.to_json() for port in self.ports]} if self.ports else {}),
        }

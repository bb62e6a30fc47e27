"""What a scheduler, or an operator, says of a job: its hosts, when it ran, its GPUs and perhaps its layout."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True, slots=True, kw_only=True)
class ScheduledJob:
    """One job as it was given; None is what was not."""

    name: str
    hosts: tuple[str, ...]
    start_ns: int | None = None
    end_ns: int | None = None  # None where it runs, or where the table does not say
    gpus: int | None = None  # of all its hosts
    degrees: Mapping[str, int] = field(default_factory=dict)  # such as tp and pp
    running: bool | None = None  # at the time of the table

    def to_json(self) -> dict[str, Any]:
        """The document form that `prism diagnose --json` prints."""
        return {
            "name": self.name, "hosts": list(self.hosts), "start_ns": self.start_ns, "end_ns": self.end_ns,
            "gpus": self.gpus, "layout": dict(self.degrees) or None,
        }  # fmt: skip

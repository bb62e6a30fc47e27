"""LAYOUT: a job's degrees of parallelism, its groups and its stage order, each with a confidence."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from typing import Any

from prism.errors import BadRowError
from prism.records.spans import PAIR_KINDS

DEGREES = ("dp", "pp", "tp", "cp", "ep")
SHARDINGS = ("none", "zero1", "zero2", "fsdp", "hsdp", "unknown")


@dataclass(frozen=True, slots=True)
class Degree:
    """One degree; a value of None says that it is not known."""

    value: int | None
    confidence: float = 1.0


UNKNOWN = Degree(None, 0.0)


@dataclass(frozen=True, slots=True, kw_only=True)
class Group:
    """Endpoints (or ranks, as text) that communicate collectively."""

    kind: str
    members: tuple[str, ...]
    confidence: float = 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Alternative:
    """Another layout that explains the traffic nearly as well."""

    dp: int
    pp: int
    tp: int
    cp: int
    ep: int
    probability: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Layout:
    """How one job is spread over its ranks."""

    dp: Degree = UNKNOWN
    pp: Degree = UNKNOWN
    tp: Degree = UNKNOWN
    cp: Degree = UNKNOWN
    ep: Degree = UNKNOWN
    sharding: str = "unknown"
    groups: tuple[Group, ...] = ()
    stages: Mapping[str, int] = field(default_factory=dict)
    joint: float | None = None  # confidence that all degrees are right, if they were judged together
    alternatives: tuple[Alternative, ...] = ()  # the likeliest first

    @property
    def confidence(self) -> float:
        """Confidence that every known degree is right."""
        if self.joint is not None:
            return self.joint
        product = 1.0
        for name in DEGREES:
            product *= getattr(self, name).confidence
        return product

    def cap(self, most: float) -> Layout:
        """The same layout with no confidence above `most`."""
        own = {name: getattr(self, name) for name in DEGREES}
        degrees = {name: replace(degree, confidence=min(degree.confidence, most)) for name, degree in own.items()}
        groups = tuple(replace(group, confidence=min(group.confidence, most)) for group in self.groups)
        return replace(self, **degrees, groups=groups, joint=min(self.confidence, most))

    def to_json(self) -> dict[str, Any]:
        """The document form; degrees as plain numbers, their confidences beside them."""
        return {
            **{name: getattr(self, name).value for name in DEGREES},
            "confidence": self.confidence,
            "confidences": {name: getattr(self, name).confidence for name in DEGREES},
            "sharding": self.sharding,
            "alternatives": [asdict(other) for other in self.alternatives],
            "groups": [{"kind": g.kind, "endpoints": list(g.members), "confidence": g.confidence} for g in self.groups],
            "stages": dict(self.stages),
        }

    @classmethod
    def from_json(cls, document: Mapping[str, Any], where: str = "layout") -> Layout:
        """Read what `to_json` wrote, or the shorter form without confidences."""
        confidences = document.get("confidences", {})
        degrees: dict[str, Degree] = {}
        for name in DEGREES:
            value = document.get(name)
            if value is not None and (not isinstance(value, int) or isinstance(value, bool) or value < 1):
                raise BadRowError(f"{where}: '{name}' is {value!r}, expected a whole number of at least 1 or null")
            degrees[name] = Degree(value, float(confidences.get(name, 0.0 if value is None else 1.0)))
        sharding = document.get("sharding", "unknown")
        if sharding not in SHARDINGS:
            raise BadRowError(f"{where}: 'sharding' is {sharding!r}, expected one of {', '.join(SHARDINGS)}")
        groups = []
        for i, entry in enumerate(document.get("groups", ())):
            if entry.get("kind") not in PAIR_KINDS:
                raise BadRowError(
                    f"{where} group {i}: 'kind' is {entry.get('kind')!r}, expected one of {', '.join(PAIR_KINDS)}"
                )
            groups.append(
                Group(
                    kind=entry["kind"],
                    members=tuple(entry.get("endpoints", ())),
                    confidence=float(entry.get("confidence", 1.0)),
                )
            )
        layout = cls(sharding=sharding, groups=tuple(groups), stages=dict(document.get("stages", {})))
        return replace(layout, **degrees)  # type: ignore[arg-type]

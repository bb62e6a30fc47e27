"""The result of a search for bad hosts."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any, Literal

UNCLEAR = "not clear yet for those suspected; test again with more --rounds"  # advice
Verdict = Literal["bad", "unclear", "good"]  # on a host or a link


@dataclass(frozen=True, slots=True, kw_only=True)
class BadLink:
    """Two good hosts that fail or are slow only with each other."""

    first: str
    second: str


@dataclass(frozen=True, slots=True, kw_only=True)
class IsolationReport:
    """Every host is in exactly one of trusted, suspected, condemned."""

    trusted: tuple[str, ...]
    suspected: tuple[str, ...]
    condemned: tuple[str, ...]
    slow: tuple[str, ...]  # those of the condemned that work, but slower than their peers
    bad_links: tuple[BadLink, ...]
    num_tests: int
    num_rounds: int
    evidence: Mapping[str, str] = field(default_factory=dict)  # per host, what was measured
    advice: str = ""  # what else to test if the result is not clear

    def to_json(self) -> dict[str, Any]:
        """The document that `prism isolate --json` prints."""
        return {"schema": "prism.isolation/1", **asdict(self), "evidence": dict(self.evidence)}

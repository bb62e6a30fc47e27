"""Asking the logs: the interface the supervisor needs, and `prism explain` behind it."""

from __future__ import annotations

from pathlib import Path
from typing import Protocol

from prism.errors import PrismError
from prism.records.verdict import Verdict


class Explainer(Protocol):
    """From an attempt's folder of logs to a verdict."""

    def __call__(self, folder: Path) -> Verdict:
        """Say why the attempt ended."""


def explain_logs(folder: Path) -> Verdict:
    """The verdict of `prism.explain`; Unknown, never an exception, where the logs cannot be read."""
    from prism.explain import diagnose, read_job

    try:
        return diagnose(read_job(str(folder))).verdict
    except PrismError:
        return Verdict(log=str(folder), reason="Unknown", category="unknown", action="restart", confidence=0.0)

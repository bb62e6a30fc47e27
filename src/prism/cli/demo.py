"""`prism demo`: the tour."""

from __future__ import annotations

from prism.cli.options import examples

EPILOG = examples("prism demo")


def run_demo() -> None:
    """Show what Prism does on an embedded example."""

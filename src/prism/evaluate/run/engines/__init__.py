"""Where work runs: processes on this machine, or actors of a Ray cluster, behind one small interface."""

from __future__ import annotations

from pathlib import Path

from prism.errors import MissingExtraError
from prism.evaluate.run.engines.engine import Engine, EngineNode, Gone, Outcome, Report, Returned
from prism.evaluate.run.engines.local import LocalEngine

__all__ = ["Engine", "EngineNode", "Gone", "LocalEngine", "Outcome", "Report", "Returned", "open_engine"]


def open_engine(name: str | None, address: str | None, num_slots: int, log: Path | None = None) -> Engine:
    """An engine by name: `ray`, embedded unless an address is given, or `local`; by default Ray where it is installed.

    `num_slots` is how many processes may work at once on this machine, `log` where local ones print to.
    """
    from importlib.util import find_spec

    installed = find_spec("ray") is not None
    if name == "local" or (name is None and address is None and not installed):
        return LocalEngine(log=log)
    if not installed:
        raise MissingExtraError("prism evaluate --engine ray", "evaluate")
    from prism.evaluate.run.engines.ray_engine import RayEngine

    return RayEngine(address, num_slots)

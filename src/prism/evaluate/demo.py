"""`prism evaluate --demo`: three small random models made on the spot, and a plan for them."""

from __future__ import annotations

from pathlib import Path

from prism.evaluate.run.models.tiny import write_tiny
from prism.evaluate.run.scoring.sandbox import why_no_isolation

_STEPS = (100, 200, 300)
_PLAN = """\
# Scores three small, randomly initialised models on the built-in tasks: chance, to be expected.
checkpoints: checkpoints/step-*
datasets: [arithmetic, order, text, copy{code}
hardware:
  workers: 2
"""
_LEFT_OUT = "]  # and code, where programs that models write can be walled off: {why}"


def write_demo(folder: Path) -> Path:
    """Make the models where they are missing, and the plan; the plan's path."""
    for step in _STEPS:
        if not (folder / "checkpoints" / f"step-{step}").is_dir():
            write_tiny(folder / "checkpoints" / f"step-{step}", seed=step)
    plan = folder / "plan.yaml"
    why = why_no_isolation()
    plan.write_text(_PLAN.format(code=", code]" if why is None else _LEFT_OUT.format(why=why)))
    return plan

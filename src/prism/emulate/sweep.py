"""Try many layouts of one script: which fit in memory, and which is fastest."""

from __future__ import annotations

import itertools
import shlex
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import yaml

from prism.emulate.emulation import EmulateConfig, emulate
from prism.errors import BadConfigError, BadFileError, PrismError

_KEYS = ("script", "arguments", "world_size", "gpu_memory_gb", "grid", "where")


@dataclass(frozen=True, slots=True, kw_only=True)
class SweepPlan:
    """A script, a template of its arguments, and the values to try."""

    script: str
    arguments: str  # as a shell would read them, with {name} where a value of the grid goes
    grid: Mapping[str, tuple[Any, ...]]
    world_size: int | None = None
    gpu_memory_gb: float | None = None
    where: str = ""  # a condition on the values, such as "tp * pp <= 64"

    def choices(self) -> list[dict[str, Any]]:
        """Every combination that the condition allows."""
        names = list(self.grid)
        found = [dict(zip(names, values, strict=True)) for values in itertools.product(*self.grid.values())]
        return [choice for choice in found if self._allows(choice)]

    def command(self, choice: Mapping[str, Any]) -> tuple[str, ...]:
        """The script with one choice filled in."""
        try:
            return (self.script, *shlex.split(self.arguments.format(**choice)))
        except (KeyError, IndexError, ValueError) as error:
            raise BadConfigError(
                f"sweep: 'arguments' cannot be filled in: {error}; the grid has {', '.join(choice)}"
            ) from None

    def _allows(self, choice: Mapping[str, Any]) -> bool:
        return not self.where or bool(evaluate_condition(self.where, choice))


@dataclass(frozen=True, slots=True, kw_only=True)
class Trial:
    """One layout that was tried."""

    choice: Mapping[str, Any]
    predicted_ms: float | None
    peak_reserved_bytes: int | None
    fits: bool | None
    problem: str = ""


def read_sweep(path: Path) -> SweepPlan:
    """Read sweep.yaml."""
    if not path.is_file():
        raise BadFileError(f"{path}: no such sweep file")
    try:
        document = yaml.safe_load(path.read_text("utf-8"))
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise BadFileError(f"{path}: not YAML ({str(error).splitlines()[0]})") from None
    if not isinstance(document, dict):
        raise BadConfigError(f"{path}: expected the keys {', '.join(_KEYS)}")
    unknown = [key for key in document if key not in _KEYS]
    if unknown:
        raise BadConfigError(f"{path}: '{unknown[0]}' is not a key here; keys: {', '.join(_KEYS)}")
    grid = document.get("grid")
    if not isinstance(grid, dict) or not grid:
        raise BadConfigError(f"{path}: 'grid' must name at least one argument and the values to try")
    values = {str(name): tuple(v) if isinstance(v, list) else (v,) for name, v in grid.items()}
    for name in ("script", "arguments"):
        if not isinstance(document.get(name), str):
            raise BadConfigError(f"{path}: '{name}' is missing")
    return SweepPlan(**{**document, "grid": values})


def run_sweep(plan: SweepPlan, base: EmulateConfig, note: Callable[[str], None]) -> list[Trial]:
    """Emulate every choice; fitting ones first, fastest first."""
    choices = plan.choices()
    if not choices:
        raise BadConfigError("sweep: 'where' leaves nothing to try")
    trials = []
    for number, choice in enumerate(choices, 1):
        note(f"{number} of {len(choices)}: {describe_choice(choice)}")
        trials.append(_try(plan, base, choice))
    return sorted(trials, key=lambda t: (t.predicted_ms is None, t.fits is False, t.predicted_ms or 0.0))


def describe_choice(choice: Mapping[str, Any]) -> str:
    """A choice in one line."""
    return ", ".join(f"{name} {value}" for name, value in choice.items())


def _try(plan: SweepPlan, base: EmulateConfig, choice: Mapping[str, Any]) -> Trial:
    launch = replace(base.capture.launch, script=plan.command(choice))
    if plan.world_size:
        launch = replace(launch, world_size=plan.world_size)
    limit = round(plan.gpu_memory_gb * 1e9) if plan.gpu_memory_gb else base.gpu_memory_bytes
    capture = replace(base.capture, launch=launch, quick=True)  # one rank of each kind is enough to compare layouts
    config = replace(base, capture=capture, gpu_memory_bytes=limit)
    try:
        prediction = emulate(config).prediction
    except PrismError as error:  # a layout that the script refuses is an answer, not the end of the sweep
        return Trial(choice=choice, predicted_ms=None, peak_reserved_bytes=None, fits=None, problem=str(error))
    worst = max(m.peak_reserved_bytes + m.communicator_bytes for m in prediction.memory)
    fits = [m.fits for m in prediction.memory]
    return Trial(
        choice=choice,
        predicted_ms=prediction.headline_ms,
        peak_reserved_bytes=worst,
        fits=None if None in fits else all(fits),
    )


def evaluate_condition(text: str, values: Mapping[str, Any]) -> Any:
    """A condition on the grid's values: arithmetic and comparisons, nothing else."""
    import ast

    allowed = (
        ast.Expression, ast.BoolOp, ast.BinOp, ast.UnaryOp, ast.Compare, ast.Name, ast.Constant, ast.Load, ast.operator,
        ast.boolop, ast.unaryop, ast.cmpop,
    )  # fmt: skip
    try:
        tree = ast.parse(text, mode="eval")
    except SyntaxError as error:
        raise BadConfigError(f"sweep: 'where' is {text!r}, which is no condition ({error.msg})") from None
    for node in ast.walk(tree):
        if not isinstance(node, allowed) or (isinstance(node, ast.Name) and node.id not in values):
            raise BadConfigError(f"sweep: 'where' is {text!r}; it may compare {', '.join(values)} and numbers")
    try:
        return eval(compile(tree, "where", "eval"), {"__builtins__": {}}, dict(values))  # names and nodes checked above
    except (ArithmeticError, TypeError) as error:
        raise BadConfigError(f"sweep: 'where' is {text!r}, which fails: {error}") from None

"""What a drill ended in, and whether that is what a person would want."""

from __future__ import annotations

from dataclasses import dataclass

from proving.drills.stage import DrillError, Stage, read_losses


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """What was lost and how long it took."""

    drill: str
    ended: str
    attempts: int
    lost_steps: int
    recovery_s: float | None  # from the fault to the first step beyond the one it hit
    source: str  # where the state came from: memory, storage, none
    equal: bool | None  # losses the same to the bit as undisturbed; None where the run was stopped
    note: str = ""


def measure(name: str, stage: Stage, expected: dict[int, str] | None, note: str = "") -> Outcome:
    """Read the outcome off the run folder; `expected` are the undisturbed losses."""
    state = stage.state()
    reports = stage.reports()
    restored = [line for line in reports if line["kind"] == "restored" and line["time"] >= stage.hurt_at_s]
    steps = [line for line in reports if line["kind"] == "step" and line["time"] >= stage.hurt_at_s]
    after = restored[0]["time"] if restored else stage.hurt_at_s
    beyond = [line["time"] for line in steps if line["step"] > stage.hurt_at_step and line["time"] >= after]
    lost = max(0, stage.hurt_at_step - restored[0]["step"]) if restored else 0
    equal = None
    if expected is not None:
        found = read_losses(stage.losses)
        equal = {s: found.get(s) for s in expected} == expected
    return Outcome(
        drill=name,
        ended=state.outcome or state.phase.value,
        attempts=state.attempt,
        lost_steps=lost,
        recovery_s=beyond[0] - stage.hurt_at_s if beyond and stage.hurt_at_s else None,
        source=restored[0]["source"] if restored else "none",
        equal=equal,
        note=note,
    )


def require(condition: bool, what: str) -> None:
    """Fail the drill, saying what was wanted."""
    if not condition:
        raise DrillError(f"expected {what}")

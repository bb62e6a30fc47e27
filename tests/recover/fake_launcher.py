"""A launcher without processes: it records its calls and returns the status that a test sets."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from prism.recover.supervise.launchers import LaunchPlan, Look, no_hurry


@dataclass(slots=True, kw_only=True)
class FakeLauncher:
    """Attempts end when `end` is called."""

    plans: list[LaunchPlan] = field(default_factory=list)
    stopped: list[tuple[Path, float]] = field(default_factory=list)
    cordons: dict[str, str] = field(default_factory=dict)
    looks: dict[Path, Look] = field(default_factory=dict)

    def start(self, plan: LaunchPlan) -> tuple[str, ...]:
        """Pretend to start."""
        plan.folder.mkdir(parents=True, exist_ok=True)
        self.plans.append(plan)
        self.looks[plan.folder] = Look(running=True)
        return plan.hosts or ("fake",)

    def end(self, code: int | None, host: str = "fake") -> None:
        """Let the newest attempt end."""
        first = None if code == 0 else host
        self.looks[self.plans[-1].folder] = Look(running=False, codes={host: code}, first_failed=first)

    def look(self, folder: Path) -> Look:
        """What was set."""
        return self.looks.get(folder, Look(running=False))

    def stop(self, folder: Path, grace_s: float, hurry: Callable[[], bool] = no_hurry) -> None:
        """End it as a kill would."""
        self.stopped.append((folder, grace_s))
        if folder in self.looks and self.looks[folder].running:
            self.looks[folder] = Look(running=False, codes={"fake": None}, first_failed="fake")

    def logs(self, folder: Path) -> list[Path]:
        """What a test wrote there."""
        return sorted(folder.glob("*.log"))

    def pids(self, folder: Path) -> list[int]:
        """None."""
        return []

    def cordon(self, host: str, reason: str) -> None:
        """Remember it."""
        self.cordons[host] = reason

    def uncordon(self, host: str) -> None:
        """Forget it."""
        self.cordons.pop(host, None)

    def prefix(self, host: str) -> tuple[str, ...]:
        """Everything is here."""
        return ()

"""How often the supervisor judges an ordinary run to be a loss spike, and how often it sees one that is there.

    python -m proving.benchmarks.recover_judgement [--runs 1000]

No processes: its decisions are fed the reports of runs that are killed once and continue from their last checkpoint,
whose loss is then high again as it should be. Four shapes of losses, commits reported 0 to 200 steps late, spikes
switched on. Then the same runs with a planted spike, in shadow as by default.
"""

from __future__ import annotations

import argparse
import math
import random
from collections.abc import Callable
from dataclasses import dataclass

from prism.records.verdict import Verdict
from prism.recover.supervise import events
from prism.recover.supervise.actions import Action, Kill, Shadow
from prism.recover.supervise.config import SuperviseConfig
from prism.recover.supervise.state import JobState

SHAPES: dict[str, Callable[[int], float]] = {
    "pre-training, 11 to 3.3": lambda step: 3.3 + 7.7 * math.exp(-step / 400),
    "fine-tuning, 2.5 to 1.2": lambda step: 1.2 + 1.3 * math.exp(-step / 150),
    "classifier, 2.3 to 0.05": lambda step: 2.3 * math.exp(-step / 300) + 0.05,
    "slow, 3.0 to 2.6": lambda step: 2.6 + 0.4 * math.exp(-step / 3000),
}
NOISE = 0.02  # of the loss, from step to step


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """One simulated run."""

    shape: str
    seed: int
    late: int  # steps from a save to the report that it is committed
    spike: bool = False


def draw(number: int, *, spike: bool) -> Case:
    """The case of a number: shapes in turn, everything else by chance."""
    shape = list(SHAPES)[number % len(SHAPES)]
    return Case(shape=shape, seed=number, late=random.Random(number).randint(0, 200), spike=spike)


def judge(case: Case) -> tuple[int, int]:
    """How often the run was sent back, and how many spikes were seen in shadow."""
    chance = random.Random(case.seed)
    job = JobState(config=SuperviseConfig(act_on=() if case.spike else ("spike",)))
    decided: list[Action] = []
    now_s = 0.0

    def tell(event: events.Event) -> None:
        decided.extend(job.handle(event))

    def start() -> None:
        tell(events.Tick(now_s=now_s))
        tell(events.FolderOpened(now_s=now_s, folder="/c", memory="/m"))

    def step(number: int, factor: float = 1.0) -> None:
        nonlocal now_s
        now_s += 1.0
        loss = SHAPES[case.shape](number) * (1.0 + NOISE * chance.gauss(0.0, 1.0)) * factor
        tell(events.StepDone(now_s=now_s, step=number, loss=loss, batch=number, trainer_s=now_s))

    saved = chance.randint(30, 600)
    killed = saved + case.late + chance.randint(1, 800)
    start()
    for number in range(1, killed + 1):
        step(number)
        if number == saved + case.late:
            tell(events.Saved(now_s=now_s, step=saved))
    tell(events.Exited(now_s=now_s, code=-9))
    verdict = Verdict(log="", reason="SIGKILL", category="unknown", action="restart", confidence=0.5)
    tell(events.Explained(now_s=now_s, verdict=verdict))
    start()
    tell(events.Restored(now_s=now_s, step=saved, source="storage"))
    planted = saved + chance.randint(30, 300)
    decided = [action for action in decided if isinstance(action, Kill) and action.attempt == job.attempt]
    for number in range(saved + 1, saved + 400):
        raised = case.spike and planted <= number < planted + 10
        step(number, factor=chance.uniform(2.5, 6.0) if raised else 1.0)
    back = sum(isinstance(action, Kill) for action in decided)
    seen = sum(isinstance(action, Shadow) and action.judgement == "spike" for action in decided)
    return back, seen


def main() -> None:
    """Print both figures for every shape."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=int, default=1000)
    runs = parser.parse_args().runs
    print(f"{'losses':28} {'runs':>5} {'sent back':>10} {'planted':>8} {'seen':>5}")
    for name in SHAPES:
        numbers = [n for n in range(runs) if list(SHAPES)[n % len(SHAPES)] == name]
        back = sum(judge(draw(n, spike=False))[0] > 0 for n in numbers)
        seen = sum(judge(draw(n, spike=True))[1] > 0 for n in numbers)
        print(f"{name:28} {len(numbers):5} {back:10} {len(numbers):8} {seen:5}", flush=True)


if __name__ == "__main__":
    main()

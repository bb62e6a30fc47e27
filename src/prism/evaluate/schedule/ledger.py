"""All the work of a run: every pool, what is retried, and what has to be reported."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field

from prism.evaluate.schedule.actions import Action, CombineScores, ReportFailure
from prism.evaluate.schedule.pools import Pool, open_pool
from prism.evaluate.schedule.priors import Priors
from prism.evaluate.schedule.trials import NOTHING_KEPT, Checkpoint, Dataset, Kept, Part


@dataclass(frozen=True, slots=True, kw_only=True)
class Retry:
    """A part that failed and is tried again by itself, not on the worker it failed on if there is another."""

    part: Part
    attempt: int
    avoid: str


@dataclass(slots=True, kw_only=True)
class Ledger:
    """Where every sample of every dataset stands, for every checkpoint."""

    datasets: Sequence[Dataset]
    priors: Priors
    checkpoints: dict[str, Checkpoint] = field(default_factory=dict)
    pools: dict[str, dict[str, Pool]] = field(default_factory=dict)  # by checkpoint and dataset
    retries: list[Retry] = field(default_factory=list)
    num_open: int = 0
    _touched: dict[tuple[str, str], Pool] = field(default_factory=dict)  # that may have ended
    _reports: list[Action] = field(default_factory=list)

    def add(self, checkpoint: Checkpoint, kept: Kept = NOTHING_KEPT) -> Iterable[Pool]:
        """Open a checkpoint's pools, less what an earlier run kept; one that is known already changes nothing."""
        if checkpoint.name in self.checkpoints:
            return ()
        self.checkpoints[checkpoint.name] = checkpoint
        pools = self.pools[checkpoint.name] = {
            dataset.name: open_pool(
                checkpoint,
                dataset,
                self.priors.prior(dataset, checkpoint),
                {part for part in kept.inferred if part.dataset == dataset.name},
                {part for part in kept.scored if part.dataset == dataset.name},
            )
            for dataset in self.datasets
        }
        for pool in pools.values():
            pool.shrink = self.priors.halvings(pool.dataset, checkpoint)
        self.num_open += len(pools)
        for pool in pools.values():
            self.touch(pool)
        return pools.values()

    def pool(self, part: Part) -> Pool:
        """The pool that a part is of."""
        return self.pools[part.checkpoint][part.dataset]

    def __iter__(self) -> Iterator[Pool]:
        for pools in self.pools.values():
            yield from pools.values()

    def has_waiting(self, checkpoint: str) -> bool:
        """Whether samples of a checkpoint wait to be inferred."""
        return any(pool.waiting for pool in self.pools[checkpoint].values())

    def touch(self, pool: Pool) -> None:
        """Something of a pool is over."""
        self._touched[pool.key] = pool

    def give_up(self, pool: Pool, part: Part, phase: str, text: str) -> None:
        """A part will not be scored; the run reports it."""
        pool.give_up(part)
        self.retries = [retry for retry in self.retries if retry.part != part]
        self._reports.append(ReportFailure(part=part, phase=phase, text=text))
        self.touch(pool)

    def give_up_waiting(self, pool: Pool, phase: str, text: str) -> None:
        """Nothing of what waits can be inferred."""
        for part in [*pool.waiting, *pool.retrying]:
            self.give_up(pool, part, phase, text)

    def take_reports(self) -> list[Action]:
        """Failures and finished datasets since the last time."""
        actions, self._reports = self._reports, []
        for pool in self._touched.values():
            if pool.done and not pool.closed:
                pool.closed = True
                self.num_open -= 1
                if not pool.failed:
                    parts = tuple(sorted(pool.scored))
                    actions.append(CombineScores(checkpoint=pool.key[0], dataset=pool.key[1], parts=parts))
        self._touched.clear()
        return actions

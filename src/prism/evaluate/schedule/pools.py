"""What is left of one dataset for one checkpoint: samples to infer, outputs to score, and what is done."""

from __future__ import annotations

from dataclasses import dataclass, field

from prism.evaluate.schedule.priors import Prior
from prism.evaluate.schedule.trials import Checkpoint, Dataset, Part


@dataclass(slots=True, kw_only=True)
class Pool:
    """Every sample is in exactly one place: waiting, running, to be retried, kept outputs, scored or given up."""

    checkpoint: Checkpoint
    dataset: Dataset
    prior: Prior
    planned: Prior  # as the last packing saw it
    waiting: list[Part] = field(default_factory=list)
    running: set[Part] = field(default_factory=set)
    retrying: set[Part] = field(default_factory=set)
    outputs: set[Part] = field(default_factory=set)
    scored: set[Part] = field(default_factory=set)
    failed: set[Part] = field(default_factory=set)
    fresh: int = 0  # samples that no earlier run had inferred
    losses: int = 0  # workers in a row that died over it
    shrink: int = 0  # halvings of the batch size
    closed: bool = False  # its end was reported

    @property
    def key(self) -> tuple[str, str]:
        """Checkpoint and dataset."""
        return self.checkpoint.name, self.dataset.name

    @property
    def num_waiting(self) -> int:
        """Samples that no worker has taken."""
        return sum(part.samples for part in self.waiting)

    @property
    def done(self) -> bool:
        """Whether nothing is left to do or to wait for."""
        return not (self.waiting or self.running or self.retrying or self.outputs)

    def take(self, samples: int) -> Part | None:
        """Cut off up to `samples` waiting ones, from one stretch; all of it where the dataset cannot be split."""
        if not self.waiting or samples < 1:
            return None
        stretch = self.waiting[0]
        if not self.dataset.splittable or samples >= stretch.samples:
            part = self.waiting.pop(0)
        else:
            part = self.part(stretch.first, stretch.first + samples)
            self.waiting[0] = self.part(part.last, stretch.last)
        self.running.add(part)
        return part

    def give_back(self, part: Part) -> None:
        """Put an unfinished part with the waiting ones, joined to its neighbours."""
        self.running.discard(part)
        stretches = sorted([*self.waiting, part])
        joined = stretches[:1]
        for stretch in stretches[1:]:
            if stretch.first == joined[-1].last:
                joined[-1] = self.part(joined[-1].first, stretch.last)
            else:
                joined.append(stretch)
        self.waiting = joined

    def give_up(self, part: Part) -> None:
        """A part that will not be scored, wherever it is."""
        for place in (self.running, self.retrying, self.outputs):
            place.discard(part)
        if part in self.waiting:
            self.waiting.remove(part)
        self.failed.add(part)

    def part(self, first: int, last: int) -> Part:
        """A stretch of this dataset for this checkpoint."""
        return Part(checkpoint=self.checkpoint.name, dataset=self.dataset.name, first=first, last=last)


def open_pool(checkpoint: Checkpoint, dataset: Dataset, prior: Prior, inferred: set[Part], scored: set[Part]) -> Pool:
    """The pool at the start of a run, less what an earlier run has kept."""
    pool = Pool(checkpoint=checkpoint, dataset=dataset, prior=prior, planned=prior)
    kept: list[Part] = []
    # Scores first: outputs that overlap them were written again after a crash and are of no more use.
    for part in [*sorted(scored), *sorted(inferred - scored)]:
        whole = dataset.splittable or part.samples == dataset.samples
        inside = 0 <= part.first < part.last <= dataset.samples
        if whole and inside and all(part.last <= other.first or other.last <= part.first for other in kept):
            kept.append(part)
            (pool.scored if part in scored else pool.outputs).add(part)
    at = 0
    for part in sorted(kept):
        if part.first > at:
            pool.give_back(pool.part(at, part.first))
        at = part.last
    if at < dataset.samples:
        pool.give_back(pool.part(at, dataset.samples))
    pool.fresh = pool.num_waiting
    return pool

"""The position of each rank of a job: its coordinates, its host and GPU, and its groups."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from prism.simulate.plans.job import Job

Ints = NDArray[np.int64]


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupSet:
    """Equal-sized groups of one purpose: the slot programs call them by, the kind of traffic, one row of ranks each."""

    slot: str
    kind: str
    ranks: Ints


@dataclass(frozen=True, slots=True, kw_only=True)
class RankLayout:
    """All ranks of a job."""

    job: Job
    host: Ints
    local: Ints
    grid: Ints  # ranks by [pp, dp, cp, tp]
    groups: tuple[GroupSet, ...]

    @property
    def stage(self) -> Ints:
        """The pipeline stage of each rank."""
        return self._index(0)

    @property
    def replica(self) -> Ints:
        """The data-parallel index of each rank."""
        return self._index(1)

    def crosses_hosts(self, slot: str) -> bool:
        """Whether any group of a slot spans hosts."""
        return any(bool((self.host[g.ranks] != self.host[g.ranks[:, :1]]).any()) for g in self.groups if g.slot == slot)

    def has(self, slot: str) -> bool:
        """Whether the job has groups of more than one rank in a slot."""
        return any(g.slot == slot for g in self.groups)

    def _index(self, axis: int) -> Ints:
        index = np.indices(self.grid.shape)[axis]
        out = np.empty(self.grid.size, np.int64)
        out[self.grid.ravel()] = index.ravel()
        return out


def lay_out(job: Job, host: Ints, local: Ints) -> RankLayout:
    """Number the ranks in the job's order, and form its groups."""
    sizes = {"tp": job.tp, "cp": job.cp, "dp": job.dp, "pp": job.pp}
    dims = job.order.split("-")
    grid = np.arange(job.num_gpus).reshape([sizes[d] for d in reversed(dims)])
    place = {d: axis for axis, d in enumerate(reversed(dims))}
    grid = grid.transpose([place[d] for d in ("pp", "dp", "cp", "tp")])
    groups = tuple(g for g in _form_groups(job, grid) if g.ranks.shape[1] > 1)
    return RankLayout(job=job, host=host, local=local, grid=grid, groups=groups)


def _form_groups(job: Job, grid: Ints) -> list[GroupSet]:
    pp, dp, cp, tp = grid.shape
    # Gradients are summed over data and context parallel ranks, because both processed different tokens.
    replicas = grid.transpose(0, 3, 1, 2).reshape(pp * tp, dp * cp)
    experts = grid.reshape(pp, dp // job.ep, job.ep, cp, tp)
    found = [
        GroupSet(slot="tp", kind="tp", ranks=grid.reshape(-1, tp)),
        GroupSet(slot="cp", kind="cp", ranks=grid.transpose(0, 1, 3, 2).reshape(-1, cp)),
        GroupSet(slot="dp", kind="dp", ranks=replicas),
        GroupSet(slot="ep", kind="ep", ranks=experts.transpose(0, 1, 3, 4, 2).reshape(-1, job.ep)),
        GroupSet(slot="world", kind="unknown", ranks=grid.reshape(1, -1)),
    ]
    if job.ep > 1:
        apart = experts.transpose(0, 2, 4, 1, 3).reshape(pp * job.ep * tp, -1)
        found.append(GroupSet(slot="expert_dp", kind="dp", ranks=apart))
    if job.sharding == "hsdp":
        blocks = replicas.reshape(pp * tp, -1, job.shard_ranks)
        found.append(GroupSet(slot="shard", kind="dp", ranks=blocks.reshape(-1, job.shard_ranks)))
        found.append(GroupSet(slot="copies", kind="dp", ranks=blocks.transpose(0, 2, 1).reshape(-1, blocks.shape[1])))
    if pp > 1:
        last = pp if job.num_chunks > 1 else pp - 1
        for stage in range(last):
            pair = np.stack([grid[stage].ravel(), grid[(stage + 1) % pp].ravel()], axis=1)
            found.append(GroupSet(slot=f"pp{stage}", kind="pp", ranks=pair))
        if job.model.tied:
            tie = np.stack([grid[0].ravel(), grid[-1].ravel()], axis=1)
            found.append(GroupSet(slot="embedding", kind="embedding", ranks=tie))
    return found

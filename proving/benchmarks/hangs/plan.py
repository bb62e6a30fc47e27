"""A case by its seed: how many ranks, which groups, what goes wrong, who does it, when and in which group."""

from __future__ import annotations

import random
from dataclasses import dataclass, field

KINDS = ("stop", "sleep", "die", "raise", "skip", "other", "size", "file", "gil", "deadlock")
"""What goes wrong.

stop: SIGSTOP. sleep: the rank sleeps. die: SIGKILL. raise: the rank's own code raises. skip: a collective is left out.
other: another collective is called. size: a tensor of another size is sent. file: the rank waits for a file that never
comes. gil: native code holds the interpreter's lock. deadlock: the rank calls the collectives of two groups in another
order than its peers.
"""
LAYOUTS = {
    2: ((2, 1, 1), (1, 2, 1), (1, 1, 2)),
    4: ((4, 1, 1), (2, 2, 1), (2, 1, 2), (1, 2, 2)),
    6: ((3, 2, 1), (3, 1, 2), (6, 1, 1)),
    8: ((2, 2, 2), (4, 2, 1), (4, 1, 2), (8, 1, 1)),
    12: ((3, 2, 2), (6, 2, 1), (3, 4, 1)),
    16: ((4, 2, 2), (2, 4, 2), (2, 2, 4), (8, 2, 1)),
}  # (dp, tp, pp) of as many ranks
_MISSING = 0.1  # share of the dumps that are lost


@dataclass(frozen=True, slots=True, kw_only=True)
class Op:
    """One communication of a step: all ranks of a group sum so many numbers, or pass them along a pipeline."""

    group: str
    call: str  # all_reduce, send or recv
    numel: int
    peer: int = -1  # of send and recv


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """All that a case is made of; ranks run the same steps until the victim comes to its operation."""

    seed: int
    kind: str
    dp: int
    tp: int
    pp: int
    victim: int
    step: int
    at: int  # operation of the victim's step
    step_ms: int
    missing: tuple[int, ...]  # ranks whose dumps are lost
    groups: dict[str, tuple[int, ...]] = field(default_factory=dict)

    @property
    def world_size(self) -> int:
        """Ranks."""
        return self.dp * self.tp * self.pp

    def list_ops(self, rank: int) -> list[Op]:
        """What a rank does in a step: forward and backward with tensor and pipeline traffic, gradients, the loss."""
        place = _place(rank, self.dp, self.tp)
        layers = range(2 if self.tp > 1 else 0)
        ops = [Op(group=_name(self.groups, "tp", rank), call="all_reduce", numel=64 + layer) for layer in layers]
        stride = self.dp * self.tp
        if self.pp > 1 and place[2] > 0:
            ops.insert(0, Op(group="world", call="recv", numel=96, peer=rank - stride))
        if self.pp > 1 and place[2] < self.pp - 1:
            ops.append(Op(group="world", call="send", numel=96, peer=rank + stride))
        if self.dp > 1:
            ops += [Op(group=_name(self.groups, "dp", rank), call="all_reduce", numel=n) for n in (1024, 512)]
        ops.append(Op(group="world", call="all_reduce", numel=1))
        return ops


def _place(rank: int, dp: int, tp: int) -> tuple[int, int, int]:
    """The replica, the tensor shard and the stage of a rank: tensor ranks are neighbours, stages are far apart."""
    return rank // tp % dp, rank % tp, rank // (tp * dp)


def _name(groups: dict[str, tuple[int, ...]], kind: str, rank: int) -> str:
    return next(name for name, ranks in groups.items() if name.startswith(kind) and rank in ranks)


def form_groups(dp: int, tp: int, pp: int) -> dict[str, tuple[int, ...]]:
    """Groups of more than one rank, by name; the group of all ranks is called world."""
    world = range(dp * tp * pp)
    keyed: dict[str, list[int]] = {}
    for rank in world:
        replica, shard, stage = _place(rank, dp, tp)
        keyed.setdefault(f"tp_{stage}_{replica}", []).append(rank)
        keyed.setdefault(f"dp_{stage}_{shard}", []).append(rank)
    return {"world": tuple(world), **{name: tuple(ranks) for name, ranks in sorted(keyed.items()) if len(ranks) > 1}}


def draw_case(seed: int) -> Case:
    """The case of a seed."""
    rng = random.Random(seed)
    kind = KINDS[seed // 2 % len(KINDS)]  # as many of each in either half
    sizes = [n for n in LAYOUTS if kind != "deadlock" or n > 2]
    size = rng.choice(sizes)
    dp, tp, pp = rng.choice(LAYOUTS[size])
    case = Case(
        seed=seed, kind=kind, dp=dp, tp=tp, pp=pp, victim=rng.randrange(size), step=rng.randrange(3, 12), at=0,
        step_ms=rng.randrange(5, 25), missing=tuple(r for r in range(size) if rng.random() < _MISSING),
        groups=form_groups(dp, tp, pp),
    )  # fmt: skip
    at = rng.choice(_list_places(case))
    return Case(**{name: getattr(case, name) for name in Case.__dataclass_fields__} | {"at": at})


def _list_places(case: Case) -> list[int]:
    """Operations at which the kind can go wrong: calls that differ need a collective, a deadlock one before another."""
    ops = case.list_ops(case.victim)
    if case.kind in ("skip", "other", "size"):
        return [i for i, op in enumerate(ops) if op.call == "all_reduce"]
    if case.kind == "deadlock":
        return [len(ops) - 2]  # before the collective of all ranks, which the victim calls first
    return list(range(len(ops)))

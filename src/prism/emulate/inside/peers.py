"""Values of other ranks: real bytes of the live ones, the twin's or the own for the rest."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from prism.emulate.inside import contents
from prism.emulate.inside.recorder import find_source
from prism.emulate.inside.session import Session

Settle = Callable[[], None]

# Pairs, not a dict: c10d's ReduceOp equals its members but does not hash like them.
_REDUCERS: tuple[tuple[Any, Callable[..., Tensor]], ...] = (
    (dist.ReduceOp.MAX, torch.amax),
    (dist.ReduceOp.MIN, torch.amin),
    (dist.ReduceOp.PRODUCT, torch.prod),
)


class Peers:
    """The other members of one group."""

    def __init__(self, session: Session, ranks: Sequence[int], position: int, name: str) -> None:
        self.name = name
        self._session = session
        self._ranks = ranks
        self._position = position
        self._live = self._find_live()
        self._last_sent: dict[int, bytes] = {}

    @property
    def are_several(self) -> bool:
        """Whether live members of the group have to exchange values."""
        return len(self._live) > 1

    def _find_live(self) -> list[int]:
        plan = self._session.plan
        if plan.discover or self._session.exchange is None:
            return []
        inside = self._ranks if isinstance(self._ranks, range) else set(self._ranks)
        return [r for r in plan.live_ranks if r in inside]

    def come(self, kind: str, peer: int) -> Callable[[], None] | None:
        """Tell the live members that this rank has come to a call; returns the wait for them, where there is one."""
        session, exchange = self._session, self._session.exchange
        if not session.in_step or exchange is None or session.step == 0:  # start-up is not measured
            return None
        if kind in ("send", "recv"):
            if self._ranks[peer] not in self._live:
                return None
            ends = (self._position, peer) if kind == "send" else (peer, self._position)
            channel = f"meet/{self._channel(*ends)}"
            meeting, needed = f"{channel}#{session.number(channel)}", 1
        else:
            meeting, needed = f"meet/{self.name}#{session.number(f'meet/{self.name}')}", len(self._live)
        if needed > 1 or kind == "send":
            exchange.arrive(meeting)
        # A send leaves without its receiver.
        return None if kind == "send" or self._live == [session.plan.rank] else partial(session.join, meeting, needed)

    # Collectives among the live members.

    def gather(self, own: Tensor, slots: list[Tensor]) -> Settle:
        """Post the own bytes now; fill the slots when the program looks."""
        number, where = self._post("gather", own), find_source()
        return partial(self._fill, number, where, own, slots)

    def reduce(self, own: Tensor, op: Any) -> Settle:
        """Post the own value now; reduce all members' values when the program looks."""
        number, where = self._post("reduce", own), find_source()
        return partial(self._reduce, number, where, own, op)

    def _fill(self, number: int, where: str, own: Tensor, slots: list[Tensor]) -> None:
        values = self._live_values("gather", number, where)
        for rank, slot in zip(self._ranks, slots, strict=False):
            raw = values.get(self._twin(rank))
            if raw is None or len(raw) != contents.size_of(slot):
                contents.exchange_into(slot, own)
            else:
                _load(slot, raw)

    def _reduce(self, number: int, where: str, own: Tensor, op: Any) -> None:
        values = self._live_values("reduce", number, where)
        twins = Counter(self._twin(rank) for rank in self._ranks)
        mine = values[self._session.plan.rank]
        rows = torch.stack([_as_tensor(values.get(twin, mine), own) for twin in twins])
        if op == dist.ReduceOp.SUM or op == dist.ReduceOp.AVG:
            counts = torch.tensor(list(twins.values()), dtype=torch.float64).view(-1, *[1] * own.dim())
            total = (rows.to(torch.float64) * counts).sum(0)
            own.copy_(total / len(self._ranks) if op == dist.ReduceOp.AVG else total)
        for known, reduce in _REDUCERS:
            if op == known:
                own.copy_(reduce(rows, dim=0))

    def _live_values(self, what: str, number: int, where: str) -> dict[int, bytes]:
        """What each live member posted to this call."""
        assert self._session.exchange is not None
        values = {r: self._session.exchange.get(f"{self.name}/{what}/{r}", number, r, where) for r in self._live}
        return {rank: raw for rank, raw in values.items() if raw is not None}

    def _twin(self, rank: int) -> int:
        return rank if rank in self._live else self._session.stands_for(rank)

    def _post(self, what: str, own: Tensor) -> int:
        number = self._session.number(f"{self.name}/{what}")
        if self._session.exchange is not None:
            self._session.exchange.post(f"{self.name}/{what}/{self._session.plan.rank}", number, _dump(own))
        return number

    # One source.

    def broadcast(self, tensor: Tensor, root: int) -> Settle | None:
        """The root posts; others fetch when the program looks."""
        exchange = self._session.exchange
        number = self._session.number(f"{self.name}/broadcast")
        if root == self._position and exchange is not None:
            exchange.post(f"{self.name}/broadcast/{self._ranks[root]}", number, _dump(tensor))
        return self._from_root(f"{self.name}/broadcast/{self._ranks[root]}", number, root, tensor)

    def scatter(self, output: Tensor, chunks: list[Tensor], root: int) -> Settle | None:
        """The root posts every member's chunk that may be asked for; others fetch theirs."""
        exchange, plan = self._session.exchange, self._session.plan
        number = self._session.number(f"{self.name}/scatter")
        if root == self._position and exchange is not None:
            for rank, chunk in zip(self._ranks, chunks, strict=True):
                if plan.discover or rank in self._live:
                    exchange.post(f"{self.name}/scatter/{rank}", number, _dump(chunk))
        return self._from_root(f"{self.name}/scatter/{plan.rank}", number, root, output)

    def _from_root(self, channel: str, number: int, root: int, tensor: Tensor) -> Settle | None:
        plan, source = self._session.plan, self._ranks[root]
        if self._session.exchange is None or root == self._position:
            return None
        if not (plan.discover or source in plan.live_ranks):
            return None
        self._session.touch(source)
        return partial(self._fetch, channel, number, source, find_source(), tensor)

    # Messages.

    def send(self, tensor: Tensor, target: int) -> None:
        """Leave a message for one member."""
        raw = _dump(tensor)
        self._last_sent[len(raw)] = raw
        if self._session.exchange is not None:
            channel = self._channel(self._position, target)
            self._session.exchange.post(channel, self._session.number(channel), raw)

    def receive(self, tensor: Tensor, source: int) -> Settle | None:
        """Fetch a message when the program looks; None where the sender is virtual and nothing alike was sent."""
        rank, plan = self._ranks[source], self._session.plan
        if self._session.exchange is None or not (plan.discover or rank in plan.live_ranks):
            raw = self._last_sent.get(contents.size_of(tensor))
            return partial(_load, tensor, raw) if raw is not None else None
        channel = self._channel(source, self._position)
        return partial(self._fetch, channel, self._session.number(channel), rank, find_source(), tensor)

    def _channel(self, source: int, target: int) -> str:
        return f"{self.name}/{self._ranks[source]}>{self._ranks[target]}"

    def _fetch(self, channel: str, number: int, owner: int, where: str, tensor: Tensor) -> None:
        assert self._session.exchange is not None
        raw = self._session.exchange.get(channel, number, owner, where)
        if raw is None:
            contents.fill_pattern(tensor)
        else:
            _load(tensor, raw)

    # Mixture of experts.

    def route(self, output: Tensor, own: Tensor) -> None:
        """Counts of what peers send here: the own total, shared out over its places as the routing says."""
        plan, total, places = self._session.plan, float(own.sum()), output.numel()
        weights = [1.0] * places
        if plan.routing == "zipf":
            total *= self._popularity()
        elif plan.routing == "recorded" and sum(plan.routing_counts) > 0:
            owned = self._owned_counts()
            # Each sender fills equally many places, one per expert here where the program counts by expert.
            per_sender = max(places // len(self._ranks), 1)
            shares_of_one = owned if len(owned) == per_sender else [sum(owned) / per_sender] * per_sender
            weights = [float(shares_of_one[i % per_sender]) for i in range(places)]
            total *= sum(owned) / sum(plan.routing_counts) * len(self._ranks)
        shares = contents.spread_evenly(round(total), weights) if sum(weights) > 0 else [0] * places
        output.view(-1).copy_(torch.tensor(shares, dtype=output.dtype))

    def _owned_counts(self) -> Sequence[float]:
        """The file counts tokens of every expert; this member owns an equal, consecutive part of them."""
        counts, size = self._session.plan.routing_counts, len(self._ranks)
        if len(counts) < size:  # several members share an expert
            return [counts[self._position * len(counts) // size] * len(counts) / size]
        return counts[self._position * len(counts) // size : (self._position + 1) * len(counts) // size]

    def _popularity(self) -> float:
        """How much more than an even part this member gets when popularity falls with its position."""
        size, power = len(self._ranks), self._session.plan.zipf_exponent
        whole = sum((p + 1) ** -power for p in range(size))
        return float((self._position + 1) ** -power / whole * size)


def _dump(tensor: Tensor) -> bytes:
    return bytes(tensor.detach().cpu().contiguous().view(-1).view(torch.uint8).numpy().tobytes())


def _as_tensor(raw: bytes, like: Tensor) -> Tensor:
    flat = torch.frombuffer(bytearray(raw), dtype=like.dtype) if raw else torch.empty(0, dtype=like.dtype)
    return flat.view(like.shape)


def _load(tensor: Tensor, raw: bytes) -> None:
    """Put bytes into a tensor; a message of another size is left for the verifier to report."""
    if len(raw) != contents.size_of(tensor):
        raise RuntimeError(f"received {len(raw)} bytes where {contents.size_of(tensor)} were expected")
    with torch.no_grad():
        tensor.copy_(_as_tensor(raw, tensor))

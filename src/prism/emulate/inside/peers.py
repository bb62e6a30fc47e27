"""Values of other ranks: real bytes of the live ones, the twin's or the own for the rest."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor

from prism.emulate.inside import contents
from prism.emulate.inside.recorder import find_source
from prism.emulate.inside.session import Session
from prism.emulate.inside.shares import join_shares

Settle = Callable[[], object]


# A member of a small group may be started only later, because another rank needs it.
_SMALL_GROUP = 64


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
        """Whether values of other members can be had."""
        known = self._session.plan.recorded or len(self._live) > 1
        return known and self._session.exchange is not None and len(self._ranks) > 1

    def _find_live(self) -> list[int]:
        plan = self._session.plan
        if self._session.exchange is None:
            return []
        inside = self._ranks if isinstance(self._ranks, range) else set(self._ranks)
        return [r for r in plan.live_ranks if r in inside]

    def announce(self, kind: str, peer: int, tag: int) -> Callable[[], None] | None:
        """Tell the live members that this rank has reached a call; returns the wait for them, if there is one."""
        session, exchange = self._session, self._session.exchange
        if not session.in_step or exchange is None or session.step == 0:  # start-up is not measured
            return None
        if kind in ("send", "recv"):
            if self._ranks[peer] not in self._live:
                return None
            ends = (self._position, peer) if kind == "send" else (peer, self._position)
            channel = f"meet/{self._channel(*ends, tag)}"
            meeting, needed = f"{channel}#{session.number(channel)}", 1
        else:
            meeting, needed = f"meet/{self.name}#{session.number(f'meet/{self.name}')}", len(self._live)
        if needed > 1 or kind == "send":
            exchange.arrive(meeting)
        # A send leaves without its receiver.
        return None if kind == "send" or self._live == [session.plan.rank] else partial(session.join, meeting, needed)

    # Collectives among the live members.

    def gather(self, own: Tensor, slots: list[Tensor]) -> Settle:
        """Give the own bytes now; fill the slots when the program looks."""
        return partial(self._fill, self._give(_kind("gather", own), own), find_source(), own, slots)

    def meet(self) -> Settle:
        """Say that this member has reached a barrier; wait for the others when the program does."""
        number, where = self._give("barrier", torch.empty(0)), find_source()

        def settle() -> None:
            self._collect("barrier", number, where)

        return settle

    def give_to(self, own: Tensor) -> None:
        """The own part of a gather that another member receives."""
        self._give(_kind("gather", own), own)

    def reduce(self, own: Tensor, op: Any) -> Settle:
        """Give the own value now; reduce all members' values when the program looks."""
        return partial(self._reduce, self._give("reduce", own), find_source(), own, op)

    def reduce_part(self, output: Tensor, parts: Sequence[Tensor], op: Any) -> Settle:
        """Give the parts for all members now; reduce the own one when the program looks."""
        whole = torch.cat([part.detach().reshape(-1) for part in parts])
        settle = self.reduce(whole, op)

        def take() -> None:
            settle()
            output.copy_(torch.split(whole, [part.numel() for part in parts])[self._position].view(output.shape))

        return take

    def give_to_root(self, own: Tensor) -> None:
        """The own value of a reduction that another member receives."""
        self._give("reduce", own)

    def _fill(self, number: int, where: str, own: Tensor, slots: list[Tensor]) -> None:
        parts = self._collect(_kind("gather", own), number, where)
        for raw, slot in zip(parts, slots, strict=False):
            size = contents.size_of(slot)
            if raw is not None and slot.dtype == torch.uint8:
                raw = raw[:size].ljust(size, b"\0")  # an object, padded to the longest of the members that ran with it
            if raw is None or len(raw) != size:
                contents.exchange_into(slot, own)
            else:
                _load(slot, raw)

    def _reduce(self, number: int, where: str, own: Tensor, op: Any) -> None:
        mine = _dump(own)
        size = len(mine)
        parts = Counter(
            raw if raw is not None and len(raw) == size else mine for raw in self._collect("reduce", number, where)
        )
        contents.combine_into(own, torch.stack([_as_tensor(raw, own) for raw in parts]), list(parts.values()), op)

    def _collect(self, what: str, number: int, where: str) -> list[bytes | None]:
        """Each member's part: its own where it is live or recorded, else that of the rank that stands for it."""
        assert self._session.exchange is not None
        members = list(self._ranks)
        distinct, which = self._session.exchange.collect(f"{self.name}/{what}", number, members, where)
        parts: list[bytes | None] = [distinct[i] if i >= 0 else None for i in which]
        if None not in parts:
            return parts
        known = dict(zip(members, parts, strict=True))
        return [part if part is not None else known.get(self._session.stands_for(rank)) for rank, part in known.items()]

    def _give(self, what: str, own: Tensor) -> int:
        number = self._session.number(f"{self.name}/{what}")
        if self._session.exchange is not None:
            self._session.exchange.give(f"{self.name}/{what}", number, _dump(own))
        return number

    def exchange(self, outputs: Sequence[Tensor], parts: Sequence[Tensor], fall_back: Settle) -> Settle:
        """Give each member its part of an all-to-all now; fill the outputs when the program looks.

        Outputs that are larger than what came, because their sizes were made up, repeat it: indices stay valid.
        """
        channel = f"{self.name}/exchange"
        number, where = self._session.number(channel), find_source()
        assert self._session.exchange is not None
        self._session.exchange.give(channel, number, join_shares([_dump(part) for part in parts]))

        def settle() -> None:
            assert self._session.exchange is not None
            found = self._session.exchange.swap(channel, number, list(self._ranks), self._position, where)
            like = parts[0]
            received = [torch.frombuffer(bytearray(raw), dtype=like.dtype) if raw else None for raw in found]
            known = [values for values in received if values is not None]
            if None in found or not known:
                fall_back()
                return
            for output, values in zip(outputs, received, strict=True):
                if output.numel():
                    contents.repeat_into(output, values if values is not None else torch.cat(known))

        return settle

    # One source.

    def broadcast(self, tensor: Tensor, root: int) -> Settle | None:
        """The root posts; others fetch when the program looks."""
        exchange = self._session.exchange
        channel = f"{self.name}/{_kind('broadcast', tensor)}/{self._ranks[root]}"
        number = self._session.number(channel)
        if root == self._position and exchange is not None:
            exchange.post(channel, number, _dump(tensor))
        return self._from_root(channel, number, root, tensor)

    def scatter(self, output: Tensor, chunks: list[Tensor], root: int) -> Settle | None:
        """The root posts every member's chunk that may be asked for; others fetch theirs."""
        exchange, plan = self._session.exchange, self._session.plan
        channel = f"{self.name}/{_kind('scatter', output)}"
        number = self._session.number(channel)
        if root == self._position and exchange is not None:
            for rank, chunk in zip(self._ranks, chunks, strict=True):
                if rank in self._live or len(self._ranks) <= _SMALL_GROUP:
                    exchange.post(f"{channel}/{rank}", number, _dump(chunk))
        return self._from_root(f"{channel}/{plan.rank}", number, root, output)

    def _from_root(self, channel: str, number: int, root: int, tensor: Tensor) -> Settle | None:
        if self._session.exchange is None or root == self._position:
            return None
        return partial(self._fetch, channel, number, self._ranks[root], find_source(), tensor)

    # Messages.

    def send(self, tensor: Tensor, target: int, tag: int) -> None:
        """Leave a message for one member: real bytes where they may be read, else the mere fact that it was sent."""
        raw = _dump(tensor) if contents.is_control(tensor) else b""
        if raw:
            self._last_sent[len(raw)] = raw
        if self._session.exchange is not None:
            channel = self._channel(self._position, target, tag)
            self._session.exchange.post(channel, self._session.number(channel), raw)

    def receive(self, tensor: Tensor, source: int, tag: int) -> Settle | None:
        """Fetch a message when the program looks; None if this rank runs alone and sent nothing of that size."""
        if self._session.exchange is None:
            raw = self._last_sent.get(contents.size_of(tensor))
            return partial(_load, tensor, raw) if raw is not None else None
        channel = self._channel(source, self._position, tag)
        number = self._session.number(f"received of {channel}")  # a rank may send to itself
        return partial(self._fetch, channel, number, self._ranks[source], find_source(), tensor)

    def _channel(self, source: int, target: int, tag: int) -> str:
        return f"{self.name}/{self._ranks[source]}>{self._ranks[target]}/{tag}"

    def _fetch(self, channel: str, number: int, owner: int, where: str, tensor: Tensor) -> None:
        assert self._session.exchange is not None
        read = contents.is_control(tensor)
        raw = self._session.exchange.get(channel, number, owner, where, needed=read)
        if not read:
            return
        if raw is None:
            raw = self._last_sent.get(contents.size_of(tensor))
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


def _kind(what: str, tensor: Tensor) -> str:
    """Objects have channels of their own: the last one recorded must not answer for the size that goes before it."""
    return f"{what} object" if tensor.dtype == torch.uint8 else what


def _dump(tensor: Tensor) -> bytes:
    # A storage that numpy has seen can no longer be resized, which FSDP does to free it; so numpy sees a copy.
    copied = tensor.detach().cpu().contiguous().view(-1).view(torch.uint8).clone()
    return bytes(copied.numpy().tobytes())


def _as_tensor(raw: bytes, like: Tensor) -> Tensor:
    flat = torch.frombuffer(bytearray(raw), dtype=like.dtype) if raw else torch.empty(0, dtype=like.dtype)
    return flat.view(like.shape)


def _load(tensor: Tensor, raw: bytes) -> None:
    """Put bytes into a tensor. A message of another size leaves it as it is.

    That is what an earlier, shorter run of an absent rank may have left for this number; between ranks that run, the
    comparison of their calls reports the sizes.
    """
    if len(raw) != contents.size_of(tensor):
        return
    with torch.no_grad():
        tensor.copy_(_as_tensor(raw, tensor))

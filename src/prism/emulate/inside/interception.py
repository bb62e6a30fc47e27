"""Put Prism's groups where the program asks torch for nccl or gloo ones."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from datetime import timedelta
from typing import Any
from urllib.parse import parse_qs, urlparse

import torch
import torch.distributed as dist
import torch.distributed.distributed_c10d as c10d

from prism.emulate.inside.process_group import VirtualGroup
from prism.emulate.inside.recorder import GroupEntry, find_source
from prism.emulate.inside.session import Session, UnsupportedError
from prism.emulate.inside.shared_store import SharedStore

BACKEND = "prism"
_STORES: list[SharedStore] = []
"""C++ holds the stores by their C++ half alone, so the Python half has to be kept alive here."""


def intercept(session: Session) -> None:
    """Patch torch's creation functions before the user's script imports them."""
    dist.Backend.register_backend(BACKEND, _refuse_direct_use, extended_api=True, devices=["cpu", "cuda"])
    c10d.rendezvous = _make_rendezvous(session)  # type: ignore[attr-defined]
    c10d._new_process_group_helper = _wrap_creation(session, c10d._new_process_group_helper)
    for name, function in (
        ("split_group", _make_split(session)),
        ("_set_pg_timeout", _set_timeout),
        ("batch_isend_irecv", _wrap_batch(session, c10d.batch_isend_irecv)),
        ("TCPStore", lambda *args, **kwargs: _make_store(session, f"tcp {args[:2]}/")),
        ("FileStore", lambda *args, **kwargs: _make_store(session, f"file {args[:1]}/")),
    ):
        setattr(c10d, name, function)
        setattr(dist, name, function)
    c10d._check_single_backend_availability = lambda backend_name: True
    for name in ("is_nccl_available", "is_gloo_available"):
        setattr(c10d, name, _yes)
        setattr(dist, name, _yes)


def _set_timeout(timeout: timedelta, group: Any = None) -> None:
    """c10d's own asks for the class of the real backends."""
    chosen: Any = group or dist.group.WORLD
    chosen.set_timeout(timeout)


def _yes() -> bool:
    return True


def _refuse_direct_use(options: Any, backend_options: Any) -> VirtualGroup:
    raise UnsupportedError("the backend 'prism' is chosen by `prism emulate`; ask for nccl or gloo in the script")


def _make_rendezvous(session: Session) -> Callable[..., Iterator[tuple[Any, int, int]]]:
    """A rendezvous that needs no other process; live ranks share their store."""

    def meet(url: str, rank: int = -1, world_size: int = -1, **kwargs: Any) -> Iterator[tuple[Any, int, int]]:
        query = {k: int(v[0]) for k, v in parse_qs(urlparse(url).query).items() if v[0].isdecimal()}
        rank = rank if rank >= 0 else query.get("rank", int(os.environ["RANK"]))
        world_size = world_size if world_size > 0 else query.get("world_size", int(os.environ["WORLD_SIZE"]))
        yield _make_store(session), rank, world_size

    return meet


def _make_store(session: Session, prefix: str = "") -> Any:
    if session.exchange is None:
        return dist.HashStore()  # type: ignore[attr-defined]
    store = SharedStore(session.exchange, prefix)
    _STORES.append(store)
    return store


def _wrap_creation(session: Session, create: Callable[..., Any]) -> Callable[..., Any]:
    """c10d's own helper keeps the books; only the group it makes is ours, under the name that was asked for."""
    plugin = dist.Backend._plugins[BACKEND.upper()]

    def new_group(
        group_size: int, group_rank: int | None, ranks: list[int], backend: Any, store: Any, name: Any,
        *args: Any, **kwargs: Any,
    ) -> Any:  # fmt: skip
        members: Sequence[int] = ranks or range(group_size)
        label = kwargs.get("group_desc") or ""
        session.recorder.groups.append(GroupEntry(str(name), label, find_source(), tuple(members) if ranks else ()))
        timeout = kwargs.get("timeout")
        kind = _backend_of(str(backend))

        def make(options: Any, backend_options: Any) -> VirtualGroup:
            return VirtualGroup(session, options.group_rank, members, str(name), kind, timeout or timedelta(minutes=30))

        dist.Backend._plugins[BACKEND.upper()] = plugin._replace(creator_fn=make, extended_api=True)
        # A bound device would make c10d split real communicators.
        kwargs.pop("device_id", None)
        kwargs.pop("backend_options", None)
        group, kept_store = create(group_size, group_rank, ranks, dist.Backend(BACKEND), store, name, *args, **kwargs)
        if isinstance(group, VirtualGroup):
            shown = (
                backend
                if str(backend) != "undefined"
                else dist.Backend("nccl" if torch.cuda.is_available() else "gloo")
            )
            c10d._world.pg_map[group] = (shown, kept_store)
            c10d._world.pg_backend_config[group] = str(c10d.BackendConfig(shown))
        return group, kept_store

    return new_group


def _backend_of(backend: str) -> str:
    """The one that carries the tensors of this machine's device, of a string such as cpu:gloo,cuda:nccl."""
    if "nccl" in backend and (torch.cuda.is_available() or "gloo" not in backend):
        return "nccl"
    return "gloo" if "gloo" in backend or not torch.cuda.is_available() else "nccl"


def _make_split(session: Session) -> Callable[..., Any]:
    """Splits are new groups: nothing has to be carved out of a communicator."""

    def split_group(
        parent_pg: Any = None,
        split_ranks: list[list[int]] | None = None,
        timeout: timedelta | None = None,
        pg_options: Any = None,
        group_desc: str | None = None,
        **kwargs: Any,
    ) -> Any:
        if not split_ranks:
            raise ValueError("split_ranks cannot be None or empty")
        parent: Any = parent_pg or dist.group.WORLD
        to_global = dist.get_process_group_ranks(parent)
        mine = None
        for part in split_ranks:
            group = dist.new_group([to_global[i] for i in part], timeout=timeout, group_desc=group_desc)
            if parent.rank() in part:
                mine = group
        return mine

    return split_group


def _wrap_batch(session: Session, plain: Callable[..., Any]) -> Callable[..., Any]:
    """Sends and receives of one batch start together."""

    def batch_isend_irecv(p2p_op_list: list[Any]) -> Any:
        session.open_batch = session.recorder.num_batches
        session.recorder.num_batches += 1
        try:
            return plain(p2p_op_list)
        finally:
            session.open_batch = -1

    return batch_isend_irecv

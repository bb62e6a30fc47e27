"""A way whose ranks are forked trainers: most of the corpus."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from launch import Ranks
from trainer import trainer
from way import Place, Way

Truth = dict[str, Any]  # reason, proof, also, restarts, host: fields of a Way


def forked(name: str, truth: Truth, *, family: str = "torch", head: str = "", setup: str = "", at: str = "",
           rank: int | None = 1, load: tuple[str, ...] = ("torch",), environment: Mapping[str, str] | None = None,
           prepare: Callable[[Place, int], None] | None = None, timeout_s: float = 12) -> Way:  # fmt: skip
    """Two ranks over gloo; `at` happens in the given rank, or in both if that is None."""
    text = trainer(name, head=head, setup=setup, at=at, rank=rank, timeout_s=timeout_s)
    file = "node-{rank}_rank_{rank}.log" if truth.get("host") else "rank_{rank}.log"
    job = Ranks(program=text, load=load, file=file, environment=environment or {}, prepare=prepare)
    return Way(name=name, family=family, make=job, rank=rank, **truth)

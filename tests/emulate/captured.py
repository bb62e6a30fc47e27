"""Captures written by hand, for tests that need no torch process."""

from __future__ import annotations

from collections.abc import Sequence

from prism.emulate.capture import Capture, CapturedEntry, CapturedGroup
from prism.emulate.inside.memory_peak import Peak


def entry(
    what: str, *, group: str = "", bytes: int = 0, gap_ns: int = 0, op: int = -1, peer: int = -1, lane: int = 0,
    batch: int = -1, sizes: tuple[int, ...] = (), source: str = "train.py:1", stream: int = 0,
    tag: int = 0,
) -> CapturedEntry:  # fmt: skip
    """One entry; synchronous unless `lane` is -1."""
    return CapturedEntry(what, stream, op, group, bytes, sizes, peer, lane, batch, source, gap_ns, tag=tag)


def capture(
    rank: int, world: int, iteration: Sequence[CapturedEntry], *, groups: Sequence[CapturedGroup] = (), times: int = 3,
    allocated: int = 1000,
) -> Capture:  # fmt: skip
    """A rank that repeats one iteration."""
    world_group = CapturedGroup("0", "default_pg", "train.py:1", ())
    step = entry("step")
    return Capture(
        rank=rank, world_size=world, status="done", reason="", wall_s=1.0, device="cpu", device_bytes=0, torch="2.13",
        threads=1, memory=Peak(allocated, 2 * allocated, "counted"), groups=(world_group, *groups),
        step_walls_ns=(), diverged=0, entries=tuple([*iteration, step] * times),
    )  # fmt: skip


def mesh(world: int, label: str, stride: int, size: int, first_name: int) -> list[CapturedGroup]:
    """All groups of one dimension of a regular mesh."""
    out = []
    for start in (r for r in range(world) if r // stride % size == 0):
        name = str(first_name + len(out))
        out.append(CapturedGroup(name, f"mesh_{label}", "train.py:2", tuple(start + i * stride for i in range(size))))
    return out

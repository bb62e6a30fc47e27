"""How collectives are timed: on memory as training has it."""

from __future__ import annotations

import resource
from collections.abc import Iterator

import pytest
import torch
import torch.distributed as dist

from prism.emulate.inside.measure import Bench
from prism.emulate.inside.measure_plan import MeasurePlan, Wanted

PAGE = 4096
SIZE = 4 << 20


@pytest.fixture
def bench() -> Iterator[Bench]:
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)  # type: ignore[attr-defined]
    try:
        wanted = tuple(Wanted(kind, 1, SIZE) for kind in ("all_gather", "reduce_scatter"))
        yield Bench(MeasurePlan(backend="gloo", wanted=wanted), {1: dist.group.WORLD})
    finally:
        dist.destroy_process_group()


def test_timed_collectives_take_no_page_faults_once_they_are_warm(bench: Bench) -> None:
    """A step of FSDP2 takes none in its collectives; faults would make up most of what small ones are said to take."""
    for _ in range(3):
        bench.time_round()
    assert min(_count_faults(bench) for _ in range(3)) < 5 * SIZE // PAGE


def _count_faults(bench: Bench) -> int:
    """Page faults of four rounds: fresh outputs would take 40 sizes' worth each time; gloo's own buffers take some.

    A kernel that is short of memory takes pages back now and then, which shows in one count and not in all of them.
    """
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    for _ in range(4):
        bench.time_round()
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before


def test_what_is_sent_was_written_just_before(bench: Bench) -> None:
    sent = [tensor for call in bench._calls for tensor in call.inputs]
    for tensor in sent:
        tensor.zero_()
    bench.time_round()
    assert all(torch.all(tensor == 1.0) for tensor in sent)

"""What collectives leave behind when only one rank is real."""

from __future__ import annotations

import pytest
import torch
import torch.distributed as dist
from hypothesis import given
from hypothesis import strategies as st

from prism.emulate.inside import contents
from prism.emulate.inside.peers import Peers
from prism.emulate.inside.plan import RunPlan
from prism.emulate.inside.session import open_session


@given(st.integers(0, 10**6), st.lists(st.floats(0.01, 100), min_size=1, max_size=40))
def test_tokens_shared_out_add_up_to_all_tokens(total: int, weights: list[float]) -> None:
    shares = contents.spread_evenly(total, weights)
    assert sum(shares) == total
    assert min(shares) >= 0


@given(st.integers(1, 5), st.integers(1, 6), st.data())
def test_a_gather_in_place_repeats_the_own_shard(shard: int, size: int, data: st.DataObject) -> None:
    position = data.draw(st.integers(0, size - 1))
    output = torch.arange(shard * size, dtype=torch.float32)
    own = output[position * shard : (position + 1) * shard]
    expected = own.clone().repeat(size)
    contents.gather_into(output, own, position)
    assert torch.equal(output, expected)


def test_patterns_are_finite_and_rows_differ() -> None:
    tensor = torch.full((64, 128), float("nan"))
    contents.fill_pattern(tensor)
    assert torch.isfinite(tensor).all()
    assert len({tuple(row.tolist()) for row in tensor}) > 32


def test_patterns_of_whole_numbers_are_valid_indices() -> None:
    tensor = torch.full((8,), -(2**40))
    contents.fill_pattern(tensor)
    assert tensor.tolist() == [0] * 8


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.int64, torch.bool])
def test_sums_of_equal_members_are_multiples(dtype: torch.dtype) -> None:
    tensor = torch.ones(3, dtype=dtype)
    contents.scale(tensor, contents.reduce_factor(dist.ReduceOp.SUM, 4))
    assert tensor.tolist() == [1 if dtype == torch.bool else 4] * 3


def test_maxima_and_averages_of_equal_members_are_the_own_value() -> None:
    assert contents.reduce_factor(dist.ReduceOp.MAX, 8) == contents.reduce_factor(dist.ReduceOp.AVG, 8) == 1


def test_large_floats_are_payload_and_small_ones_may_steer_the_program() -> None:
    assert contents.is_control(torch.zeros(1024))
    assert not contents.is_control(torch.zeros(1025))
    assert contents.is_control(torch.zeros(100_000, dtype=torch.int64))
    assert not contents.is_control(torch.zeros(1_000_000, dtype=torch.int64))


def test_an_exchange_that_grows_is_filled_to_the_end() -> None:
    output = torch.full((6,), float("nan"))
    contents.exchange_into(output, torch.tensor([1.0, 2.0]))
    assert output[:2].tolist() == [1, 2]
    assert torch.isfinite(output).all()


def test_split_sizes_count_rows_in_bytes() -> None:
    assert contents.split_bytes(torch.zeros(6, 4), [1, 5], 2) == [16, 80]
    assert contents.split_bytes(torch.zeros(6, 4), [], 3) == [32, 32, 32]


def _route(position: int, **routing: object) -> list[int]:
    """Tokens that four ranks with two experts each send to this one, which itself sends 100 to every expert."""
    plan = RunPlan(rank=position, world_size=4, gpus_per_node=4, output="", **routing)  # type: ignore[arg-type]
    output = torch.zeros(8, dtype=torch.int64)
    Peers(open_session(plan), range(4), position, "ep").route(output, torch.full((8,), 100))
    return output.tolist()


def test_balanced_routing_sends_every_expert_the_same() -> None:
    assert _route(1) == [100] * 8


def test_popular_ranks_get_more_and_all_tokens_arrive() -> None:
    totals = [sum(_route(position, routing="zipf")) for position in range(4)]
    assert totals == sorted(totals, reverse=True)
    assert sum(totals) == pytest.approx(4 * 800, abs=4)
    assert totals[0] == pytest.approx(2 * totals[1], abs=2)  # the second is half as popular as the first


def test_recorded_routing_gives_a_rank_what_its_experts_got() -> None:
    counts = (10, 20, 30, 40, 0, 0, 50, 50)  # experts 2 and 3 live on rank 1
    totals = [sum(_route(p, routing="recorded", routing_counts=counts)) for p in range(4)]
    assert totals == pytest.approx([800 * 4 * share / 200 for share in (30, 70, 0, 100)], abs=2)


def test_a_root_scatters_to_members_that_are_started_later() -> None:
    posted = []

    class Exchange:
        def post(self, channel: str, number: int, payload: bytes) -> None:
            posted.append(channel)

    plan = RunPlan(rank=0, world_size=4, gpus_per_node=4, output="", live_ranks=(0, 2))
    session = open_session(plan)
    session.exchange = Exchange()  # type: ignore[assignment]
    chunks = list(torch.arange(4.0).chunk(4))
    Peers(session, range(4), 0, "tp").scatter(chunks[0], chunks, 0)
    assert [channel.rpartition("/")[2] for channel in posted] == ["0", "1", "2", "3"]


def test_values_are_repeated_or_cut_to_the_output() -> None:
    output = torch.empty(2, 3, dtype=torch.long)
    contents.repeat_into(output, torch.tensor([4, 5]))
    assert output.tolist() == [[4, 5, 4], [5, 4, 5]]
    contents.repeat_into(output, torch.arange(9))
    assert output.view(-1).tolist() == [0, 1, 2, 3, 4, 5]

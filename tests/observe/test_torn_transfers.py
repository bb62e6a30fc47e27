"""A transfer that an idle timeout cut is put together again, and messages that only add up are left alone."""

from __future__ import annotations

import numpy as np
import polars as pl
from made_jobs import named

from prism.observe import diagnose
from prism.observe.traffic.torn_transfers import Torn, find_torn

MS = 1_000_000
HOSTS, STEPS, BUCKETS = 8, 40, 4
WHOLE, HEAD = 48_000_000, 4_000_000


def write_ring(late_host: int, *, timeout_ms: float = 10.0) -> tuple[pl.DataFrame, pl.DataFrame]:
    """Buckets of a ring all-reduce; hops whose two ends are ready send a head and wait for the late host."""
    rng = np.random.default_rng(4)
    rows, now = [], 0.0
    for _ in range(STEPS):
        for _ in range(BUCKETS):
            ready = now + 60 + rng.normal(0, 0.4, HOSTS)
            ready[late_host] += 25
            begin = ready.max()
            for src in range(HOSTS):
                dst = (src + 1) % HOSTS
                first = max(ready[src], ready[dst])
                ends = f"10.2.{src}.1", f"10.2.{dst}.1"
                done = begin + 1.5 + rng.normal(0, 0.01)
                if begin - first > timeout_ms:
                    rows += [(first, first + 0.1, *ends, HEAD), (begin, done, *ends, WHOLE - HEAD)]
                else:
                    rows.append((first, done, *ends, WHOLE))
            now = begin + 2
        now += 150
    start, end, src, dst, size = zip(*rows, strict=True)
    times = {"start_ns": start, "end_ns": end}
    flows = pl.DataFrame({k: (np.array(v) * MS).astype(np.int64) + 10**18 for k, v in times.items()}).with_columns(
        src=pl.Series(src), dst=pl.Series(dst), bytes=pl.Series(size), qp=pl.lit(7, pl.Int64)
    )
    nics = [(f"10.2.{h}.1", f"h{h}", 0, "leaf-0") for h in range(HOSTS)]
    return flows.sort("start_ns"), pl.DataFrame(nics, schema=["address", "host", "rail", "switch"], orient="row")


def test_the_late_host_is_named_though_waiting_hops_are_cut() -> None:
    found = diagnose(*write_ring(5))
    assert abs(found.jobs[0].steps.height - STEPS) <= 1
    assert [named(finding) for finding in found.findings] == [("slow_compute", "h5")]
    assert any("were joined" in note for note in found.notes)


def test_messages_that_only_add_up_are_not_joined() -> None:
    # Buckets of 10, 20 and 30 MB, one after the other: no hop of 30 MB ends when one of 20 MB does.
    count = 60
    start = (np.arange(count) * 40 * MS).astype(np.int64)
    size = np.resize(np.array([10, 20, 30]) * 1_000_000, count).astype(np.int64)
    torn = find_torn(np.zeros(count, np.int64), start, start + 2 * MS, size)
    assert not len(torn.head)


def test_two_messages_of_about_one_size_and_a_few_bytes_before_a_message_are_not_joined() -> None:
    """Chunks of a ring differ by the headers that they carry, and a transport announces what it sends."""

    def join(head: int, tail: int) -> int:
        # A hop that waits is cut in two and ends with one that began later and was not cut.
        rows = [(0, 40.0, 40.2, head), (0, 90.0, 92.0, tail), (1, 89.0, 92.0, head + tail)]
        rows = [(hop, 200.0 * i + a, 200.0 * i + b, size) for i in range(20) for hop, a, b, size in rows]
        hop, start, end, size = (np.array(column) for column in zip(*rows, strict=True))
        times = [(at * MS).astype(np.int64) for at in (start, end)]
        return len(find_torn(hop.astype(np.int64), *times, size.astype(np.int64)).head)

    assert join(100_000, 691_232) == 20
    assert join(395_328, 395_904) == 0
    assert join(288, 790_944) == 0


def test_a_transfer_that_waited_twice_is_one_of_three_parts() -> None:
    # Two ranks come one after the other: what a hop may send grows, and the rest follows with the last of them.
    rows = [(0, 10.0, 10.1, 4 * MS), (0, 40.0, 40.2, 9 * MS), (0, 90.0, 92.0, 27 * MS), (1, 89.0, 92.0, 40 * MS)]
    torn, size, joined = join_up(rows)
    assert joined == [40 * MS] * 40
    assert size[torn.part[torn.ends]].tolist() == [27 * MS] * 20
    assert not torn.slowed.any()


def join_up(rows: list[tuple[int, float, float, int]]) -> tuple[Torn, np.ndarray, list[int]]:
    """What is found in twenty times the same records (hop, start, end in ms, bytes), and the sizes once it is joined."""
    rows = [(hop, 200.0 * i + a, 200.0 * i + b, size) for i in range(20) for hop, a, b, size in rows]
    hop, start, end, size = (np.array(column) for column in zip(*rows, strict=True))
    times = [(at * MS).astype(np.int64) for at in (start, end)]
    torn = find_torn(hop.astype(np.int64), *times, size.astype(np.int64))
    whole = size.copy()
    np.add.at(whole, torn.head, size[torn.part])
    return torn, size, np.delete(whole, torn.part).tolist()


def test_a_transfer_that_waits_for_every_piece_of_a_slow_hop_is_one() -> None:
    # The slow hop sends all the time; the next one sends what it passed on, piece by piece.
    pieces = [(0, 11.0 + 9 * i, 12.0 + 9 * i, 3_700_000) for i in range(9)]
    torn, _, joined = join_up([(0, 2.0, 3.0, 6_700_000), *pieces, (1, 0.0, 85.0, 40_000_000)])
    assert joined == [40_000_000] * 40
    assert torn.slowed.all()


def test_numbers_of_sampled_packets_add_up_by_chance_and_are_not_joined() -> None:
    rows = [(k, 90.0, 92.0, k * 4_140) for k in range(2, 14)]
    assert not len(join_up([(0, 40.0, 40.2, 4 * 4_140), (0, 90.0, 92.0, 5 * 4_140), *rows])[0].part)


def test_tensors_of_one_and_two_layers_are_no_parts_of_one_of_four() -> None:
    rows = [(0, 10.0, 12.0, 790_700), (0, 40.0, 44.0, 395_900), (0, 88.0, 92.0, 396_500), (1, 88.0, 92.0, 1_583_000)]
    assert not len(join_up(rows)[0].part)


def test_torn_hops_of_a_tree_end_a_level_apart_from_others() -> None:
    # Every other one ends 1.4 ms before any whole hop; the same two parts the other way round never end with one.
    near = [(0, 10.0, 11.0, 8 * MS), (0, 40.0, 42.0, 24 * MS), (1, 38.0, 42.0, 32 * MS)]
    apart = [(0, 100.0, 101.0, 8 * MS), (0, 130.0, 132.0, 24 * MS), (1, 129.4, 133.4, 32 * MS)]
    assert join_up(near + apart)[2] == [32 * MS] * 80


def test_what_goes_with_a_whole_message_only_in_part_and_either_way_is_left_alone() -> None:
    near = [(0, 10.0, 11.0, 8 * MS), (0, 40.0, 42.0, 24 * MS), (1, 38.0, 42.0, 32 * MS)]
    turned = [(0, 70.0, 71.0, 8 * MS), (1, 69.0, 71.0, 32 * MS)]
    apart = [(0, 130.0, 132.0, 24 * MS)]
    assert not len(join_up(near + turned + apart)[0].part)

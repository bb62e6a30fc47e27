"""NCCL's own tools: RAS answers in both forms and from a socket, Inspector files, INFO logs."""

from __future__ import annotations

import json
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from prism.errors import InputError
from prism.evidence.fusion import collector
from prism.evidence.traces.inspector import find_waited_for, looks_like_inspector, read_inspector
from prism.evidence.traces.nccl_log import map_hosts, read_nccl_logs
from prism.evidence.traces.ras import find_laggards, parse_ras


def answer(counts: list[int], missing: tuple[int, ...] = ()) -> str:
    ranks = [
        {"rank": r, "host": f"10.0.0.{r}", "pid": 100 + r, "nvml_dev": 0, "collective_counts": {"AllReduce": n, "Broadcast": 1}}
        for r, n in enumerate(counts) if r not in missing
    ]  # fmt: skip
    gone = [{"rank": r, "host": f"10.0.0.{r}", "pid": 100 + r, "status": {"unresponsive": True}} for r in missing]
    return json.dumps({"communicators": [{"hash": "0xab", "size": len(counts), "ranks": ranks, "missing_ranks": gone}]})


def test_those_behind_are_named_even_where_they_are_the_majority() -> None:
    found = find_laggards(parse_ras(answer([9, 7, 7, 7]), "t"))
    assert [m.rank for m in found[0].members] == [1, 2, 3] and found[0].behind == 2


def test_a_rank_that_does_not_answer_comes_before_those_behind() -> None:
    found = find_laggards(parse_ras(answer([9, 8, 9, 0], missing=(3,)), "t"))
    assert [(m.rank, m.host) for m in found[0].members] == [(3, "10.0.0.3")] and found[0].behind is None


TEXT = """
Errors
======

INCOMPLETE
  Missing communicator data from 1 job process
  Process 3487984 on node 172.16.0.213 managing GPU 5

#0-0 (cf264af53edbe986) INCOMPLETE
  Missing communicator data from 1 rank
  The missing rank: 21

Warnings
========

#1-0 (27a079b828ff1a75) MISMATCH
  Communicator ranks have different collective operation counts
  26 ranks have launched up to operation 6650
  2 ranks have launched up to operation 6649
  Rank 0 -- GPU 0 managed by process 48 on node 172.16.0.210
  Rank 2 -- GPU 2 managed by process 49 on node 172.16.0.210
"""


def test_the_text_form_names_the_missing_rank_and_its_host() -> None:
    communicators = parse_ras(TEXT, "t")
    found = find_laggards(communicators)
    assert [(m.rank, m.host, m.gpu) for m in found[0].members] == [(21, "172.16.0.213", "5")]
    assert [m.rank for m in communicators[1].members if m.rank >= 0] == [0, 2]


@given(st.text(max_size=200) | st.recursive(st.none() | st.integers() | st.text(max_size=4), lambda i: st.lists(i, max_size=3) | st.dictionaries(st.sampled_from(["communicators", "ranks", "rank", "collective_counts", "missing_ranks"]), i, max_size=3), max_leaves=8).map(json.dumps))  # fmt: skip
def test_any_answer_ends_in_communicators_or_one_line(text: str) -> None:
    try:
        find_laggards(parse_ras(text, "t"))
    except InputError as error:
        assert "\n" not in str(error)


@contextmanager
def ras_server(status: str | None, *, knows_json: bool = True) -> Iterator[int]:
    """A server that speaks the protocol; without a status it hangs after the greeting."""
    listener = socket.create_server(("127.0.0.1", 0))

    def serve() -> None:
        link, _ = listener.accept()
        with link, link.makefile("rb") as lines:
            assert lines.readline().startswith(b"CLIENT PROTOCOL ")
            link.sendall(b"SERVER PROTOCOL 2\n")
            if status is None:
                lines.readline()
                lines.readline()  # ends when the client gives up
                return
            assert lines.readline() == b"SET FORMAT json\n"
            link.sendall(b"OK\n" if knows_json else b"ERROR: Unknown command\n")
            assert lines.readline() == b"VERBOSE STATUS\n"
            link.sendall(status.encode())

    thread = threading.Thread(target=serve)
    thread.start()
    try:
        yield listener.getsockname()[1]
    finally:
        thread.join(timeout=600)
        listener.close()


@pytest.mark.parametrize(("status", "knows_json"), [(answer([5, 4]), True), (TEXT, False)])
def test_a_server_is_asked_in_json_and_may_answer_in_text(status: str, knows_json: bool) -> None:
    with ras_server(status, knows_json=knows_json) as port:
        assert find_laggards(parse_ras(collector.ask_ras(port), "t"))


def test_a_socket_that_hangs_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(collector, "RAS_S", 0.3)
    with ras_server(None) as port:
        assert collector.ask_ras(port) == ""


def test_a_port_without_ras_says_nothing() -> None:
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    assert collector.ask_ras(port) == ""


def test_inspector_files_name_the_rank_that_the_others_wait_for(tmp_path: Path) -> None:
    for rank in range(3):
        lines = [
            {"header": {"id": "0x7", "rank": rank, "n_ranks": 3}, "metadata": {"hostname": f"n{rank}"},
             "coll_perf": {"coll": "AllReduce", "coll_sn": n, "coll_msg_size_bytes": 8, "coll_exec_time_us": 20 if rank == 1 else 90, "coll_busbw_gbs": 1.5}}
            for n in range(4)
        ]  # fmt: skip
        path = tmp_path / f"rank{rank}.log"
        path.write_text("\n".join(json.dumps(x) for x in lines) + '\n{"header": {"id": "0x')  # the process died
        assert looks_like_inspector(path)
    found = find_waited_for(read_inspector(sorted(tmp_path.iterdir())))
    assert found.row(0, named=True) == {"rank": 1, "host": "n1", "calls": 4, "last": 4, "held_us": 280.0}


def _write_inspector(path: Path, lines: list[dict[str, object]]) -> Path:
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return path


def _call(number: int, exec_us: int, timing: str = "kernel_gpu") -> dict[str, object]:
    return {
        "coll": "AllReduce", "coll_algo": "RING", "coll_proto": "SIMPLE", "coll_sn": number, "coll_msg_size_bytes": 8,
        "coll_exec_time_us": exec_us, "coll_timing_source": timing, "coll_algobw_gbs": 1.0, "coll_busbw_gbs": 1.5,
    }  # fmt: skip


def _context(rank: int, size: int, process: int, id_: str = "0x7") -> dict[str, object]:
    return {
        "header": {"id": id_, "rank": rank, "n_ranks": size, "nnodes": 2},
        "metadata": {"inspector_output_format_version": "v4.3", "hostname": f"n{process // 2}", "pid": process},
    }


def test_lines_after_a_dump_marker_belong_to_it(tmp_path: Path) -> None:
    """Format v4.3 writes who it is about once a dump."""
    paths = []
    for rank in range(3):
        marker = {**_context(rank, 3, rank), "dump_stats": {"coll_records": 2, "p2p_records": 1}}
        message = {"p2p_perf": {"p2p": "Send", "p2p_sn": 1, "p2p_peer": 0, "p2p_exec_time_us": 5}}
        calls: list[dict[str, object]] = [{"coll_perf": _call(n, 20 if rank == 2 else 90)} for n in range(2)]
        paths.append(_write_inspector(tmp_path / f"n-pid{rank}.log", [marker, message, *calls]))
        assert looks_like_inspector(paths[-1])
    read = read_inspector(paths)
    assert read.height == 6 and read["size"].to_list() == [3] * 6
    assert find_waited_for(read).row(0, named=True) == {
        "rank": 2,
        "host": "n1",
        "calls": 2,
        "last": 2,
        "held_us": 140.0,
    }


def test_the_rank_of_a_small_communicator_is_not_the_rank_of_the_job(tmp_path: Path) -> None:
    """Two pairs of four processes: rank 1 of the second pair is rank 3 of the job."""
    paths = []
    for process in range(4):
        world = {**_context(process, 4, process), "coll_perf": _call(0, 50)}
        late = {0: 90, 1: 90, 2: 90, 3: 20}[process]
        pair = [
            {**_context(process % 2, 2, process, f"0x{process // 2}"), "coll_perf": _call(n, late)} for n in range(5)
        ]
        paths.append(_write_inspector(tmp_path / f"{process}.log", [world, *pair]))
    assert find_waited_for(read_inspector(paths)).row(0, named=True)["rank"] == 3


def test_calls_that_few_ranks_wrote_or_that_other_clocks_timed_are_not_compared(tmp_path: Path) -> None:
    """Format v4.0 writes only the last call before each dump, so that most calls are known of few ranks."""
    paths = [
        _write_inspector(tmp_path / f"{r}.log", [{**_context(r, 8, r), "coll_perf": _call(7, 90 - 60 * r)}])
        for r in range(2)
    ]
    assert find_waited_for(read_inspector(paths)).is_empty()
    paths = [
        _write_inspector(
            tmp_path / f"{r}.log",
            [{**_context(r, 2, r), "coll_perf": _call(7, 90 - 60 * r, "kernel_gpu" if r else "collective_cpu")}],
        )
        for r in range(2)
    ]
    assert find_waited_for(read_inspector(paths)).is_empty()


@pytest.mark.parametrize("name", ["v100_n1", "v100_n16"])
def test_rings_trees_and_hosts_are_those_that_nccl_chose(shared_data: Path, name: str) -> None:
    truth = json.loads((shared_data / "nccl_logs" / "topology.json").read_text())[name]
    found = read_nccl_logs([shared_data / "nccl_logs" / f"{name}.log.gz"])[0]
    assert [list(r) for r in found.rings] == truth["rings"]
    assert [{"rank": r.rank, "host": r.host, "device": r.device, "bus": r.bus} for r in found.ranks] == truth["ranks"]
    assert found.transports == truth["ring_edges_by_transport"]
    trees = [
        {
            str(r): {"parent": -1 if n.parent is None else n.parent, "children": list(n.children)}
            for r, n in tree.items()
        }
        for tree in found.trees
    ]
    assert trees == truth["trees"]


def test_communicators_of_several_sizes_are_kept_apart(shared_data: Path) -> None:
    found = read_nccl_logs([shared_data / "nccl_logs" / "v100_n16_zero.log.gz"])
    assert {size: sum(c.size == size for c in found) for size in (4, 16, 64)} == {4: 16, 16: 4, 64: 1}
    assert len(map_hosts(found)) == 64 and len(set(map_hosts(found).values())) == 16


def test_lines_of_newer_nccl_are_read(tmp_path: Path) -> None:
    (tmp_path / "a.log").write_text(
        "n1:7:9 [0] NCCL INFO Trees [0] 1/-1/-1->0->-1 [1] -1/-1/-1->0->1\n"
        "n1:7:9 [0] NCCL INFO Channel 00/0 : 0[0] -> 1[1] [send] via NET/IB/0/GDRDMA\n"
        "n1:7:9 [0] NCCL INFO ncclCommInitRank comm 0x5 rank 0 nranks 2 cudaDev 0 nvmlDev 0 busId 4000 commId 0xa - Init COMPLETE\n"
        "n2:8:9 [0] NCCL INFO Channel 00/0 : 0[0] -> 1[1] [receive] via NET/IB/0/GDRDMA\n"
        "n2:8:9 [0] NCCL INFO Channel 00/0 : 1[0] -> 0[1] [send] via NET/IB/0/GDRDMA\n"
        "n2:8:9 [0] NCCL INFO ncclCommInitRank comm 0x6 rank 1 nranks 2 cudaDev 0 nvmlDev 0 busId 4000 commId 0xa - Init COMPLETE\n"
    )
    found = read_nccl_logs([tmp_path / "a.log"])[0]
    assert found.rings == ((0, 1),) and map_hosts([found]) == {0: "n1", 1: "n2"}
    assert found.trees[0][0].children == (1,)

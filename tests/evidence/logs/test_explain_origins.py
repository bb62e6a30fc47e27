"""Rank, host and time are recovered from what launchers and loggers put before a line."""

import pytest

from prism.evidence.logs.origins import parse_line
from prism.evidence.logs.sources import find_logs


@pytest.mark.parametrize(
    ("raw", "rank", "host", "text"),
    [
        ("[default3]:RuntimeError: x", 3, None, "RuntimeError: x"),
        ("[rank12]: ValueError: y", 12, None, "ValueError: y"),
        ("[1,7]<stderr>:boom", 7, None, "boom"),
        ("  5: hello there", 5, None, "hello there"),
        ("node-3:984:1357 [4] NCCL WARN bad", None, "node-3", "NCCL WARN bad"),
        ("worker-1: [2024-03-01 10:00:00,123] ERROR boom", None, "worker-1", "ERROR boom"),
        ("(Worker pid=88, ip=10.0.0.4) KeyError: 'x'", None, "10.0.0.4", "KeyError: 'x'"),
        ("May  3 10:11:12 gpu17 kernel: [1.000000] NVRM: Xid (PCI:0): 79", None, "gpu17", "NVRM: Xid (PCI:0): 79"),
        ("[rank1]:[E626 06:24:44.903881913 ProcessGroupNCCL.cpp:616] [Rank 1] Watchdog", 1, None, "Watchdog"),
        ("2024-05-01T10:00:00.123456789Z stderr F boom", None, None, "boom"),
        ("\x1b[31mred\x1b[0m text", None, None, "red text"),
        ("RuntimeError: keep me whole", None, None, "RuntimeError: keep me whole"),
    ],
)
def test_prefixes_are_read_and_stripped(raw, rank, host, text):
    origin = parse_line(raw)
    assert (origin.rank, origin.host, origin.text) == (rank, host, text)


def test_times_of_different_loggers_are_comparable():
    earlier = parse_line("[2024-06-26 06:24:43,000] a").time_ns
    later = parse_line("2024-06-26T06:24:44.5Z stdout F b").time_ns
    assert earlier is not None
    assert later is not None
    assert later - earlier == 1_500_000_000


@pytest.mark.parametrize(
    ("name", "rank", "host"),
    [
        ("rank_3.log", 3, None),
        ("attempt_0/7/stderr.log", 7, None),
        ("node-2_rank_17.log", 17, "node-2"),
        ("12.log", 12, None),
        ("gpu-14.out", None, "gpu-14"),
        ("job.log", None, None),
    ],
)
def test_file_names_tell_rank_and_host(tmp_path, name, rank, host):
    path = tmp_path / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("x\n")
    (source,) = find_logs(str(tmp_path))
    assert (source.rank, source.host) == (rank, host)

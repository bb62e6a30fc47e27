"""PyTorch profiler traces: figures as HTA gives them, broken files, clocks, ranks that come late."""

from __future__ import annotations

import gzip
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from prism.errors import InputError
from prism.evidence.traces import read_profile, study_files, trace_events, write_spans
from prism.evidence.traces.breakdown import find_bubbles, split_idle_by_stream, split_rank
from prism.evidence.traces.kernel_names import classify
from prism.evidence.traces.trace_events import TraceFile

# Holistic Trace Analysis 0.5.0 on the same traces, in microseconds: idle, compute, span and overlap in percent.
HTA = {
    0: (6419, 1034, 13009, 4.50),
    1: (6428, 1246, 18749, 2.47),
    2: (7046, 1068, 11350, 7.88),
    3: (8145, 1240, 18853, 3.31),
}


def kernel(
    name: str, ts: float, dur: float, *, stream: int = 7, launch: float | None = None, **args: Any
) -> list[dict[str, Any]]:
    number = int(ts * 1000)
    events = [
        {"ph": "X", "cat": "kernel", "name": name, "pid": 0, "tid": stream, "ts": ts, "dur": dur,
         "args": {"stream": stream, "correlation": number, **args}}
    ]  # fmt: skip
    if launch is not None:
        events.append({"ph": "X", "cat": "cuda_runtime", "name": "cudaLaunchKernel", "pid": 9, "tid": 9, "ts": launch, "dur": 1, "args": {"correlation": number}})  # fmt: skip
    return events


def step(number: int, ts: float, dur: float) -> dict[str, Any]:
    return {
        "ph": "X",
        "cat": "user_annotation",
        "name": f"ProfilerStep#{number}",
        "pid": 9,
        "tid": 9,
        "ts": ts,
        "dur": dur,
    }


def write(path: Path, events: list[Any], *, rank: int = 0, world: int = 1) -> Path:
    document = {"distributedInfo": {"rank": rank, "world_size": world}, "traceEvents": events, "traceName": "t"}
    path.write_text(json.dumps(document))
    return path


def reduce_at(ts: float, end: float) -> list[dict[str, Any]]:
    told = {
        "Collective name": "allreduce",
        "In msg nelems": 1000,
        "Out msg nelems": 1000,
        "dtype": "BFloat16",
        "Group size": 2,
    }
    return kernel(
        "ncclDevKernel_AllReduce_Sum_bf16_RING_LL", ts, end - ts, stream=20, **told, **{"Process Group Name": "0"}
    )


def test_figures_of_recorded_traces_are_those_of_hta(shared_data: Path) -> None:
    found = study_files(sorted((shared_data / "kineto" / "dlrm").glob("*.gz")))
    whole = found.breakdown.filter(pl.col("step").is_null())
    for row in whole.iter_rows(named=True):
        us = {name: value // 1000 for name, value in row.items() if name.endswith("_ns")}
        overlap = round(100 * row["overlapped_ns"] / row["communication_ns"], 2)
        assert (us["idle_ns"], us["compute_ns"], us["span_ns"], overlap) == HTA[row["rank"]]
        assert row["compute_ns"] + row["exposed_ns"] + row["copies_ns"] + row["idle_ns"] == row["span_ns"]
    assert found.lateness["rank"][0] == 2  # its first all-to-all begins 1.6 ms after the next later one


def test_collectives_are_those_of_the_summary(shared_data: Path) -> None:
    told = json.loads((shared_data / "kineto" / "summary.json").read_text())["dlrm"]
    words = {"SendRecv": "send_recv", "AllReduce": "all_reduce"}
    for rank in told:
        profile = read_profile(shared_data / "kineto" / "dlrm" / f"rank{rank['rank']}.json.gz")
        calls = profile.work.filter(pl.col("what") == "communication")
        seen = [
            (k, s // 1000, (e - s) // 1000) for k, s, e in calls.select("collective", "start_ns", "end_ns").iter_rows()
        ]
        assert seen == [(words[c["kind"]], c["start"], c["duration"]) for c in rank["collectives"]]


def test_a_call_that_says_its_size_gives_a_bandwidth(tmp_path: Path) -> None:
    events = [*kernel("gemm", 0, 10), *reduce_at(10, 20)]
    bandwidth = study_files([write(tmp_path / "rank0.json", events, world=2)]).bandwidth
    assert bandwidth.select("collective", "bytes", "bus_gbps").rows() == [("all_reduce", 2000, pytest.approx(0.2))]


def test_idle_time_is_split_by_cause(tmp_path: Path) -> None:
    events = [
        *kernel("a", 0, 10, launch=-5),
        *kernel("b", 15, 5, launch=2),  # launched in time, a short gap
        *kernel("c", 50, 10, launch=45),  # the host was late
        *kernel("d", 160, 10, launch=46),  # launched in time, yet began 100 us later
    ]
    profile = read_profile(write(tmp_path / "rank0.json", events))
    row = split_rank(profile).row(0, named=True)
    assert [row[f"idle_{c}_ns"] for c in ("launch", "host", "other")] == [5_000, 30_000, 100_000]
    by_stream = {r["cause"]: r["idle_ns"] for r in split_idle_by_stream(profile).iter_rows(named=True)}
    assert by_stream == {"launch": 5_000, "host": 30_000, "other": 100_000}
    assert find_bubbles(profile)["cause"].to_list() == ["unknown", "host", "unknown"]


@pytest.mark.parametrize(
    ("name", "what"),
    [
        ("ncclKernel_AllReduce_RING_LL_Sum_float(ncclDevComm*, unsigned long, ncclWork*)", "communication"),
        ("ncclDevKernel_Generic_1(ncclDevKernelArgsStorage<4096ul>)", "communication"),
        ("ncclSymDevKernel_AllReduce_AGxLL_R_sum_bf16", "communication"),
        ("void mscclKernel_Sum_half_LL_false", "communication"),
        ("CopyDeviceToDevice", "memory"),
        ("__amd_rocclr_fillBufferAligned.kd", "memory"),
        ("Memcpy DtoH (Device -> Pinned)", "memory"),
        ("Cijk_Alik_Bljk_BBS_BH_MT128x128x64_MI16x16x1", "compute"),
        ("void at::native::SyncBatchNorm<float>", "compute"),
    ],
)
def test_kernels_of_both_vendors_are_known_by_name(name: str, what: str) -> None:
    frame = pl.DataFrame({"cat": ["kernel"], "name": [name]})
    assert frame.select(classify(pl.col("cat"), pl.col("name"))).item() == what


def late_rank(tmp_path: Path, *, clock_off_us: float) -> Any:
    """Rank 1 comes 40 us late to every all-reduce; its clock may be off."""
    for rank in range(2):
        events: list[Any] = []
        for number in range(3):
            at = number * 1000.0 + (clock_off_us if rank else 0.0)
            late = 40.0 if rank else 0.0
            events += [step(number, at, 500), *kernel("gemm", at + 1, 50 + late), *reduce_at(at + 60 + late, at + 120)]
        write(tmp_path / f"rank{rank}.json", events, rank=rank, world=2)
    return study_files(sorted(tmp_path.glob("*.json")))


@pytest.mark.parametrize("clock_off_us", [0.0, -7.2e9])
def test_the_late_rank_is_found_even_with_clocks_hours_apart(tmp_path: Path, clock_off_us: float) -> None:
    found = late_rank(tmp_path, clock_off_us=clock_off_us)
    assert found.lateness.row(0, named=True) == {"rank": 1, "calls": 3, "last": 3, "held_ns": 120_000}
    assert any("clocks of 1 ranks" in n for n in found.notes) == (clock_off_us != 0)
    assert found.calls["start_ns"].max() - found.calls["start_ns"].min() < 3_000_000
    assert found.bandwidth["median_us"].to_list() == [20.0]  # of the rank that waits least


def test_a_trace_without_its_end_counts_up_to_there(tmp_path: Path) -> None:
    path = write(tmp_path / "rank3.json", [e for i in range(50) for e in kernel("gemm", i * 10.0, 5)], rank=3)
    path.write_text(path.read_text()[:-900])
    profile = read_profile(path)
    assert profile.rank == 3 and 0 < profile.work.height < 50 and "breaks off" in profile.notes[0]


def test_a_packed_trace_without_its_end_counts_up_to_there(tmp_path: Path) -> None:
    events = [e for i in range(3000) for e in kernel(f"gemm {i * 7919}", i * 10.0, 5)]
    packed = gzip.compress(json.dumps({"distributedInfo": {"rank": 0}, "traceEvents": events}).encode())
    (tmp_path / "rank0.json.gz").write_bytes(packed[: len(packed) // 2])
    profile = read_profile(tmp_path / "rank0.json.gz")
    assert 0 < profile.work.height < 3000 and "breaks off" in profile.notes[0]


def test_events_are_found_whatever_the_pieces(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    names = ['a "quoted" } name', "back\\slash\\", "new\nline", "ünïcode ]", "{[}"]
    events = [e for i, n in enumerate(names) for e in kernel(n, i * 10.0, 5)]
    arrows = [
        {"ph": "f", "id": 1, "ts": 1, "cat": "ac2g"},
        {"cat": "python_function", "ph": "X", "name": "x", "ts": 1, "dur": 1},
    ]
    path = write(tmp_path / "rank0.json", [*arrows, *events])
    for size in (16 << 20, 7, 1):
        monkeypatch.setattr(trace_events, "_PIECE_BYTES", size)
        file = TraceFile(path)
        assert pl.concat(file.read_events())["name"].to_list() == names
        assert file.is_whole and file.properties["traceName"] == "t"


@given(st.binary(max_size=300))
def test_any_bytes_end_in_a_profile_or_one_line(tmp_path_factory: pytest.TempPathFactory, data: bytes) -> None:
    path = tmp_path_factory.mktemp("fuzz") / "rank0.json"
    path.write_bytes(b'{"traceEvents": [' + data)
    try:
        read_profile(path)
    except InputError as error:
        assert "\n" not in str(error) and str(path) in str(error)


@settings(max_examples=20)
@given(st.lists(st.fixed_dictionaries({}, optional={
    "ph": st.sampled_from(["X", "M"]), "cat": st.sampled_from(["kernel", "cuda_runtime", "user_annotation", "cpu_op"]) | st.integers(),
    "name": st.text(max_size=5) | st.just("ProfilerStep#3") | st.none(), "ts": st.floats() | st.text(max_size=3), "dur": st.floats() | st.none(),
    "args": st.dictionaries(st.sampled_from(["stream", "correlation", "bytes"]), st.integers(-5, 5) | st.text(max_size=2)) | st.integers(),
}), max_size=6))  # fmt: skip
def test_any_events_end_in_a_study_or_one_line(tmp_path_factory: pytest.TempPathFactory, events: list[Any]) -> None:
    path = write(tmp_path_factory.mktemp("fuzz") / "rank0.json", events)
    try:
        study_files([path])
    except InputError as error:
        assert "\n" not in str(error)


def test_two_jobs_in_one_folder_are_reported(tmp_path: Path) -> None:
    paths = [write(tmp_path / f"{name}_rank0.json", kernel("gemm", 0, 5)) for name in ("a", "b")]
    with pytest.raises(InputError, match="one folder per job"):
        study_files(paths)


PROGRAM = """
import sys, torch, torch.distributed as dist
from torch.profiler import ProfilerActivity, profile
dist.init_process_group("gloo", init_method="file://" + sys.argv[1] + "/meet", rank=int(sys.argv[2]), world_size=2)
with profile(activities=[ProfilerActivity.CPU], record_shapes=True) as p:
    for number in range(3):
        with torch.profiler.record_function(f"ProfilerStep#{number}"):
            if dist.get_rank() == 1:
                torch.randn(900, 900) @ torch.randn(900, 900)
            dist.all_reduce(torch.ones(1000))
p.export_chrome_trace(f"{sys.argv[1]}/rank{sys.argv[2]}.json")
dist.destroy_process_group()
"""


@pytest.mark.slow  # two processes that load torch
def test_a_real_run_on_cpus_shows_steps_communication_and_the_slow_rank(tmp_path: Path) -> None:
    ranks = [
        subprocess.Popen([sys.executable, "-c", PROGRAM, str(tmp_path), str(r)], stderr=subprocess.DEVNULL)
        for r in (0, 1)
    ]
    assert [r.wait(timeout=600) for r in ranks] == [0, 0]
    found = study_files(sorted(tmp_path.glob("rank*.json")))
    assert found.breakdown.filter(pl.col("step").is_not_null()).height == 6
    assert found.breakdown["communication_ns"].min() > 0  # type: ignore[operator]
    assert found.bandwidth["collective"].to_list() == ["all_reduce"] and found.bandwidth["bytes"].to_list() == [4000]
    assert found.calls.height == 6
    spans = write_spans(read_profile(tmp_path / "rank1.json"))
    assert spans.filter(pl.col("kind") == "step").height == 3

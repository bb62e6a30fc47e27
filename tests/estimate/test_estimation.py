"""Estimates: of one layout and of many, what memory and MFU follow from, and what is refused by name."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from prism.cli.main import main
from prism.errors import BadConfigError
from prism.estimate import EstimateConfig, estimate, find_gpu, read_layout, read_model, sweep
from prism.estimate.estimation import measure_sizes, solve_step
from prism.estimate.layouts import Layout, list_layouts
from prism.estimate.memory import count_memory
from prism.simulate.cluster_file import load_cluster
from prism.simulate.plans.model import ModelShape
from prism.simulate.plans.sizes import size_up

TINY = ModelShape(layers=8, hidden=1024, ffn=2816, heads=16, kv_heads=16, vocab=32000, seq=2048)


def _config(model: ModelShape = TINY, gpus: int = 16, **changes: Any) -> EstimateConfig:
    return EstimateConfig(model=model, gpus=gpus, cluster=load_cluster("dgx-h100"), gpu=find_gpu("H100"), **changes)


def _run(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str, str]:
    with pytest.raises(SystemExit) as ended:
        main(["estimate", *arguments])
    said = capsys.readouterr()
    return int(ended.value.code or 0), said.out, said.err


def test_the_document_has_the_shape_of_the_contract(capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = _run(
        capsys, "--model", "llama-8b", "--gpus", "16", "--cluster", "dgx-h100", "--layout", "tp=2", "--json"
    )
    document = json.loads(out)
    assert (code, document["schema"]) == (0, "prism.estimate/1")
    (row,) = document["layouts"]
    assert row["layout"]["tp"] == 2 and row["layout"]["dp"] == 8
    assert row["step_ms"] > 0 and row["peak_bytes"] > 0 and 0 < row["mfu"] < 1 and row["band_pct"] > 0


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--model", "llama-8b", "--cluster", "GB200"], "presets: .*gb200-nvl72"),
        (["--model", "llama-8b", "--cluster", "mi300x"], "GPU 'MI300X'.*known are B200, GB200, H100, H200"),
        (["--model", "llama-8b", "--cluster", "dgx-h100", "--precision", "fp4"], "H100 in fp4; known are bf16, fp8"),
        (["--model", "llama-8b", "--cluster", "dgx-h100", "--layout", "tp=3"], "does not divide --gpus 16"),
        (["--model", "llama-8b", "--cluster", "dgx-h100", "--layout", "tp=2,dp=3"], "but --gpus is 16"),
        (["--model", "llama-8b", "--cluster", "dgx-h100", "--layout", "xp=3"], "'xp=3' is not one of"),
    ],
)
def test_what_is_not_known_is_refused_with_what_is(
    arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    import re

    code, out, err = _run(capsys, "--gpus", "16", *arguments)
    assert (code, out) == (2, "")
    assert re.search(message, " ".join(err.split()))


def test_a_sweep_begins_with_the_fastest_that_fits() -> None:
    found = sweep(_config(gpus=8, most_solved=6))
    assert all(one.fits for one in found)
    assert [one.step_ms for one in found] == sorted(one.step_ms for one in found)
    assert len({tuple(one.layout.describe().items()) for one in found}) == len(found)


def test_a_model_that_fits_nowhere_is_shown_as_too_large() -> None:
    found = sweep(_config(read_model("llama-405b"), gpus=16, global_batch=16))
    assert found and not any(one.fits for one in found)


def test_listed_layouts_use_all_gpus_and_divide_the_model() -> None:
    found = list(list_layouts(TINY, 16, 8, 64))
    assert found
    for layout in found:
        assert layout.job(TINY, 64).num_gpus == 16


def test_few_micro_batches_stand_for_many() -> None:
    config = _config(gpus=8, global_batch=64)
    job = Layout(pp=4, dp=2).job(TINY, 64)
    sizes = measure_sizes(config, job)
    from prism.estimate.estimation import _solve_short

    assert solve_step(config, job, sizes) == pytest.approx(_solve_short(config, job, sizes), rel=0.01)


@pytest.mark.parametrize("sharding", ["zero1", "fsdp"])
def test_memory_of_more_replicas_is_less(sharding: str) -> None:
    peaks = []
    for dp in (2, 8):
        job = Layout(dp=dp, sharding=sharding).job(TINY, 16)
        peaks.append(count_memory(job, size_up(job, "H100")).peak)
    assert peaks[1] < peaks[0]


def test_recomputing_takes_longer_and_holds_less() -> None:
    config, layout = _config(gpus=8, global_batch=16), Layout(tp=2, pp=2, dp=2)
    plain, again = estimate(config, layout), estimate(config, replace(layout, recompute=True))
    assert again.step_ms > plain.step_ms
    assert again.memory.activations < plain.memory.activations


def test_a_row_of_ones_own_makes_a_gpu_known(tmp_path: Path) -> None:
    row = (
        "{peak_tflops: 1300, linear: 0.6, attention: 0.3, wide_passes: 10, full_passes: 20, band_pct: 30, origin: mine}"
    )
    (tmp_path / "mine.yaml").write_text(
        f"MI300X:\n  memory_gb: 192\n  memory_gb_per_s: 5300\n  origin: data sheet\n  speeds:\n    bf16: {row}\n"
    )
    assert find_gpu("MI300X", tmp_path / "mine.yaml").speed("bf16").origin == "mine"


def test_every_row_says_where_it_comes_from() -> None:
    for name in ("H100", "H200", "B200", "GB200"):
        gpu = find_gpu(name)
        assert gpu.origin and all(len(speed.origin) > 10 for speed in gpu.speeds.values())


def test_degrees_that_do_not_divide_the_batch_are_refused() -> None:
    with pytest.raises(BadConfigError, match="expected a multiple of dp x mbs = 32"):
        estimate(_config(gpus=16, global_batch=8), read_layout("mbs=2", 16))

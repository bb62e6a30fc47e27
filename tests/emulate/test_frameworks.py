"""Frameworks as users start them: each is emulated unmodified and gives a prediction."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import Any

import pytest

from prism.emulate import CaptureConfig, EmulateConfig, LaunchConfig, emulate
from prism.errors import PrismError

SCRIPTS = Path(__file__).parent / "scripts"
pytestmark = [pytest.mark.slow]


def _emulate(module: str, script: str, *arguments: str, world: int = 4) -> Any:
    if importlib.util.find_spec(module) is None:
        pytest.skip(f"needs {module}")
    launch = LaunchConfig(script=(str(SCRIPTS / script), *arguments), world_size=world, timeout_s=900)
    return emulate(EmulateConfig(capture=CaptureConfig(launch=launch, at_once=0)))


def test_the_hugging_face_trainer_with_logging(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    steps = _emulate("transformers", "hf_trainer.py").prediction.steps
    assert steps.unit == 3
    assert steps.mean_ms > 0 and len(steps.special) == 1


def test_the_example_of_the_hugging_face_page(tmp_path: Path) -> None:
    example = Path(__file__).parents[2] / "examples" / "huggingface" / "train.py"
    emulation = _emulate("transformers", str(example), "--output_dir", str(tmp_path))
    assert emulation.prediction.steps.unit == 5  # it logs every fifth step
    assert "all_reduce" in emulation.stitched.graph.ops["kind"].cast(str).unique().to_list()


def test_a_trainer_whose_ranks_never_join_is_reported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Under torchrun, too, every rank then trains alone: the norms of their gradients differ."""
    monkeypatch.chdir(tmp_path)
    alone = (SCRIPTS / "hf_trainer.py").read_text().replace('use_cpu=True, ddp_backend="gloo", ', "")
    (tmp_path / "alone.py").write_text(alone)
    with pytest.raises(PrismError, match="needs use_cpu=True"):
        _emulate("transformers", str(tmp_path / "alone.py"))


def test_trl_fine_tuning(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert _emulate("trl", "trl_sft.py").prediction.headline_ms > 0


def test_lightning_with_metrics_over_ranks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    emulation = _emulate("lightning", "lightning_ddp.py")
    assert emulation.surveyed == 4
    assert emulation.prediction.headline_ms > 0


def test_accelerate_gathers_what_every_rank_holds() -> None:
    assert _emulate("accelerate", "accelerate_loop.py").prediction.steps.unit == 4


@pytest.mark.parametrize("stage", ["1", "2", "3"])
def test_deepspeed(stage: str) -> None:
    assert _emulate("deepspeed", "deepspeed_zero.py", stage).prediction.headline_ms > 0

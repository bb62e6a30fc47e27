"""Frameworks as users start them: each is emulated unmodified and gives a prediction."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import Any

import pytest

from prism.emulate import CaptureConfig, EmulateConfig, LaunchConfig, emulate

SCRIPTS = Path(__file__).parent / "scripts"
pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]


def _emulate(module: str, script: str, *arguments: str, world: int = 4) -> Any:
    if importlib.util.find_spec(module) is None:
        pytest.skip(f"needs {module}")
    launch = LaunchConfig(script=(str(SCRIPTS / script), *arguments), world_size=world, timeout_s=500)
    return emulate(EmulateConfig(capture=CaptureConfig(launch=launch, company=0)))


def test_the_hugging_face_trainer_with_logging(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    steps = _emulate("transformers", "hf_trainer.py").prediction.steps
    assert steps.unit == 3
    assert steps.mean_ms > 0 and len(steps.special) == 1


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

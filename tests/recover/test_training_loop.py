"""The loop in four lines: cut off and started again, it ends as one that was not."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")

from prism.recover import Catalog  # noqa: E402
from prism.recover.checkpoint import CheckpointConfig, TrainingLoop  # noqa: E402


def train(folder: Path, total: int, cut_at: int | None = None) -> tuple[list[int], torch.Tensor]:
    torch.manual_seed(0)
    model = torch.nn.Linear(8, 1)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    config = CheckpointConfig(folder=folder, interval_steps=5, writer="thread", memory_dir=folder.parent / "memory")
    training = TrainingLoop(folder, model, optimizer, config=config)
    batches = []
    for step in training.steps(total):
        inputs = torch.randn(4, 8, generator=torch.Generator().manual_seed(training.batch))
        loss = (model(inputs) - inputs.sum(dim=1, keepdim=True)).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        batches.append(training.batch)
        training.report(loss=float(loss.detach()))
        if step == cut_at:
            training.checkpointer.wait_written()
            training.checkpointer.close()
            break
    return batches, model.weight.detach().clone()


def test_a_loop_that_was_cut_off_goes_on_where_it_was_saved(tmp_path: Path):
    (tmp_path / "memory").mkdir()
    whole, expected = train(tmp_path / "whole", 17)
    first, _ = train(tmp_path / "cut", 17, cut_at=13)
    assert [entry.step for entry in Catalog(tmp_path / "cut").entries()] == [5, 10]
    again, weights = train(tmp_path / "cut", 17)
    assert whole == list(range(17)) and first == list(range(13)) and again == list(range(10, 17))
    assert torch.equal(weights, expected)


def test_a_loop_that_came_to_its_end_is_not_trained_again(tmp_path: Path):
    (tmp_path / "memory").mkdir()
    _, expected = train(tmp_path / "whole", 17)
    assert [entry.step for entry in Catalog(tmp_path / "whole").entries()][-1] == 17
    again, weights = train(tmp_path / "whole", 17)
    assert again == [] and torch.equal(weights, expected)


def test_what_follows_the_loop_does_not_run_after_a_preemption(tmp_path: Path):
    (tmp_path / "memory").mkdir()
    model = torch.nn.Linear(2, 1)
    config = CheckpointConfig(folder=tmp_path / "c", writer="thread", memory_dir=tmp_path / "memory")
    training = TrainingLoop(tmp_path / "c", model, torch.optim.SGD(model.parameters(), lr=0.1), config=config)
    exported = False
    with pytest.raises(SystemExit) as ended:
        for step in training.steps(100):
            if step == 3:
                os.kill(os.getpid(), signal.SIGTERM)
        exported = True
    assert ended.value.code == 143 and not exported
    assert Catalog(tmp_path / "c").entries()[-1].step in (3, 4)

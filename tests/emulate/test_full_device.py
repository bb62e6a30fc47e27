"""A GPU without memory is told as such, whoever raises the allocator's error again."""

from __future__ import annotations

from pathlib import Path

import pytest

FULL = "torch.cuda.OutOfMemoryError('CUDA out of memory. Tried to allocate 128.00 MiB')"


@pytest.mark.parametrize(
    "text",
    [
        f"raise {FULL}",
        f"try:\n    raise {FULL}\nexcept RuntimeError as error:\n    raise RuntimeError('stage backward') from error",
        f"try:\n    raise {FULL}\nexcept RuntimeError:\n    raise ValueError('the step failed')",
    ],
    ids=["plain", "from", "while"],
)
def test_a_full_device_is_found_behind_other_errors(text: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from prism.emulate.inside.entry import _run_script  # imports Dynamo, which takes seconds

    script = tmp_path / "train.py"
    script.write_text(f"import torch\n{text}\n")
    monkeypatch.syspath_prepend(str(tmp_path))  # both are put back after the script has changed them
    monkeypatch.setattr("sys.argv", [])
    status, reason = _run_script([str(script)])
    assert status == "out_of_memory"
    assert reason.startswith("CUDA out of memory")

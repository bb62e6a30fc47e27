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


def test_a_program_that_would_hang_is_shown_by_its_own_lines(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from prism.emulate.inside import exchange
    from prism.emulate.inside.entry import _run_script

    def ask(self: object) -> None:
        raise exchange.ExchangeError("rank 0 waits for rank 1")

    ask.__code__ = ask.__code__.replace(co_filename=exchange.__file__)
    monkeypatch.setattr(exchange, "ask_peer", ask, raising=False)
    script = tmp_path / "train.py"
    script.write_text("from prism.emulate.inside import exchange\nexchange.ask_peer(None)\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setattr("sys.argv", [])
    assert _run_script([str(script)]) == ("hung", "rank 0 waits for rank 1")
    told = capsys.readouterr().err
    assert "train.py" in told and "rank 0 waits for rank 1" in told
    assert 'exchange.py", line' not in told, "frames of Prism say nothing of the program's mistake"

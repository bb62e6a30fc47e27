"""The runner of benchmarks knows every script that stands alone, goes on after one that fails, and says what is missing."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from proving import __main__ as runner

BENCHMARKS = Path(runner.__file__).parent / "benchmarks"
# Scripts that read what another one made, or are started by another one; their docstrings say so.
FED = {
    "characterize_tables", "emulate_collectives", "emulate_coverage", "emulate_cpu_peak", "emulate_fidelity",
    "emulate_programs", "emulate_rank", "emulate_staged_gloo", "emulate_torchtitan", "evaluate_beside",
    "evaluate_endpoint", "evaluate_server", "evaluate_stream", "explain_corpus", "explain_finished",
    "in_process_restart_torchft", "investigate_dumps", "investigate_fusion", "investigate_hangs", "investigate_nccl",
    "observe_captures", "observe_knowable", "observe_sensitivity", "observe_sources", "observe_stock", "observe_trials",
    "serve_soak",
}  # fmt: skip


def test_every_script_that_stands_alone_is_in_the_catalogue() -> None:
    alone = {path.stem for path in BENCHMARKS.glob("*.py") if "__main__" in path.read_text()}
    assert set(runner.read_catalogue()) <= alone
    assert alone - set(runner.read_catalogue()) <= FED


def test_every_need_is_one_that_can_be_looked_for() -> None:
    for one in runner.read_catalogue().values():
        assert all(runner.is_there(need) in (True, False) for need in one.needs)
    with pytest.raises(ValueError, match="'moon' is no need"):
        runner.is_there("moon")


def test_all_are_run_to_the_end_and_what_is_missing_is_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    scripts = {"first": "print('a'); raise SystemExit(3)", "second": "print('b')\nprint('said last')\n", "third": "1/0"}
    folder = tmp_path / "benchmarks"
    folder.mkdir()
    for name, text in scripts.items():
        (folder / f"{name}.py").write_text(text)
    (tmp_path / "catalogue.toml").write_text("[first]\n[second]\n[third]\nneeds = ['package:no_such_package']\n")
    monkeypatch.setattr(runner, "HERE", tmp_path)
    assert runner.main(["--output", str(tmp_path / "out")]) == 1
    found = json.loads((tmp_path / "out" / "outcomes.json").read_text())["benchmarks"]
    assert [(row["name"], row["state"]) for row in found] == [
        ("first", "failed"), ("second", "done"), ("third", "skipped"),
    ]  # fmt: skip
    assert found[1]["said"] == "said last"
    assert "needs package:no_such_package" in capsys.readouterr().out
    assert runner.main(["nonsense"]) == 2


def test_the_command_names_python_and_fills_in_folders(tmp_path: Path) -> None:
    one = runner.Benchmark(name="x", arguments=("{out}/a", "{data}/b"), quick=("q",))
    assert one.command(tmp_path, quick=False)[2:] == [f"{tmp_path}/a", f"{runner.DATA}/b"]
    assert one.command(tmp_path, quick=True) == [sys.executable, str(runner.HERE / "benchmarks" / "x.py"), "q"]

"""The command line's promises: exit codes, one-line errors, clean stdout, help with examples, quick start."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import polars as pl
import pytest
from typer.testing import CliRunner

import prism
from prism.cli.main import app
from prism.cli.terminal import verbosity
from prism.collect.tables import write_flows

ROOT = Path(__file__).parents[2]
PRISM = [sys.executable, "-m", "prism.cli.main"]


def run(*arguments: str | Path, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [*PRISM, *map(str, arguments)],
        capture_output=True, text=True, timeout=600, env={**os.environ, **environment}, check=False,
    )  # fmt: skip


@pytest.fixture
def flows_file(tmp_path: Path) -> Path:
    frame = pl.DataFrame(
        {
            "start_ns": [0, 10, 20],
            "end_ns": [5, 15, None],
            "src": ["10.0.0.1", "10.0.0.2", "10.0.0.1"],
            "dst": ["10.0.0.2", "10.0.0.1", "10.0.0.3"],
            "bytes": [1000, 2000, 0],
        }
    )
    write_flows(frame, tmp_path / "flows.parquet")
    return tmp_path / "flows.parquet"


def test_help_lists_the_commands_in_groups_with_examples() -> None:
    shown = run("--help").stdout
    for group in ("Observe a cluster", "Evidence of a job", "Training", "Datacenter", "Lab", "Serve"):
        assert f"─ {group} ─" in shown, group
    assert "flows" in shown and "Examples" in shown and "prism diagnose flows.parquet" in shown


def test_version_is_printed() -> None:
    assert run("--version").stdout == f"prism {prism.__version__}\n"


def test_info_as_json_prints_one_document_and_nothing_else(flows_file: Path) -> None:
    done = run("flows", "info", flows_file, "--json")
    document = json.loads(done.stdout)
    assert (done.returncode, done.stderr) == (0, "")
    assert (document["rows"], document["endpoints"], document["pairs"], document["bytes"]) == (3, 3, 3, 3000)
    assert (document["without_end"], document["zero_bytes"]) == (1, 1)


def test_info_for_a_person_shows_what_is_missing(flows_file: Path) -> None:
    shown = run("flows", "info", flows_file).stdout
    assert "3 in 1 file" in shown and "columns missing" in shown and "\x1b" not in shown


def test_convert_rewrites_a_file_of_another_tool(tmp_path: Path) -> None:
    source = tmp_path / "nfdump.csv"
    source.write_text(
        "firstSeen,duration,srcAddr,dstAddr,packets,bytes\n2023-11-14 22:13:20.000,0.5,10.0.0.1,10.0.0.2,1,9\n"
    )
    done = run("flows", "convert", source, tmp_path / "out.parquet")
    assert done.returncode == 0, done.stderr
    assert pl.read_parquet(tmp_path / "out.parquet")["end_ns"].to_list() == [1_700_000_000_500_000_000]


def test_a_bad_row_is_one_line_and_exit_code_two(tmp_path: Path) -> None:
    bad = tmp_path / "bad.csv"
    bad.write_text("start_ns,end_ns,src,dst,bytes\n1,2,a,b,12k\n")
    done = run("flows", "info", bad, "--json")
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.count("\n") == 1
    assert f"{bad} line 2: 'bytes' is \"12k\"" in done.stderr
    skipped = run("flows", "info", bad, "--skip-bad-rows", "--json")
    assert json.loads(skipped.stdout)["report"]["skipped_rows"] == {"'bytes' not a whole number": 1}


@pytest.mark.parametrize(
    "arguments", [["nope"], ["flows", "info"], ["flows", "info", "x", "--nope"], ["flows", "convert", "a"]]
)
def test_wrong_use_is_one_line_and_exit_code_two(arguments: list[str]) -> None:
    done = run(*arguments)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.count("\n") == 1 and "--help" in done.stderr


def test_a_bug_of_ours_is_one_line_and_exit_code_one(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    from prism.cli import main as module

    def explode(**_: object) -> None:
        raise RuntimeError("boom")

    monkeypatch.setattr(module, "app", explode)
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    with pytest.raises(SystemExit) as caught:
        module.main([])
    shown = capfd.readouterr().err
    assert caught.value.code == 1
    assert "internal error: RuntimeError: boom" in shown and "Traceback" not in shown


def test_a_file_that_the_system_refuses_is_the_users_trouble_and_not_a_bug(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    from prism.cli import main as module

    monkeypatch.setattr(module, "app", lambda **_: tmp_path.read_bytes())
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    with pytest.raises(SystemExit) as caught:
        module.main([])
    assert caught.value.code == 2
    assert capfd.readouterr().err.startswith(f"prism: error: {tmp_path}: Is a directory")
    assert not list(tmp_path.iterdir())  # no crash file


def test_a_full_disk_is_one_line_and_not_a_bug(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    from prism.cli import main as module

    def write(**_: object) -> None:
        with Path("/dev/full").open("w") as handle:
            handle.write("{}")

    monkeypatch.setattr(module, "app", write)
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    with pytest.raises(SystemExit) as caught:
        module.main([])
    assert caught.value.code == 1
    assert capfd.readouterr().err.startswith("prism: error: the output could not be written: No space left")
    assert not list(tmp_path.iterdir())  # no crash file


def test_a_bug_of_ours_leaves_a_file_with_the_stack_and_no_secrets(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    from prism.cli import main as module

    def explode(**_: object) -> None:
        raise RuntimeError("token=hf_abcdefghijklmnopqrstuvwxyz")

    monkeypatch.setattr(module, "app", explode)
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    with pytest.raises(SystemExit):
        module.main(["diagnose", "/home/me/private.csv", "--password=abc", "--json"])
    (left,) = tmp_path.glob("prism-crash-*.txt")
    text = left.read_text()
    assert str(left) in capfd.readouterr().err.replace("\n", "")
    assert "explode" in text and "command: prism diagnose ... --password --json" in text
    assert not any(secret in text for secret in ("private.csv", "abc", "hf_"))
    assert left.stat().st_mode & 0o077 == 0


def test_import_and_help_load_nothing_heavy() -> None:
    heavy = ("torch", "ray", "numba", "polars", "numpy", "pandas")
    code = f"import sys, prism, prism.cli.main; print([m for m in {heavy} if m in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


@pytest.mark.parametrize(
    ("code", "heavy"),
    [
        ("import prism.emulate as e; [getattr(e, name) for name in e.__all__]", "torch"),
        ("import prism.recover.checkpoint.inplace.__main__", "torch._dynamo torch.distributed.checkpoint"),
    ],
)
def test_what_starts_training_programs_loads_nothing_of_theirs(code: str, heavy: str) -> None:
    """Torch with its compiler takes seconds, and both start beside programs that load it anyway."""
    code += f"; import sys; print([m for m in {heavy.split()} if m in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_the_public_names_are_those_we_promise_and_all_load() -> None:
    promised = (ROOT / "tests" / "public_names.txt").read_text().split()
    assert sorted(prism.__all__) == promised
    for name in prism.__all__:
        assert getattr(prism, name) is not None


def test_every_command_is_in_the_docs_and_shows_an_example() -> None:
    sys.path.insert(0, str(ROOT / "scripts"))
    import write_cli_docs
    from typer.main import get_command

    from prism.cli.main import app

    page = (ROOT / "docs" / "cli.md").read_text()
    assert page == write_cli_docs.render(), "docs/cli.md is out of date; run: make docs"
    for path, command in write_cli_docs.walk("prism", get_command(app)):
        assert f"## {path}\n" in page
        called = path.removesuffix(" run")  # a default subcommand is called by its group
        assert called in (command.epilog or ""), f"{path} --help has no example"
        assert command.help, f"{path} has no description"


def test_the_flags_of_one_command_are_not_those_of_the_next_in_one_process(flows_file: Path) -> None:
    for flag, level in (("--quiet", -1), (None, 0), ("--verbose", 1), (None, 0)):
        CliRunner().invoke(app, ["flows", "info", str(flows_file), *([flag] if flag else [])], catch_exceptions=False)
        assert verbosity.level == level

"""What a supervised command prints is shown where the supervisor runs."""

from __future__ import annotations

import errno
import io
import subprocess
import sys
from pathlib import Path

from prism.recover.supervise.echo import Echo


def write(run_dir: Path, name: str, text: str) -> None:
    path = run_dir / "attempts" / name
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("a") as log:
        log.write(text)


def test_the_output_of_every_attempt_is_shown_once_and_what_was_there_before_is_not(tmp_path: Path):
    write(tmp_path, "0001/here.log", "before\n")
    shown = io.BytesIO()
    echo = Echo(tmp_path, shown)
    write(tmp_path, "0001/here.log", " 10%\r 20%")
    echo.copy()
    echo.copy()
    write(tmp_path, "0001/here.log", "\r 30%\n")
    write(tmp_path, "0002/here.log", "again\n")
    echo.copy()
    assert shown.getvalue() == b" 10%\r 20%\r 30%\nagain\n"


def test_lines_of_several_hosts_carry_their_names_and_are_never_torn(tmp_path: Path):
    shown = io.BytesIO()
    echo = Echo(tmp_path, shown)
    write(tmp_path, "0001/n1.log", "step 1\nste")
    write(tmp_path, "0001/n2.log", "step 1\n")
    echo.copy()
    assert shown.getvalue() == b"n1  step 1\nn2  step 1\n"
    write(tmp_path, "0001/n1.log", "p 2")
    echo.copy()
    echo.copy(to_end=True)
    assert shown.getvalue() == b"n1  step 1\nn2  step 1\nn1  step 2"


def test_a_write_that_was_cut_short_is_continued_and_a_full_disk_is_reported_once(tmp_path: Path):
    class Short(io.BytesIO):
        def write(self, data: bytes, /) -> int:
            return super().write(data[:3])

    class Full:
        def write(self, data: bytes, /) -> int:
            raise OSError(errno.ENOSPC, "No space left on device")

    short, said = Short(), []
    with Echo(tmp_path, short), Echo(tmp_path, Full(), said.append):
        write(tmp_path, "0001/here.log", "step 1\nstep 2\n")
    assert short.getvalue() == b"step 1\nstep 2\n"
    assert said == [f"standard output cannot be written (No space left on device); see {tmp_path}/attempts/*/*.log"]


def test_the_command_shows_it_on_stdout_of_any_kind_and_never_beside_json(tmp_path: Path):
    (tmp_path / "quick.yaml").write_text("poll_s: 0.05\n")
    words = [sys.executable, "-m", "prism.cli.main", "supervise", "--config", str(tmp_path / "quick.yaml")]
    job = ["--", sys.executable, "-c", "print('hello from the job')"]
    told = [
        subprocess.run([*words, *more, *job], capture_output=True, text=True, check=True, cwd=tmp_path)
        for more in ([], ["--json", "--run-dir", "other"])
    ]
    assert told[0].stdout == "hello from the job\n" and "finish   done" in told[0].stderr
    assert told[1].stdout.startswith("{") and "hello" not in told[1].stdout

"""What commands print is text: no emoji, no markup; one record a line in a pipe."""

from __future__ import annotations

import io
import sys

import pytest

from prism.cli.terminal import console, fail, heading, show, table

ADDRESS, FILE = "fd00:100:a::1:0:3", "[red]/etc/passwd: root:x:0:0[/red]"


class _Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.fixture
def terminal(monkeypatch: pytest.MonkeyPatch) -> _Terminal:
    made = _Terminal()
    monkeypatch.setattr(sys, "stdout", made)
    monkeypatch.setattr(sys, "stderr", made)
    monkeypatch.setenv("COLUMNS", "60")
    monkeypatch.setenv("TERM", "dumb")
    return made


def test_addresses_and_files_are_never_taken_for_emoji_or_markup(terminal: _Terminal) -> None:
    show(table(f"of {ADDRESS}", ("address", ADDRESS), [(ADDRESS, FILE)]), f"{ADDRESS} {FILE}", heading(FILE))
    fail(f"{ADDRESS}: {FILE}")
    shown = terminal.getvalue()
    assert shown.count(ADDRESS) == 5
    assert shown.count(FILE) == 4


def test_a_terminal_wraps_and_a_pipe_does_not(
    terminal: _Terminal, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    words = "a word " * 100
    show(words, table(None, ("what",), [(words,)]))
    assert max(map(len, terminal.getvalue().splitlines())) <= 60
    monkeypatch.undo()
    show(words, table("Words", ("what", ">many"), [(words, 100), ("none", 0)]))
    assert capsys.readouterr().out.splitlines() == [
        words,
        "Words",
        "what\tmany",
        f"{words.strip()}\t100",
        "none\t0",
        "",
    ]


def test_a_record_is_one_line_in_a_pipe(capsys: pytest.CaptureFixture[str]) -> None:
    show(table(None, ("", ""), [("host", "one\ntwo"), ("rank", 3)]))
    assert capsys.readouterr().out.splitlines() == ["host\tone two", "rank\t3", ""]


def test_progress_on_stderr_takes_text_as_it_is(terminal: _Terminal) -> None:
    console(stderr=True).print(f"{ADDRESS} [bold]")
    assert terminal.getvalue() == f"{ADDRESS} [bold]\n"

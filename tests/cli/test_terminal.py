"""What commands print is text: no emoji, no markup; one record a line in a pipe."""

from __future__ import annotations

import io
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stderr, redirect_stdout

import pytest

from prism.cli.terminal import console, fail, heading, show, table

ADDRESS, FILE = "fd00:100:a::1:0:3", "[red]/etc/passwd: root:x:0:0[/red]"


class _Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@contextmanager
def a_terminal(monkeypatch: pytest.MonkeyPatch) -> Iterator[_Terminal]:
    """Stdout and stderr as a terminal of 80 columns."""
    monkeypatch.setenv("TERM", "dumb")
    made = _Terminal()
    with redirect_stdout(made), redirect_stderr(made):
        yield made


def test_addresses_and_files_are_never_taken_for_emoji_or_markup(monkeypatch: pytest.MonkeyPatch) -> None:
    with a_terminal(monkeypatch) as terminal:
        show(table(f"of {ADDRESS}", ("address", ADDRESS), [(ADDRESS, FILE)]), f"{ADDRESS} {FILE}", heading(FILE))
        fail(f"{ADDRESS}: {FILE}")
    shown = terminal.getvalue()
    assert shown.count(ADDRESS) == 5
    assert shown.count(FILE) == 4


def test_a_terminal_wraps_and_a_pipe_does_not(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    words = "a word " * 100
    with a_terminal(monkeypatch) as terminal:
        show(words, table(None, ("what",), [(words,)]))
    assert max(map(len, terminal.getvalue().splitlines())) <= 80
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


def test_progress_on_stderr_takes_text_as_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    with a_terminal(monkeypatch) as terminal:
        console(stderr=True).print(f"{ADDRESS} [bold]")
    assert terminal.getvalue() == f"{ADDRESS} [bold]\n"

"""Pages whose blocks are followed as written: files are made, edits applied, commands run, output compared.

A block with `title="PATH"` is a file to write; a `diff` block with a title edits that file: the lines that begin with
a space or a minus must stand there, together and once. In a `console` block every line after `$ ` is a command, and
the lines below it are what it must print; `...` stands for any text.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

Ended = subprocess.CompletedProcess[str]
ROOT = Path(__file__).parents[2]
_BLOCK = re.compile(r"^```(?P<lang>\w+)(?: title=\"(?P<title>[^\"]+)\")?[^\n]*\n(?P<text>.*?)^```$", re.M | re.S)


@dataclass(frozen=True, slots=True, kw_only=True)
class Block:
    """One fenced block of a page."""

    language: str
    title: str | None
    text: str
    line: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Command:
    """One command of a console block and the output that the page shows for it."""

    line: str
    shown: str


def read_blocks(page: Path) -> list[Block]:
    """All fenced blocks of a page, in order."""
    text = page.read_text()
    return [
        Block(language=m["lang"], title=m["title"], text=m["text"], line=text.count("\n", 0, m.start()) + 1)
        for m in _BLOCK.finditer(text)
    ]


def read_commands(block: Block) -> list[Command]:
    """The commands of a console block; a line that ends with a backslash goes on in the next one."""
    parts = re.split(r"^\$ ", block.text.replace("\\\n", ""), flags=re.M)
    assert not parts[0].strip(), f"line {block.line}: a console block begins with a command"
    return [
        Command(line=part.partition("\n")[0].partition("  #")[0].strip(), shown=part.partition("\n")[2].strip())
        for part in parts[1:]
    ]


def apply_edit(file: Path, diff: str) -> None:
    """Replace the one place that shows the unchanged and removed lines of a diff by its unchanged and added lines."""
    for hunk in re.split(r"^@@.*\n", diff, flags=re.M):
        if not hunk.strip():
            continue
        lines = hunk.splitlines(keepends=True)
        before = "".join(line[1:] if line.strip() else line for line in lines if not line.startswith("+"))
        after = "".join(line[1:] if line.strip() else line for line in lines if not line.startswith("-"))
        text = file.read_text()
        assert text.count(before) == 1, f"{file}: the page edits lines that are there {text.count(before)} times"
        file.write_text(text.replace(before, after))


def matches(shown: str, printed: str) -> bool:
    """Whether a command printed the lines that the page shows, apart from `...` and spaces at line ends."""
    if not shown:
        return True
    pattern = r"[\s\S]*?".join(re.escape(" ".join(part.split())) for part in shown.split("..."))
    return re.search(pattern.replace(r"\ ", r"\s+"), " ".join(printed.split())) is not None


def run(command: str, folder: Path, source: Path = ROOT / "src", **environment: str) -> Ended:
    """Run a command of a page in a folder, with this source before the installed one."""
    return subprocess.run(
        ["bash", "-euo", "pipefail", "-c", command],
        cwd=folder,
        env={
            **os.environ,
            "PYTHONPATH": f"{source}{os.pathsep}{folder}",
            "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
            "NO_COLOR": "1",
            "COLUMNS": "120",
            **environment,
        },
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )


def follow(page: Path, folder: Path, run_command: Callable[[str, Path], Ended] = run) -> int:
    """Do what a page says, in a folder, and compare what its commands print; how many commands were run."""
    done = 0
    for block in read_blocks(page):
        if block.title:
            edit_file(block, folder)
        elif block.language == "console":
            for command in read_commands(block):
                ended = run_command(command.line, folder)
                said = ended.stdout + ended.stderr
                assert ended.returncode == 0, f"{page.name}: {command.line} ended with {ended.returncode}\n{said}"
                assert matches(command.shown, said), f"{page.name}: {command.line} printed\n{said}"
                done += 1
    return done


def edit(page: Path, folder: Path) -> list[Path]:
    """Make the files and edits of a page without running its commands; the files touched."""
    return [edit_file(block, folder) for block in read_blocks(page) if block.title]


def edit_file(block: Block, folder: Path) -> Path:
    """Write the file that a block holds, or apply the edit that it shows."""
    assert block.title is not None
    file = folder / block.title
    if block.language == "diff":
        apply_edit(file, block.text)
        return file
    assert not file.exists(), f"line {block.line}: {block.title} is there already; show a diff"
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(block.text)
    return file

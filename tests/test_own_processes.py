"""Processes that Prism starts for itself import nothing from the folder it is used in, where others may leave files."""

from __future__ import annotations

import ast
from pathlib import Path

SOURCE = Path(__file__).parents[1] / "src" / "prism"
SAFE = {"-P", "-I"}  # of Python: neither puts the current folder on the module path
OF_USERS = {"torch.distributed.run"}  # the tour shows the command that a user would type


def find_unsafe(text: str) -> list[int]:
    """Lines of commands that start this Python with the current folder on its module path."""
    lines = []
    for node in ast.walk(ast.parse(text)):
        if not isinstance(node, ast.List | ast.Tuple):
            continue
        words = [ast.unparse(word) for word in node.elts]
        options = [str(word.value) for word in node.elts if isinstance(word, ast.Constant)]
        has_path = not {"-m", "-c", "-"}.isdisjoint(options) and SAFE.isdisjoint(options)
        if "sys.executable" in words and has_path and OF_USERS.isdisjoint(options):
            lines.append(node.lineno)
    return lines


def test_commands_that_would_look_for_modules_in_the_current_folder_are_found() -> None:
    text = (
        "import sys\na = [sys.executable, '-c', x]\nb = [sys.executable, '-P', '-m', x]\nc = (sys.executable, '-m', x)"
    )
    assert find_unsafe(text) == [2, 4]


def test_no_process_of_ours_looks_for_modules_in_the_current_folder() -> None:
    files = [file for file in SOURCE.rglob("*.py") if "sys.executable" in file.read_text()]
    assert len(files) >= 8
    assert [f"{file}:{line}" for file in files for line in find_unsafe(file.read_text())] == []

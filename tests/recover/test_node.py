"""What stands around the command on a host, with processes that are made up: which of them train, and which end."""

from __future__ import annotations

import json
import os
import signal
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from prism.recover.supervise.launchers import node

KEY = "/runs/a/attempt-1"


class Table:
    """Processes of a host that is made up: pid, parent, command line, environment, state."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.rows: dict[int, tuple[int, list[str], dict[str, str], str]] = {}
        self.sent: list[tuple[int, int]] = []
        monkeypatch.setattr(node, "_read", self._read)
        monkeypatch.setattr(node, "Path", self._open)
        monkeypatch.setattr(node.os, "kill", self._kill)
        monkeypatch.setattr(node.os, "getpid", lambda: 1000)

    def add(self, pid: int, parent: int, words: str, *, key: str = KEY, state: str = "S", **variables: str) -> None:
        marked = {"PRISM_ATTEMPT_KEY": key} if key else {}
        self.rows[pid] = (parent, words.split(), marked | variables, state)

    def _read(self, pid: int, name: str) -> bytes:
        if pid not in self.rows:
            return b""
        parent, words, variables, state = self.rows[pid]
        if name == "cmdline":
            return "\0".join(words).encode() + b"\0"
        if name == "environ":
            return b"\0".join(f"{k}={v}".encode() for k, v in variables.items())
        return f"{pid} (a ) name) {state} {parent} {' '.join(['0'] * 17)} {pid * 7} 0".encode()

    def _open(self, path: object) -> object:
        if str(path) != "/proc":
            return Path(str(path))
        entries = [SimpleNamespace(name=str(pid)) for pid in self.rows] + [SimpleNamespace(name="meminfo")]
        return SimpleNamespace(iterdir=lambda: iter(entries))

    def _kill(self, pid: int, number: int) -> None:
        self.sent.append((pid, number))
        if pid not in self.rows:
            raise ProcessLookupError
        if number == signal.SIGKILL:
            del self.rows[pid]


@pytest.fixture
def table(monkeypatch: pytest.MonkeyPatch) -> Table:
    return Table(monkeypatch)


def test_marked_processes_live_carry_the_mark_and_are_not_this_one(table: Table) -> None:
    table.add(10, 1, "python train.py")
    table.add(11, 1, "python train.py", key=KEY + "1")
    table.add(12, 1, "python train.py", state="Z")
    table.add(13, 1, "python train.py", key="")
    table.add(1000, 1, "python node.py end")
    assert node.find_marked(KEY) == [10]


def test_a_child_that_was_started_with_an_environment_of_its_own_belongs_to_its_parent(table: Table) -> None:
    table.add(10, 1, "env -i sh train.sh")
    table.add(11, 10, "sh train.sh", key="")
    table.add(12, 11, "./trainer", key="")
    table.add(20, 10, "python -S node.py run", key="/runs/inner/1")  # of a supervisor below this one
    table.add(21, 20, "sh other.sh", key="")
    table.add(22, 1, "sh other.sh", key="")
    assert node.find_marked(KEY) == [10, 11, 12]
    assert node.find_marked("/runs/inner/1") == [20, 21]


def test_a_process_of_another_user_does_not_hold_the_end_up(table: Table, monkeypatch: pytest.MonkeyPatch) -> None:
    table.add(10, 1, "sh train.sh")
    table.add(11, 10, "sudo helper", key="")

    def kill(pid: int, number: int) -> None:
        if pid == 11:
            raise PermissionError
        table._kill(pid, number)

    monkeypatch.setattr(node.os, "kill", kill)
    node.end_marked(KEY, 0.0)
    assert set(table.rows) == {11}


def test_state_and_start_are_read_behind_a_name_with_brackets(table: Table) -> None:
    table.add(10, 3, "python train.py")
    assert (node.read_stat(10), node.parent_of(10)) == (("S", 70), 3)
    assert (node.read_stat(11), node.parent_of(11)) == (None, 0)


@pytest.mark.parametrize(
    ("words", "starts"),
    [
        ("bash -c x", True), ("/usr/bin/env python train.py", True), ("python -m torch.distributed.run train.py", True),
        ("python /opt/bin/torchrun train.py", True), ("python train.py --steps 5 --with torchrun", False),
        ("python train.py", False), ("./trainer", False), ("python train.py --backend deepspeed", False),
    ],
)  # fmt: skip
def test_launchers_and_shells_only_start_others(table: Table, words: str, starts: bool) -> None:
    table.add(10, 1, words)
    assert node.is_launcher(10) is starts
    assert node.is_launcher(99), "a process that is gone trains nothing"


def test_ranks_are_the_topmost_that_have_their_number(table: Table) -> None:
    table.add(10, 1, "python -m torch.distributed.run train.py")
    table.add(11, 10, "python train.py", RANK="0")
    table.add(12, 11, "python train.py", RANK="0")  # a data loader
    table.add(13, 10, "python train.py", RANK="1")
    table.add(14, 13, "python -m writer", RANK="1", PRISM_ROLE="writer")
    assert node.find_ranks([10, 11, 12, 13, 14]) == [11, 13]


def test_slurm_numbers_ranks_too_and_torch_comes_first(table: Table) -> None:
    table.add(10, 1, "python train.py", SLURM_PROCID="0")
    assert node.find_ranks([10]) == [10]
    table.add(11, 10, "python worker.py", SLURM_PROCID="0", RANK="3")
    assert node.find_ranks([10, 11]) == [11]


def test_without_numbers_the_topmost_python_program_trains_and_else_all_but_this_program(table: Table) -> None:
    table.add(10, 1, "bash run.sh")
    table.add(11, 10, "python3.11 train.py")
    table.add(12, 11, "nice python helper.py")
    table.add(13, 12, "python loader.py")
    assert node.find_ranks([10, 11, 12, 13]) == [11]
    table.rows.clear()
    table.add(10, 1, "bash run.sh")
    table.add(11, 10, "./trainer")
    table.add(12, 1, f"python -S {node.__file__} run")
    assert node.find_ranks([10, 11, 12]) == [10, 11]


def test_who_reports_as_a_rank_of_this_host_is_one(table: Table, tmp_path: Path) -> None:
    beats = {"beat-0.json": {"pid": 10, "host": "h1"}, "beat-1.json": {"pid": 11, "host": "h2"},
             "beat-2.json": {"pid": 99, "host": "h1"}, "beat-3.json": {"pid": 12}}  # fmt: skip
    for name, beat in beats.items():
        (tmp_path / name).write_text(json.dumps(beat))
    (tmp_path / "beat-4.json").write_text("{half")
    for pid in (10, 11):
        table.add(pid, 1, "python train.py", PRISM_HOST="h1")
    table.add(12, 1, "python train.py")
    assert sorted(node.find_reported([10, 11, 12], tmp_path)) == [10, 12]


def test_a_tree_is_a_process_with_all_below_it(table: Table) -> None:
    for pid, parent in ((10, 1), (11, 10), (12, 11), (13, 1), (1, 0)):
        table.add(pid, parent, "x")
    assert node.find_tree(10) == [10, 11, 12]


def test_with_grace_ranks_alone_are_asked_and_then_all_are_killed(table: Table) -> None:
    table.add(10, 1, "bash run.sh")
    table.add(11, 10, "python train.py", RANK="0")
    table.add(12, 11, "python train.py", RANK="0")
    assert node.end_marked(KEY, 5.0, hurry=lambda: True) == 3
    assert table.sent == [(11, signal.SIGTERM), *((pid, signal.SIGKILL) for pid in (10, 11, 12))]
    table.add(10, 1, "python train.py", RANK="0")
    table.sent.clear()
    assert node.end_marked(KEY, 0.0) == 1
    assert table.sent == [(10, signal.SIGKILL)]
    assert node.end_marked(KEY, 5.0) == 0


def test_asking_tells_how_many_ranks_there_were_and_those_gone_do_not_matter(table: Table) -> None:
    assert node.ask_ranks(KEY) == 0
    table.add(10, 1, "python train.py", RANK="0")
    assert node.ask_ranks(KEY) == 1
    node.send([77], signal.SIGTERM)
    assert table.sent == [(10, signal.SIGTERM), (77, signal.SIGTERM)]


def test_output_and_the_exit_code_of_a_command_are_kept(tmp_path: Path) -> None:
    before = {number: signal.getsignal(number) for number in node._RELAYED}
    try:
        program = "import sys; print('out'); print('err', file=sys.stderr); sys.exit(3)"
        code = node.run(tmp_path / "exit", tmp_path / "log", [sys.executable, "-S", "-c", program])
        killed = node.run(tmp_path / "killed", tmp_path / "log2", ["sh", "-c", "kill -9 $$"])
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
    assert (code, (tmp_path / "exit").read_text()) == (3, "3\n")
    assert sorted((tmp_path / "log").read_text().split()) == ["err", "out"]
    assert (killed, (tmp_path / "killed").read_text()) == (128 + 9, "-9\n")


def test_output_that_cannot_be_written_is_dropped_and_counted(tmp_path: Path) -> None:
    reader, writer = os.pipe()
    folder = tmp_path / "logs"
    chunks = iter([b"lost bytes", b"kept", b""])

    def read(descriptor: int, size: int) -> bytes:
        chunk = next(chunks)
        if chunk == b"kept":
            folder.mkdir()
        return chunk

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(node.os, "read", read)
        node.copy_output(reader, folder / "log")
    os.close(reader)
    os.close(writer)
    text = (folder / "log").read_text()
    assert text == "\n[prism: 10 bytes of output were lost: the log could not be written]\nkept"


@pytest.mark.parametrize(("words", "printed", "code"), [(["count", KEY], "1\n", 0), (["ask", KEY], "", 0), (["ask", "/none"], "", 1)])  # fmt: skip
def test_the_first_word_says_what_to_do(
    table: Table, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], words: list[str], printed: str, code: int
) -> None:  # fmt: skip
    table.add(10, 1, "python train.py", RANK="0")
    monkeypatch.setattr(sys, "argv", ["node.py", *words])
    assert node.main() == code and capsys.readouterr().out == printed

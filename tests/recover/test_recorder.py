"""Flight Recorder is on in supervised jobs, and asked for its dumps before a hung attempt is ended."""

from __future__ import annotations

import os
import select
from pathlib import Path

import pytest

from prism.recover.supervise import recorder
from prism.recover.supervise.config import SuperviseConfig
from prism.recover.supervise.launchers.local import LocalLauncher
from prism.recover.supervise.recorder import ask_for_dumps, recorder_variables
from prism.recover.supervise.runner import Supervisor, Tools


def test_ranks_record_into_the_folder_of_their_attempt(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(recorder, "version", lambda name: "2.13.0+cpu")
    assert recorder_variables(tmp_path, {}) == {
        "TORCH_FR_BUFFER_SIZE": "2000",
        "TORCH_FR_DUMP_TEMP_FILE": str(tmp_path / "nccl_trace_rank_"),
        "TORCH_NCCL_DUMP_ON_TIMEOUT": "1",
        "TORCH_NCCL_DEBUG_INFO_PIPE_FILE": str(tmp_path / "nccl_trace_rank_"),
    }
    monkeypatch.setattr(recorder, "version", lambda name: "2.4.1")
    assert recorder_variables(tmp_path, {})["TORCH_NCCL_TRACE_BUFFER_SIZE"] == "2000"


def test_what_the_user_has_set_under_either_name_stays(tmp_path: Path) -> None:
    own = {
        "TORCH_NCCL_TRACE_BUFFER_SIZE": "0",
        "TORCH_FR_DUMP_TEMP_FILE": "/mine/d_",
        "TORCH_NCCL_DUMP_ON_TIMEOUT": "0",
    }
    assert set(recorder_variables(tmp_path, own)) == {"TORCH_NCCL_DEBUG_INFO_PIPE_FILE"}


def test_ranks_that_listen_are_asked_and_a_pipe_without_a_reader_holds_nobody(tmp_path: Path) -> None:
    for rank in (0, 1):
        os.mkfifo(tmp_path / f"nccl_trace_rank_{rank}.pipe")
    reader = os.open(tmp_path / "nccl_trace_rank_0.pipe", os.O_RDONLY | os.O_NONBLOCK)
    assert ask_for_dumps(tmp_path) == 1
    assert select.select([reader], [], [], 0)[0] and os.read(reader, 1) == b"1"
    os.close(reader)


def test_a_supervised_job_gets_the_variables(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [n for n in os.environ if n.startswith(("TORCH_FR_", "TORCH_NCCL_"))]:
        monkeypatch.delenv(name)
    command = ("sh", "-c", "echo dumps go to $TORCH_FR_DUMP_TEMP_FILE, $TORCH_FR_BUFFER_SIZE entries")
    config = SuperviseConfig(poll_s=0.05)
    tools = Tools(launcher=LocalLauncher(config.launch), say=lambda text: None)
    Supervisor(tmp_path / "run", command, config, tools).run()
    (log,) = (tmp_path / "run" / "attempts").glob("*/*.log")
    assert log.read_text() == f"dumps go to {log.parent / 'nccl_trace_rank_'}, 2000 entries\n"

"""`prism serve` refuses in one line what it cannot do."""

from __future__ import annotations

import socket
import subprocess
import sys
from pathlib import Path

import pytest
from service import PROGRAM

from prism.errors import BadConfigError, InputError
from prism.serve.start import ServeConfig, serve


def refuse(**settings: object) -> str:
    """What is said to a configuration that must not start."""
    with pytest.raises(InputError) as caught:
        serve(ServeConfig(**{"port": 0, **settings}), lambda line: None)  # type: ignore[arg-type]
    return str(caught.value)


def test_a_folder_that_is_not_there_is_named(tmp_path: Path) -> None:
    assert refuse(folder=tmp_path / "nothing").startswith(f"{tmp_path}/nothing: not a folder")


def test_an_address_in_use_is_named(tmp_path: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        assert f"--port {port}: cannot listen there" in refuse(folder=tmp_path, port=port)


def test_a_short_token_is_refused(tmp_path: Path) -> None:
    with pytest.raises(BadConfigError, match="--token has 3 characters"):
        serve(ServeConfig(folder=tmp_path, token="abc", port=0), lambda line: None)


def test_the_command_names_a_token_file_that_is_not_there(tmp_path: Path) -> None:
    command = [sys.executable, "-c", PROGRAM, str(tmp_path), "--token-file", str(tmp_path / "no")]
    done = subprocess.run(command, capture_output=True, text=True, timeout=600)
    assert done.returncode != 0 and "cannot be read as a token" in done.stderr

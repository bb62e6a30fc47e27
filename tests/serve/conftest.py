"""The folder that is served, and clients of it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("fastapi", reason="needs the serve extra: pip install 'prism-llm[serve]'")
pytest.importorskip("uvicorn", reason="needs the serve extra: pip install 'prism-llm[serve]'")

from made_once import make_once
from served_folder import make_folder
from starlette.testclient import TestClient

from prism.serve.web.app import AppConfig, create_app
from prism.serve.web.guard import GuardConfig


@pytest.fixture(scope="session")
def served(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with something for every page, made once for all workers; tests must not change it."""
    return make_once(tmp_path_factory, "served", make_folder)


@pytest.fixture(scope="session")
def client(served: Path) -> Iterator[TestClient]:
    """The application without a socket; on a busy machine its answers may take long."""
    app = create_app(AppConfig(folder=served, guard=GuardConfig(most_seconds=600.0)))
    with TestClient(app, base_url="http://127.0.0.1") as session:
        yield session


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    """A Chromium for the tests of one file."""
    from browser import open_browser

    with open_browser() as opened:
        yield opened

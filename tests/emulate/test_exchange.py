"""A rank's end of the exchange."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from dataclasses import replace
from multiprocessing.connection import Listener
from pathlib import Path

import pytest

from prism.emulate.inside import exchange
from prism.emulate.inside.exchange import Exchange
from prism.emulate.inside.plan import RunPlan

_TOKEN = "token"


@pytest.fixture
def plan(tmp_path: Path) -> RunPlan:
    return RunPlan(
        rank=3, world_size=8, gpus_per_node=8, output="", address=str(tmp_path / "exchange"), token=_TOKEN, steps=1
    )


class Server:
    """Answers a request only when it is told to."""

    def __init__(self, plan: RunPlan) -> None:
        self.may_answer = threading.Event()
        self._listener = Listener(plan.address, authkey=_TOKEN.encode())
        self.thread = threading.Thread(target=self._serve, daemon=True)
        self.thread.start()

    def _serve(self) -> None:
        with self._listener, self._listener.accept() as connection:
            connection.recv()  # hello
            connection.send(("ok", None))
            connection.recv()
            self.may_answer.wait()
            connection.send(("ok", b"bytes"))


@pytest.fixture
def server(plan: RunPlan) -> Iterator[Server]:
    server = Server(plan)
    yield server
    server.may_answer.set()
    server.thread.join()


def test_an_unmeasured_rank_that_waits_gives_its_spare_memory_back(
    plan: RunPlan, server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(exchange.torch.cuda, "is_initialized", lambda: True)
    # The peer answers only once the memory was given back: else this would wait for ever.
    monkeypatch.setattr(exchange.torch.cuda, "empty_cache", server.may_answer.set)

    assert Exchange(plan).get("channel", 0, 1, "train.py:1") == b"bytes"
    assert server.may_answer.is_set()


def test_a_measured_rank_keeps_its_memory_while_it_waits(
    plan: RunPlan, server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(exchange, "give_back_memory", lambda: pytest.fail("a measured rank gave memory back"))
    threading.Timer(2 * exchange._SHORT_WAIT_S, server.may_answer.set).start()

    assert Exchange(replace(plan, steps=0)).get("channel", 0, 1, "train.py:1") == b"bytes"

"""One address does not take the connections of all others."""

from __future__ import annotations

import asyncio
from typing import Any
from unittest.mock import MagicMock

import uvicorn

from prism.serve.web.connection import is_loopback, limit_requests


def connect(protocol: Any, address: str) -> tuple[Any, Any]:
    config = uvicorn.Config(app=lambda *_: None, log_config=None)
    config.load()
    made = protocol(config=config, server_state=uvicorn.server.ServerState(), app_state={})
    transport = MagicMock()
    transport.get_extra_info.side_effect = lambda name: (address, 1) if name == "peername" else None
    made.connection_made(transport)
    return made, transport


def test_an_address_that_holds_its_share_gets_no_more_until_it_closes_one() -> None:
    async def try_it() -> None:
        protocol = limit_requests(10.0, 2)
        first, _ = connect(protocol, "10.0.0.1")
        connect(protocol, "10.0.0.1")
        third, refused = connect(protocol, "10.0.0.1")
        assert refused.abort.called
        third.connection_lost(None)
        assert not connect(protocol, "10.0.0.2")[1].abort.called, "others are let in"
        first.connection_lost(None)
        assert not connect(protocol, "10.0.0.1")[1].abort.called
        assert not any(connect(protocol, "127.0.0.1")[1].abort.called for _ in range(5)), "a proxy on this machine"

    asyncio.run(try_it())


def test_what_counts_as_this_machine() -> None:
    assert [is_loopback(name) for name in ("127.0.0.1", "::1", "", "10.0.0.1", "x")] == [True, True, True, False, False]

"""Limits on connections: a request must arrive complete within a time and a size, or its connection is closed."""

from __future__ import annotations

import asyncio
from collections import Counter
from importlib.util import find_spec
from ipaddress import ip_address
from typing import TYPE_CHECKING, Any, ClassVar

if TYPE_CHECKING:
    from uvicorn.protocols.http.h11_impl import H11Protocol as HttpProtocol
elif find_spec("httptools"):
    # Written in C: an answer takes a third of the processor time that h11 needs.
    from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol as HttpProtocol
else:
    from uvicorn.protocols.http.h11_impl import H11Protocol as HttpProtocol

_GRACE_SECONDS = 0.2
_MOST_HEAD_BYTES = 64 << 10


class BoundedProtocol(HttpProtocol):
    """HTTP/1.1 with a limit from the opening of a connection, or the last answer, to the next complete request."""

    request_seconds = 10.0
    _deadline: asyncio.TimerHandle | None = None
    most_of_one = 512  # connections of one address that is not this machine; a proxy there is this machine
    open_of: ClassVar[Counter[str]] = Counter()  # by address; each server has its own
    _client = ""
    _num_waiting = 0  # bytes of a request that is not complete yet

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Start the clock; one address may not take all connections from the others."""
        super().connection_made(transport)
        self._client = str((transport.get_extra_info("peername") or ("",))[0])
        self.open_of[self._client] += 1
        if self.open_of[self._client] > self.most_of_one and not is_loopback(self._client):
            transport.abort()
            return
        self._set_deadline()

    def connection_lost(self, exc: Exception | None) -> None:
        """Stop the clock."""
        self._cancel_deadline()
        self.open_of[self._client] -= 1
        if self.open_of[self._client] <= 0:
            del self.open_of[self._client]
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        """Receive bytes; an incomplete request that grows too large is refused."""
        before: Any = self.cycle
        super().data_received(data)
        self._num_waiting = 0 if self.cycle is not before else self._num_waiting + len(data)
        if self._num_waiting > _MOST_HEAD_BYTES and not self.transport.is_closing():
            self.send_400_response("The request is too large.")
            self.transport.close()

    def on_response_complete(self) -> None:
        """Restart the clock for the next request."""
        super().on_response_complete()
        self._num_waiting = 0
        self._cancel_deadline()
        if not self.transport.is_closing():
            self._set_deadline()

    def _set_deadline(self) -> None:
        self._deadline = self.loop.call_later(self.request_seconds, self._look_again)

    def _look_again(self) -> None:
        # If the service itself was late, the request may be in the socket, not read yet.
        self._deadline = self.loop.call_later(_GRACE_SECONDS, self._close_if_idle)

    def _cancel_deadline(self) -> None:
        if self._deadline is not None:
            self._deadline.cancel()
            self._deadline = None

    def _close_if_idle(self) -> None:
        answering = self.cycle is not None and not self.cycle.response_complete
        if not answering and not self.transport.is_closing():
            self.transport.close()


def is_loopback(address: str) -> bool:
    """Whether a client is on this machine."""
    try:
        return ip_address(address).is_loopback
    except ValueError:
        return not address  # a Unix socket has none


def limit_requests(seconds: float, most_of_one: int) -> type[BoundedProtocol]:
    """The protocol with these limits, as a class, because uvicorn takes no object."""
    limits = {"request_seconds": seconds, "most_of_one": most_of_one, "open_of": Counter[str]()}
    return type("LimitedProtocol", (BoundedProtocol,), limits)

"""Connections that bring no whole request in time are closed: a slow client must not hold one for ever."""

from __future__ import annotations

import asyncio

from uvicorn.protocols.http.h11_impl import H11Protocol

_GRACE_SECONDS = 0.2


class TimedProtocol(H11Protocol):
    """HTTP/1.1 with a limit on the time from opening a connection, or from the answer before, to a whole request."""

    request_seconds = 10.0
    _deadline: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Start the clock."""
        super().connection_made(transport)
        self._set_deadline()

    def connection_lost(self, exc: Exception | None) -> None:
        """Stop the clock."""
        self._cancel_deadline()
        super().connection_lost(exc)

    def on_response_complete(self) -> None:
        """The next request has its own time."""
        super().on_response_complete()
        self._cancel_deadline()
        if not self.transport.is_closing():
            self._set_deadline()

    def _set_deadline(self) -> None:
        self._deadline = self.loop.call_later(self.request_seconds, self._look_again)

    def _look_again(self) -> None:
        # When the service itself was late, the request may lie in the socket, not yet read.
        self._deadline = self.loop.call_later(_GRACE_SECONDS, self._close_if_idle)

    def _cancel_deadline(self) -> None:
        if self._deadline is not None:
            self._deadline.cancel()
            self._deadline = None

    def _close_if_idle(self) -> None:
        answering = self.cycle is not None and not self.cycle.response_complete
        if not answering and not self.transport.is_closing():
            self.transport.close()


def limit_requests(seconds: float) -> type[TimedProtocol]:
    """The protocol with another limit; uvicorn takes a class, not an object."""
    return type("LimitedProtocol", (TimedProtocol,), {"request_seconds": seconds})

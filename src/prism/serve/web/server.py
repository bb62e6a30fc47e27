"""The server itself: a socket, and uvicorn with our limits."""

from __future__ import annotations

import socket
from dataclasses import dataclass

import uvicorn
from starlette.types import ASGIApp

from prism.errors import BadConfigError
from prism.serve.web.connection import limit_requests

_BACKLOG = 2_048


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerConfig:
    """Where to listen, and how much at once."""

    host: str
    port: int
    most_connections: int
    request_s: float


def run_server(app: ASGIApp, config: ServerConfig, listener: socket.socket) -> None:
    """Serve until a signal to stop."""
    server = uvicorn.Server(
        uvicorn.Config(
            app,
            http=limit_requests(config.request_s, max(1, config.most_connections // 4)),
            ws="none",
            lifespan="on",
            log_level="warning",
            access_log=False,
            server_header=False,
            date_header=False,
            backlog=_BACKLOG,
            limit_concurrency=config.most_connections,
            timeout_keep_alive=30,
            timeout_graceful_shutdown=3,
        )
    )
    server.run(sockets=[listener])


def open_socket(host: str, port: int, *, several: bool = False, listen: bool = True) -> socket.socket:
    """A socket on an address; port 0 takes a free one. With `several`, processes share the port by connections."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    opened = socket.socket(family, socket.SOCK_STREAM)
    try:
        opened.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if several:
            opened.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        opened.bind((host.strip("[]"), port))
        if listen:
            opened.listen(_BACKLOG)
    except (OSError, OverflowError) as error:
        opened.close()
        reason = getattr(error, "strerror", None) or error
        raise BadConfigError(f"--host {host} --port {port}: cannot listen there ({reason}); choose another") from None
    return opened

"""Starting the service: which address, who may come, and the server itself."""

from __future__ import annotations

import logging
import secrets
import socket
from collections.abc import Callable
from dataclasses import dataclass
from importlib.util import find_spec
from ipaddress import ip_address
from pathlib import Path
from urllib.parse import quote

from prism.errors import BadConfigError, MissingExtraError

_LEAST_TOKEN = 16


@dataclass(frozen=True, slots=True, kw_only=True)
class ServeConfig:
    """Where and to whom."""

    folder: Path
    host: str = "127.0.0.1"
    port: int = 8042
    token: str | None = None  # made up where the address is not loopback and none is given
    allow_hosts: tuple[str, ...] = ()  # names that a reverse proxy passes on in Host
    look_every_s: float = 1.0
    depth: int = 6
    most_connections: int = 1_024
    request_s: float = 10.0  # for a client to send its request
    answer_s: float = 30.0  # for an answer to be made and taken


def is_loopback(host: str) -> bool:
    """Whether only this machine can reach the address."""
    try:
        return ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return host == "localhost"


def choose_token(config: ServeConfig) -> str | None:
    """The token that is asked for: as given, a new one on an address that others reach, none on loopback."""
    if config.token is not None:
        if len(config.token) < _LEAST_TOKEN:
            raise BadConfigError(f"--token has {len(config.token)} characters, {_LEAST_TOKEN} are the least")
        return config.token
    return None if is_loopback(config.host) else secrets.token_urlsafe(24)


def serve(config: ServeConfig, say: Callable[[str], None]) -> None:
    """Serve a folder until stopped; `say` gets the address to open."""
    for name in ("fastapi", "uvicorn", "plotly"):
        if find_spec(name) is None:
            raise MissingExtraError("prism serve", "serve")
    import uvicorn

    from prism.serve.folder import ScanLimits
    from prism.serve.web.app import AppConfig, create_app
    from prism.serve.web.connection import limit_requests
    from prism.serve.web.guard import LOOPBACK, GuardConfig

    token = choose_token(config)
    names = LOOPBACK | {name.lower() for name in config.allow_hosts} if is_loopback(config.host) else None
    app = create_app(
        AppConfig(
            folder=config.folder,
            look_every_s=config.look_every_s,
            limits=ScanLimits(depth=config.depth),
            guard=GuardConfig(
                token=token,
                hosts=frozenset(names) if names is not None else None,
                most_seconds=config.answer_s,
            ),
        )
    )
    listener = open_socket(config.host, config.port)
    logging.getLogger("prism.serve").addHandler(logging.StreamHandler())
    say(f"serving {config.folder} on {describe_address(config.host, listener, token)}")
    if token is not None and config.token is None:
        say("whoever has this address can read the folder; the token is new at every start unless --token is given")
    server = uvicorn.Server(
        uvicorn.Config(
            app,
            http=limit_requests(config.request_s),
            ws="none",
            lifespan="on",
            log_level="warning",
            access_log=False,
            server_header=False,
            date_header=False,
            backlog=2_048,
            limit_concurrency=config.most_connections,
            timeout_keep_alive=30,
            timeout_graceful_shutdown=3,
        )
    )
    server.run(sockets=[listener])


def open_socket(host: str, port: int) -> socket.socket:
    """Listen on an address; port 0 takes a free one."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    listener = socket.socket(family, socket.SOCK_STREAM)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind((host.strip("[]"), port))
        listener.listen(2_048)
    except (OSError, OverflowError) as error:
        listener.close()
        reason = getattr(error, "strerror", None) or error
        raise BadConfigError(f"--host {host} --port {port}: cannot listen there ({reason}); choose another") from None
    return listener


def describe_address(host: str, listener: socket.socket, token: str | None) -> str:
    """The address to open."""
    shown = f"[{host.strip('[]')}]" if ":" in host else host
    if shown in ("0.0.0.0", "[::]"):
        shown = socket.gethostname()
    address = f"http://{shown}:{listener.getsockname()[1]}/"
    return address if token is None else f"{address}?token={quote(token)}"

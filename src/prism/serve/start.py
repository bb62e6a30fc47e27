"""Starting the service: its address, who may use it, and the server itself."""

from __future__ import annotations

import logging
import os
import pwd
import secrets
import socket
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, replace
from importlib.util import find_spec
from ipaddress import IPv4Network, IPv6Network, ip_address, ip_network
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import quote

from prism.errors import BadConfigError, MissingExtraError

if TYPE_CHECKING:
    from prism.serve.web.app import AppConfig

_LEAST_TOKEN = 16
_FIRST_PERSON, _NOBODY = 1_000, 60_000  # user ids of people, by the custom of Linux distributions
_NO_SHELLS = frozenset({"nologin", "false", "sync", ""})


@dataclass(frozen=True, slots=True, kw_only=True)
class ServeConfig:
    """Where to serve, and who may read."""

    folder: Path
    host: str = "127.0.0.1"
    port: int = 8042
    token: str | None = None  # generated if others can reach the address and none is given
    ask_token: bool | None = None  # None: if others can reach it; False: never on loopback
    prefix: str = ""  # of every path, where a reverse proxy passes it on
    most_files: int = 200_000
    allow_hosts: tuple[str, ...] = ()  # host names by which a reverse proxy is reached
    look_every_s: float = 0.5
    workers: int = 1  # processes that answer
    depth: int = 6
    most_connections: int = 1_024
    request_s: float = 10.0  # for a client to send its request
    answer_s: float = 30.0  # for an answer to be computed and received
    state: Path | None = None  # where the index and what people write are kept; None: in memory, nothing is written
    rebuild: bool = False  # delete the index and read every file again
    keep_days: float = 400.0
    clusters: bool = False  # each folder at the top is a cluster
    price: float | None = None  # of a GPU-hour
    currency: str = "$"
    alerts_file: Path | None = None
    tokens_file: Path | None = None
    trust_proxies: tuple[str, ...] = ()  # addresses or networks of proxies that name the user
    user_header: str = "X-Forwarded-User"


def is_loopback(host: str) -> bool:
    """Whether only this machine can reach the address."""
    try:
        return ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return host == "localhost"


def has_other_users() -> bool:
    """Whether other people may log in to this machine: they can reach its loopback address, too."""
    me = os.getuid()
    people = {user.pw_uid for user in pwd.getpwall() if user.pw_shell.rpartition("/")[2] not in _NO_SHELLS}
    # A directory service may list no users, so users with a home folder or a process here count, too.
    for path in (*Path("/home").glob("*"), *Path("/proc").glob("[0-9]*")):
        with suppress(OSError):
            people.add(path.stat().st_uid)
    return any(_FIRST_PERSON <= user < _NOBODY and user != me for user in people)


def choose_token(config: ServeConfig) -> str | None:
    """The token to ask for: the given one, or a new one if others can reach the address."""
    if config.token is not None:
        if len(config.token) < _LEAST_TOKEN:
            raise BadConfigError(f"--token has {len(config.token)} characters, {_LEAST_TOKEN} are the least")
        return config.token
    if not is_loopback(config.host):
        if config.ask_token is False:
            raise BadConfigError(f"--no-token: {config.host} is reached from other machines; listen on 127.0.0.1")
        return secrets.token_urlsafe(24)
    asked = has_other_users() if config.ask_token is None else config.ask_token
    return secrets.token_urlsafe(24) if asked else None


def serve(config: ServeConfig, say: Callable[[str], None]) -> None:
    """Serve a folder until stopped; `say` gets the address to open."""
    for name in ("fastapi", "uvicorn"):
        if find_spec(name) is None:
            raise MissingExtraError("prism serve", "serve")
    from prism.serve.web.app import create_app
    from prism.serve.web.server import ServerConfig, open_socket, run_server
    from prism.serve.workers import keep_port, serve_with_workers

    token = choose_token(config)
    app_config = make_app_config(config, token)
    app = create_app(app_config) if config.workers == 1 else None
    listener = open_socket(config.host, config.port) if app is not None else keep_port(config.host, config.port)

    def ready() -> None:
        say(f"serving {config.folder} on {describe_address(config, listener, token)}")
        if token is not None and config.token is None:
            say("anyone who has this address can read the folder; without --token the token is new at every start")

    logging.getLogger("prism.serve").addHandler(logging.StreamHandler())
    port: int = listener.getsockname()[1]
    server = ServerConfig(
        host=config.host, port=port, most_connections=config.most_connections, request_s=config.request_s
    )
    with listener:
        if app is not None:
            ready()
            run_server(app, server, listener)
        else:
            serve_with_workers(app_config, server, config.workers, ready)


def make_app_config(config: ServeConfig, token: str | None) -> AppConfig:
    """The configuration of the service; reads the files that the options name."""
    from prism.incidents import AlertConfig, read_alerts
    from prism.serve.folder import ScanLimits
    from prism.serve.history.database import forget_index
    from prism.serve.history.index import HistoryConfig
    from prism.serve.tokens import read_tokens
    from prism.serve.views.datacenter import Price
    from prism.serve.web.app import AppConfig
    from prism.serve.web.guard import LOOPBACK, GuardConfig

    if config.rebuild and config.state is not None:
        forget_index(config.state)
    names = LOOPBACK | {name.lower() for name in config.allow_hosts} if is_loopback(config.host) else None
    guard = GuardConfig(
        token=token,
        hosts=frozenset(names) if names is not None else None,
        most_seconds=config.answer_s,
        prefix=check_prefix(config.prefix),
        tokens=read_tokens(config.tokens_file) if config.tokens_file is not None else (),
        trusted_proxies=check_proxies(config.trust_proxies),
        user_header=config.user_header if config.trust_proxies else "",
        writable=config.state is not None,
    )
    return AppConfig(
        folder=config.folder,
        look_every_s=config.look_every_s,
        limits=ScanLimits(depth=config.depth, files=config.most_files),
        guard=guard,
        history=HistoryConfig(state=config.state, keep_days=config.keep_days, clusters=config.clusters),
        alerts=replace(
            read_alerts(config.alerts_file) if config.alerts_file is not None else AlertConfig(),
            price=config.price,
            currency=config.currency,
        ),
        price=Price(per_gpu_hour=config.price, currency=config.currency),
    )


def check_prefix(text: str) -> str:
    """A prefix with a slash before and none after; "" for none."""
    prefix = text.strip("/")
    odd = any(part in ("", ".", "..") for part in prefix.split("/"))
    if prefix and (odd or "?" in prefix or not prefix.isprintable()):
        raise BadConfigError(f"--prefix {text}: not a path; write it like /prism")
    return f"/{prefix}" if prefix else ""


def check_proxies(texts: tuple[str, ...]) -> tuple[IPv4Network | IPv6Network, ...]:
    """Addresses or networks of proxies."""
    try:
        return tuple(ip_network(text) for text in texts)
    except ValueError as error:
        raise BadConfigError(f"--trust-proxy: {error}; write an address or a network such as 10.0.0.0/24") from None


def describe_address(config: ServeConfig, listener: socket.socket, token: str | None) -> str:
    """The address to open."""
    host = config.host
    shown = f"[{host.strip('[]')}]" if ":" in host else host
    if shown in ("0.0.0.0", "[::]"):
        shown = socket.gethostname()
    address = f"http://{shown}:{listener.getsockname()[1]}{check_prefix(config.prefix)}/"
    return address if token is None else f"{address}?token={quote(token)}"

"""Who is told of incidents: the file of --alerts."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, cast, get_args
from urllib.parse import urlsplit

import yaml

from prism.errors import BadFileError
from prism.incidents.kinds import SEVERITIES, Severity
from prism.machine.requests import Receiver

ChannelType = Literal["webhook", "slack", "alertmanager", "pagerduty"]
_PAGERDUTY = "https://events.pagerduty.com/v2/enqueue"


@dataclass(frozen=True, slots=True, kw_only=True)
class Channel:
    """A receiver of incidents. Its address, headers and key may be secrets: only name and type are ever shown."""

    name: str
    type: ChannelType
    url: str = field(repr=False)
    headers: Mapping[str, str] = field(default_factory=dict, repr=False)
    key: str = field(default="", repr=False)  # PagerDuty's integration key
    least: Severity = "ticket"  # less urgent incidents are not told here
    owner: str = ""  # only incidents of this owner; "" for all

    @property
    def receiver(self) -> Receiver:
        """For the sender."""
        url = self.url
        if self.type == "alertmanager" and not url.rstrip("/").endswith("/api/v2/alerts"):
            url = url.rstrip("/") + "/api/v2/alerts"
        return Receiver(name=self.name, url=url, headers=self.headers)


@dataclass(frozen=True, slots=True, kw_only=True)
class AlertConfig:
    """The channels, the least loss that is worth a message, and how links begin."""

    channels: tuple[Channel, ...] = ()
    public_url: str = ""  # of this service, for links
    least_lost_gpu_s: float = 0.0
    price: float | None = None  # of a GPU-hour
    currency: str = "$"
    repeat_s: float = 60.0  # Alertmanager drops alerts that are not sent again
    holds_s: float = 300.0


def read_alerts(path: Path) -> AlertConfig:
    """The file of --alerts: public_url, least_lost_gpu_s, and channels with name, type, url and headers."""
    try:
        document = yaml.safe_load(path.read_text())
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
        raise BadFileError(f"{path}: cannot be read ({error}); check the file") from None
    rows = document.get("channels") if isinstance(document, dict) else None
    if not isinstance(rows, list):
        raise BadFileError(f"{path}: expected a list 'channels', each with name, type and url")
    channels = tuple(_read_channel(row, f"{path} channel {number}") for number, row in enumerate(rows, start=1))
    if len({channel.name for channel in channels}) < len(channels):
        raise BadFileError(f"{path}: two channels have one name; give each its own")
    try:
        least = float(document.get("least_lost_gpu_s", 0.0))
    except (TypeError, ValueError):
        raise BadFileError(f"{path}: least_lost_gpu_s is not a number") from None
    return AlertConfig(channels=channels, public_url=str(document.get("public_url", "")), least_lost_gpu_s=least)


def _read_channel(row: Any, where: str) -> Channel:
    types = get_args(ChannelType)
    kind = row.get("type") if isinstance(row, dict) else None
    if not isinstance(row, dict) or kind not in types:
        raise BadFileError(f"{where}: type is {kind!r}; choose of {', '.join(types)}")
    key = str(row.get("key") or "")
    if kind == "pagerduty" and not key:
        raise BadFileError(f"{where}: 'key' is missing, the integration key of a PagerDuty service (Events API v2)")
    url = str(row.get("url") or (_PAGERDUTY if kind == "pagerduty" else ""))
    if urlsplit(url).scheme not in ("http", "https"):
        raise BadFileError(f"{where}: url does not begin with http:// or https://")
    headers = row.get("headers") or {}
    if not isinstance(headers, dict):
        raise BadFileError(f"{where}: headers is not a table of names and values")
    least = row.get("least", "page" if kind == "pagerduty" else "ticket")
    if least not in SEVERITIES:
        raise BadFileError(f"{where}: least is {least!r}; choose of {', '.join(SEVERITIES)}")
    return Channel(
        name=str(row.get("name") or kind),
        type=cast(ChannelType, kind),
        url=url,
        headers={str(name): str(value) for name, value in headers.items()},
        key=key,
        least=least,
        owner=str(row.get("owner") or ""),
    )

"""Telling people: hands each decided message to the sender once, and keeps Alertmanager in line with what is open."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from prism.incidents.channels import AlertConfig, Channel
from prism.incidents.events import Tell
from prism.incidents.incident import Incident, Place, Witness
from prism.incidents.kinds import SEVERITIES
from prism.incidents.messages import write_body
from prism.machine.requests import post_once
from prism.machine.sender import Delivery, Sender, SenderConfig

QUEUE_FILE = "messages.sqlite"


class Teller:
    """Sends incidents to the channels that want them."""

    def __init__(
        self,
        config: AlertConfig,
        state: Path | None,
        clock: Callable[[], float] = time.time,
        sending: SenderConfig | None = None,
    ) -> None:
        self.config, self.clock = config, clock
        receivers = tuple(channel.receiver for channel in config.channels)
        self.sender = Sender(receivers, None if state is None else state / QUEUE_FILE, sending, clock=clock)
        self._repeat_at = 0.0

    def tell(self, tell: Tell) -> None:
        """Queue one message for each channel; the same one, told again after a crash, is sent once."""
        for channel in self.config.channels:
            if channel.type == "alertmanager" and tell.what != "resolved":
                self._repeat_at = 0.0  # it is given what is open, which can be late, and not what happened
            elif _wants(channel, tell.incident):
                body = write_body(tell.incident, tell.what, channel, self.config, self.clock())
                key = f"{tell.incident.id}-{tell.incident.since_ns}/{tell.number}"
                self.sender.send(channel.name, body, key=key, once=True)

    def keep_up(self, incidents: Iterable[Incident]) -> None:
        """Repeat what is open, or was when it was lost sight of: Alertmanager takes silence for an end."""
        if self.clock() < self._repeat_at:
            return
        self._repeat_at = self.clock() + self.config.repeat_s
        told = [one for one in incidents if one.told]
        for channel in self.config.channels:
            if channel.type == "alertmanager":
                wanted = [one for one in told if _wants(channel, one)]
                bodies = [write_body(one, "opened", channel, self.config, self.clock())[0] for one in wanted]
                if bodies:
                    self.sender.send(channel.name, bodies, key="repeat")

    def test(self, name: str) -> Delivery | None:
        """Send a test message to a channel; None where there is none of that name."""
        channel = next((channel for channel in self.config.channels if channel.name == name), None)
        if channel is None:
            return None
        self.sender.post_now(name, _write_test(channel, self.config, self.clock()))
        return self.sender.delivery(name)


def post_test(config: AlertConfig, name: str, now_s: float) -> Delivery | None:
    """The same test from a process that has no sender."""
    channel = next((channel for channel in config.channels if channel.name == name), None)
    if channel is None:
        return None
    why = post_once(channel.receiver, _write_test(channel, config, now_s))
    return Delivery(at_s=now_s, ok=not why, why=why, num_sent=int(not why))


def _write_test(channel: Channel, config: AlertConfig, now_s: float) -> Any:
    now_ns = int(now_s * 1e9)
    witness = Witness(
        source="test", tool="serve", key="test", text="This is a test of Prism's alerts.", sure=1.0, lost_gpu_s=0.0,
        since_ns=now_ns, until_ns=now_ns, at_ns=now_ns,
    )  # fmt: skip
    test = Incident(
        id="test", kind="test", job="", job_key="", place=Place(type="host", id="none"), hosts=(),
        witnesses=(witness,), advice="nothing: this is a test", labels={"alertname": "PrismTest"},
    )  # fmt: skip
    return write_body(test, "test", channel, config, now_s)


def _wants(channel: Channel, incident: Incident) -> bool:
    urgent = SEVERITIES.index(incident.severity) >= SEVERITIES.index(channel.least)
    return urgent and channel.owner in ("", incident.owner)

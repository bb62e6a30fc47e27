"""One message for each incident, as each receiver takes it: host, cause, since when, cost, what to do, a link."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

from prism.incidents.channels import AlertConfig, Channel
from prism.incidents.incident import Incident, Tells

_MOST_TEXT = 1_000  # PagerDuty's summary takes 1,024 characters
_SEVERITY = {"page": "critical", "ticket": "warning", "info": "info"}  # PagerDuty's words
_MARK = {"opened": "\N{LARGE RED CIRCLE}", "worse": "\N{LARGE RED CIRCLE}", "resolved": "\N{LARGE GREEN CIRCLE}",
         "test": "\N{BELL}"}  # fmt: skip


def write_body(incident: Incident, what: Tells, channel: Channel, config: AlertConfig, now_s: float) -> Any:
    """The body to post to a channel."""
    if channel.type == "slack":
        return _for_slack(incident, what, config, now_s)
    if channel.type == "alertmanager":
        return [_for_alertmanager(incident, what, config, now_s)]
    if channel.type == "pagerduty":
        return _for_pagerduty(incident, what, channel, config, now_s)
    return {"schema": "prism.alert/2", "status": what, **describe(incident, config, now_s)}


def describe(incident: Incident, config: AlertConfig, now_s: float) -> dict[str, Any]:
    """What every message says."""
    lost_gpu_s = incident.lost_gpu_s(int(now_s * 1e9))
    return {
        "id": incident.id,
        "title": incident.title,
        "kind": incident.kind,
        "severity": incident.severity,
        "owner": incident.owner,
        "state": incident.state,
        "why_state": incident.why_state,
        "job": incident.job,
        "place": {"type": incident.place.type, "id": incident.place.id},
        "hosts": list(incident.hosts),
        "cause": incident.cause,
        "since": _clock(incident.since_ns / 1e9),
        "since_ns": incident.since_ns,
        "until_ns": incident.until_ns,
        "confidence": round(incident.sure, 3),
        "lost_gpu_seconds": round(lost_gpu_s, 1),
        "cost": say_cost(lost_gpu_s, incident.gpus_lost, config),
        "evidence": incident.evidence,
        "action": incident.action,
        "link": link_of(incident, config),
    }


def say_cost(lost_gpu_s: float, gpus: float, config: AlertConfig) -> str:
    """The cost so far, in money too if a price is set."""
    hours = lost_gpu_s / 3600
    money = "" if config.price is None else f" ({config.currency}{hours * config.price:,.2f})"
    rate = f", {gpus:.3g} GPU-hours each hour" if gpus else ""
    return f"{hours:,.3g} GPU-hours so far{money}{rate}"


def link_of(incident: Incident, config: AlertConfig) -> str:
    """The page of an incident."""
    return f"{config.public_url.rstrip('/')}/incident?id={incident.id}" if config.public_url else ""


def _lines(incident: Incident, config: AlertConfig, now_s: float) -> list[tuple[str, str]]:
    said = describe(incident, config, now_s)
    hosts = ", ".join(incident.hosts[:5]) + (f" and {len(incident.hosts) - 5} more" if len(incident.hosts) > 5 else "")
    rows = [
        ("Cause", said["cause"]), ("Evidence", said["evidence"]), ("Host", hosts), ("Since", said["since"]),
        ("Cost", said["cost"] if incident.gpus_lost or said["lost_gpu_seconds"] else ""), ("Do", said["action"]),
    ]  # fmt: skip
    return [(name, text) for name, text in rows if text]


def _for_slack(incident: Incident, what: Tells, config: AlertConfig, now_s: float) -> Any:
    head = f"{_MARK[what]} *{_plain(incident.title)}*" + (f" \N{EM DASH} {what}" if what != "opened" else "")
    rows = _lines(incident, config, now_s)
    if what == "resolved":
        rows = [("Resolved", incident.why_state), *(row for row in rows if row[0] in ("Cost", "Since"))]
    link = link_of(incident, config)
    body = "\n".join(f"*{name}:* {_plain(text)}" for name, text in rows)
    return {"text": f"{head}\n{body}" + (f"\n<{link}|open the incident>" if link else "")}


def _for_alertmanager(incident: Incident, what: Tells, config: AlertConfig, now_s: float) -> Any:
    ends_s = now_s if what == "resolved" else now_s + config.holds_s
    notes = dict(_lines(incident, config, now_s))
    state = incident.why_state if incident.state in ("lost", "resolved") else ""
    return {
        "labels": {**incident.labels, "severity": incident.severity, "owner": incident.owner},
        "annotations": {"summary": incident.title, "description": incident.evidence, "incident": incident.id,
                        **{name.lower(): text for name, text in notes.items() if name != "Evidence"},
                        **({"state": f"{incident.state}: {state}"} if state else {})},
        "startsAt": _clock(min(incident.since_ns / 1e9, now_s)),
        "endsAt": _clock(ends_s),
        "generatorURL": link_of(incident, config),
    }  # fmt: skip


def _for_pagerduty(incident: Incident, what: Tells, channel: Channel, config: AlertConfig, now_s: float) -> Any:
    body: dict[str, Any] = {
        "routing_key": channel.key,
        "event_action": "resolve" if what == "resolved" else "trigger",
        "dedup_key": f"prism-{incident.id}-{incident.since_ns}",
    }
    if what == "resolved":
        return body
    link = link_of(incident, config)
    body["payload"] = {
        "summary": incident.title[:_MOST_TEXT],
        "source": incident.place.id[:_MOST_TEXT] or "prism",
        "severity": _SEVERITY[incident.severity],
        "timestamp": _clock(incident.since_ns / 1e9),
        "component": incident.job,
        "class": incident.kind,
        "custom_details": dict(_lines(incident, config, now_s)),
    }
    return {**body, "links": [{"href": link, "text": "the incident"}] if link else []}


def _plain(text: str) -> str:
    """Text escaped so that Slack makes no link or mention of it."""
    return text.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")


def _clock(seconds: float) -> str:
    return datetime.fromtimestamp(max(0.0, seconds), UTC).isoformat()

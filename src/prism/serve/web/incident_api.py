"""Routes of incidents: what is sick now, one incident, hours lost, taking one up, closing one, and the channels."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any, Literal

from fastapi import APIRouter, Query, Request
from pydantic import BaseModel, ConfigDict, Field
from pydantic_core import to_json
from starlette.concurrency import run_in_threadpool
from starlette.responses import Response

from prism.machine.sender import Delivery
from prism.serve.history.database import ReadableIndex
from prism.serve.history.notes import Notes
from prism.serve.incidents import Incidents
from prism.serve.library import Library
from prism.serve.shapes.history import AlertsDocument, ChannelRow, Written
from prism.serve.shapes.incidents import HoursDocument, IncidentDocument, IncidentsDocument
from prism.serve.views.datacenter import Price
from prism.serve.views.incidents import AskedIncidents, describe_hours, describe_incident, describe_incidents
from prism.serve.web.answers import Answers
from prism.serve.web.history_api import WRITE_ERRORS, Moment, body_of, read_body, user_of
from prism.serve.web.parameters import Limit, Offset
from prism.serve.web.problems import answer_error

INCIDENT_PATHS = ("/api/incidents", "/api/incident", "/api/hours")
_ERRORS: dict[int | str, dict[str, Any]] = {code: WRITE_ERRORS[code] for code in (404, 422)}


@dataclass(frozen=True, slots=True, kw_only=True)
class IncidentService:
    """The data that these routes answer from."""

    library: Library
    answers: Answers
    index: ReadableIndex
    notes: Notes
    incidents: Incidents
    price: Price
    writable: bool


class IncidentAct(BaseModel):
    """What a person does with an incident."""

    model_config = ConfigDict(extra="forbid")

    id: str = Field(max_length=64, description="The incident.")
    what: Literal["acknowledged", "closed"] = Field(
        description="acknowledged: somebody has taken it up. closed: a person says that it is over."
    )


class AlertTrial(BaseModel):
    """Which channel to try."""

    model_config = ConfigDict(extra="forbid")

    channel: str = Field(max_length=200, description="Name of a channel, as in /api/alerts.")


def build_incident_api(service: IncidentService) -> APIRouter:
    """All of these routes."""
    router = APIRouter(prefix="/api")
    _add_reading(router, service)
    _add_writing(router, service)
    return router


def _add_reading(router: APIRouter, service: IncidentService) -> None:
    give, known = service.answers.give, service.incidents

    @router.get("/incidents", response_model=IncidentsDocument, responses=_ERRORS, tags=["incidents"])
    async def incidents(
        request: Request,
        q: Annotated[str, Query(max_length=400, description="Words that an incident must hold.")] = "",
        from_ns: Moment = None,
        to_ns: Moment = None,
        offset: Offset = 0,
        limit: Limit = 50,
    ) -> Response:
        """What is sick now, worst first; and of the past what was asked for, newest first."""
        asked = AskedIncidents(text=q, from_ns=from_ns, to_ns=to_ns, offset=offset, limit=limit)
        snapshot = service.library.snapshot
        return await give(
            request,
            lambda: describe_incidents(known.list(), snapshot, asked, writable=service.writable, trouble=known.trouble),
        )

    @router.get("/incident", response_model=IncidentDocument, responses=_ERRORS, tags=["incidents"])
    async def incident(
        request: Request, id: Annotated[str, Query(max_length=64, description="Of the incident.")]
    ) -> Response:
        """One incident: its evidence from every source, what to do, and its history."""
        return await give(request, lambda: describe_incident(known.list(), id, writable=service.writable))

    @router.get("/hours", response_model=HoursDocument, responses=_ERRORS, tags=["incidents"])
    async def hours(request: Request, from_ns: Moment = None, to_ns: Moment = None) -> Response:
        """GPU-hours bought, used and lost, to what and since when; in money if a price is set."""
        return await give(request, lambda: describe_hours(service.index, known.list(), service.price, from_ns, to_ns))

    @router.get("/alerts", response_model=AlertsDocument, tags=["incidents"])
    async def alerts(request: Request) -> Response:
        """Channels without their addresses, and what people were told that is not over."""
        rows = await run_in_threadpool(known.deliveries)
        document = AlertsDocument(
            channels=tuple(
                _describe(channel.name, channel.type, rows[channel.name]) for channel in known.config.channels
            ),
            num_firing=bool(rows) * sum(one.told and one.state in ("open", "lost") for one in known.list()),
            trouble=known.trouble,
            writable=service.writable,
        )
        return Response(to_json(document), media_type="application/json")


def _describe(name: str, type_: str, last: Delivery) -> ChannelRow:
    return ChannelRow(
        name=name, type=type_, last_ok=last.ok, last_why=last.why, last_ns=str(int(last.at_s * 1e9)),
        num_sent=last.num_sent, num_waiting=last.num_waiting, num_lost=last.num_lost,
    )  # fmt: skip


def _add_writing(router: APIRouter, service: IncidentService) -> None:
    @router.post(
        "/incidents",
        response_model=Written,
        responses=WRITE_ERRORS,
        tags=["incidents"],
        openapi_extra=body_of(IncidentAct),
    )
    async def act(request: Request) -> Response:
        """Take an incident up, or close it."""
        asked = await read_body(request, IncidentAct)
        if isinstance(asked, Response):
            return asked
        if all(one.id != asked.id for one in service.incidents.list()):
            return answer_error(404, f"{asked.id}: no incident of that id")
        await run_in_threadpool(service.notes.act, asked.id, asked.what, user_of(request))
        return Response(to_json(Written(id=asked.id)), media_type="application/json")

    @router.post(
        "/alerts/test",
        response_model=ChannelRow,
        responses=WRITE_ERRORS,
        tags=["incidents"],
        openapi_extra=body_of(AlertTrial),
    )
    async def test_alert(request: Request) -> Response:
        """Send a test message to a channel and say how it went."""
        asked = await read_body(request, AlertTrial)
        if isinstance(asked, Response):
            return asked
        done = await run_in_threadpool(service.incidents.test, asked.channel)
        if done is None:
            return answer_error(404, f"{asked.channel}: no channel of that name")
        types = {channel.name: channel.type for channel in service.incidents.config.channels}
        return Response(to_json(_describe(asked.channel, types[asked.channel], done)), media_type="application/json")

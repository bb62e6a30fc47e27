"""The application: routes put together, errors in one shape, a thread that looks at the folder."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import threading
from collections.abc import AsyncIterator, Callable, Hashable
from dataclasses import dataclass, field
from pathlib import Path
from typing import NoReturn

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException
from starlette.responses import PlainTextResponse, Response
from starlette.types import ASGIApp

from prism.incidents import AlertConfig
from prism.serve.folder import Folder, ScanLimits
from prism.serve.history import HistoryConfig
from prism.serve.history.database import ReadableIndex
from prism.serve.history.notes import Notes
from prism.serve.incidents import Incidents
from prism.serve.library import Library, LookConfig
from prism.serve.timeline.raster import warm_up
from prism.serve.timelines import Timelines
from prism.serve.upkeep import Upkeep
from prism.serve.views.datacenter import Price
from prism.serve.web.answers import Answers, Shortcut
from prism.serve.web.api import Service, build_api, list_direct
from prism.serve.web.descriptions import describe_fields
from prism.serve.web.guard import Guard, GuardConfig
from prism.serve.web.history_api import HISTORY_PATHS, HistoryService, build_history_api
from prism.serve.web.incident_api import INCIDENT_PATHS, IncidentService, build_incident_api
from prism.serve.web.metrics import CONTENT_TYPE, render_metrics
from prism.serve.web.pages import list_routes, load_static
from prism.serve.web.problems import EVERYWHERE, answer_error
from prism.version import __version__

log = logging.getLogger("prism.serve")


@dataclass(frozen=True, slots=True, kw_only=True)
class AppConfig:
    """How the folder is served."""

    folder: Path
    look_every_s: float = 0.5
    limits: ScanLimits = field(default_factory=ScanLimits)
    guard: GuardConfig = field(default_factory=GuardConfig)
    looks: LookConfig = field(default_factory=LookConfig)
    history: HistoryConfig = field(default_factory=HistoryConfig)
    alerts: AlertConfig = field(default_factory=AlertConfig)
    price: Price = field(default_factory=Price)


@dataclass(frozen=True, slots=True, kw_only=True)
class Backing:
    """The data that the routes answer from, and the periodic work."""

    library: Library
    index: ReadableIndex
    notes: Notes
    incidents: Incidents
    version: Callable[[], int]  # grows when an answer may change
    start: Callable[[], list[asyncio.Task[NoReturn]]] = list
    close: Callable[[], None] = lambda: None


def keep_up(config: AppConfig) -> Backing:
    """The backing of a service of one process, which also keeps everything up to date."""
    library = Library(Folder(config.folder, config.limits), config.looks)
    upkeep = Upkeep.begin(library, config.history, config.alerts, config.look_every_s)
    return Backing(
        library=library,
        index=upkeep.index,
        notes=upkeep.notes,
        incidents=upkeep.incidents,
        version=lambda: library.snapshot.version + upkeep.incidents.version,
        start=upkeep.start,
        close=upkeep.incidents.close,
    )


def create_app(config: AppConfig, backing: Backing | None = None) -> ASGIApp:
    """The application behind its guard."""
    backing = backing or keep_up(config)
    library = backing.library
    depends: dict[str, Callable[[], Hashable]] = dict.fromkeys(HISTORY_PATHS, lambda: _state_of_history(backing))
    depends["/api/overview"] = lambda: backing.incidents.version
    depends["/metrics"] = lambda: (backing.incidents.version, backing.incidents.trouble)
    depends["/api/version"] = backing.version
    depends |= dict.fromkeys(INCIDENT_PATHS, lambda: (backing.incidents.version, backing.index.version))
    answers = Answers(library, depends)
    service = Service(
        library=library,
        timelines=Timelines(library),
        answers=answers,
        incidents=backing.incidents,
        version=backing.version,
        price=config.price,
    )

    @contextlib.asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        tasks = backing.start()
        threading.Thread(target=_prepare, daemon=True).start()  # stopping the service does not wait for it
        yield
        for task in tasks:
            task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await task
        await asyncio.to_thread(backing.close)

    app = FastAPI(
        title="Prism",
        version=__version__,
        summary="What the other commands wrote, read-only.",
        openapi_url="/api/openapi.json",
        docs_url=None,
        redoc_url=None,
        lifespan=lifespan,
    )
    app.include_router(build_api(service), responses=EVERYWHERE)
    app.include_router(
        build_history_api(
            HistoryService(
                library=library,
                answers=answers,
                index=backing.index,
                notes=backing.notes,
                writable=config.guard.writable,
            )
        ),
        responses=EVERYWHERE,
    )
    app.include_router(
        build_incident_api(
            IncidentService(
                library=library,
                answers=answers,
                index=backing.index,
                notes=backing.notes,
                incidents=backing.incidents,
                price=config.price,
                writable=config.guard.writable,
            )
        ),
        responses=EVERYWHERE,
    )
    app.add_middleware(Shortcut, answers=answers, direct=list_direct(service))
    app.add_exception_handler(HTTPException, _on_http_error)
    app.add_exception_handler(RequestValidationError, _on_bad_parameter)
    app.add_exception_handler(Exception, _on_bug)

    @app.get("/metrics", response_class=PlainTextResponse, tags=["folder"])
    async def metrics(request: Request) -> Response:
        """Prometheus metrics of jobs, steps, findings, recoveries and evaluations."""
        return await answers.give(
            request, lambda: render_metrics(library.snapshot, backing.incidents).encode(), CONTENT_TYPE
        )

    @app.get("/healthz", response_class=PlainTextResponse, tags=["folder"])
    async def healthz() -> Response:
        """For probes; needs no token."""
        return Response("ok\n", media_type="text/plain")

    app.router.routes.extend(list_routes())
    describe = app.openapi
    app.openapi = lambda: app.openapi_schema or describe_fields(describe())  # type: ignore[method-assign]
    return Guard(app, config.guard)


def _state_of_history(backing: Backing) -> tuple[int, int, int]:
    """A value that changes whenever a page of the history may change."""
    return backing.index.version, backing.notes.catch_up(), backing.index.num_waiting


def _prepare() -> None:
    """Compile the loops, so that the first visitor need not wait for them."""
    warm_up()
    load_static()


async def _on_http_error(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    message = "no such page; see /api for what there is" if error.status_code == 404 else str(error.detail)
    return answer_error(error.status_code, message)


async def _on_bad_parameter(request: Request, error: Exception) -> Response:
    assert isinstance(error, RequestValidationError)
    first = error.errors()[0]
    place = ".".join(str(part) for part in first["loc"][1:])
    return answer_error(422, f"parameter '{place}': {first['msg']}")


async def _on_bug(request: Request, error: Exception) -> Response:
    log.error("%s %s", request.method, request.url.path, exc_info=error)
    return answer_error(500, "a bug in Prism; its place is in the service's log")

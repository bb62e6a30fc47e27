"""Routes of the history, the search, hosts, the feed, and the remarks that people write."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Annotated, Any, TypeVar

from fastapi import APIRouter, Query, Request
from pydantic import BaseModel, ConfigDict, Field, ValidationError
from pydantic_core import to_json
from starlette.concurrency import run_in_threadpool
from starlette.responses import Response

from prism.serve.history.database import ReadableIndex
from prism.serve.history.notes import Notes
from prism.serve.history.queries import Asked
from prism.serve.library import Library
from prism.serve.shapes.history import (
    AnnotationsDocument,
    DifferenceDocument,
    HistoryDocument,
    HistoryJobsDocument,
    HostDocument,
    SearchDocument,
    Written,
)
from prism.serve.views import history, host
from prism.serve.web.answers import Answers
from prism.serve.web.parameters import Limit, Offset
from prism.serve.web.problems import ErrorBody, answer_error

T = TypeVar("T", bound=BaseModel)
Name = Annotated[str, Query(max_length=1_024, description="Leave out for all.")]
Moment = Annotated[
    int | None, Query(ge=-(1 << 62), le=1 << 62, description="Nanoseconds since 1970; without it, no limit.")
]
Ref = Annotated[
    str, Query(max_length=2_048, description="`ref` of an entry, or a day as day:2026-01-31, or day:2026-01-31:JOB.")
]
_ERRORS: dict[int | str, dict[str, Any]] = {
    404: {"model": ErrorBody, "description": "Nothing of that name"},
    422: {"model": ErrorBody, "description": "A parameter is wrong"},
}
WRITE_ERRORS: dict[int | str, dict[str, Any]] = {
    **_ERRORS,
    403: {"model": ErrorBody, "description": "The header X-Prism-Write or the scope is missing"},
    405: {"model": ErrorBody, "description": "Nothing may be written here: no --state folder"},
    413: {"model": ErrorBody, "description": "The body is too large"},
    429: {"model": ErrorBody, "description": "Too much was written"},
}
_LAST_NS = 1 << 62


@dataclass(frozen=True, slots=True, kw_only=True)
class HistoryService:
    """The data that these routes answer from."""

    library: Library
    answers: Answers
    index: ReadableIndex
    notes: Notes
    writable: bool


class NewAnnotation(BaseModel):
    """A remark to write down."""

    model_config = ConfigDict(extra="forbid")

    text: str = Field(min_length=1, max_length=2_000, description="What to remark.")
    at_ns: int = Field(ge=0, le=_LAST_NS, description="The moment it is about, in nanoseconds since 1970.")
    job: str = Field("", max_length=1_024, description="Lasting name of a job, or nothing.")
    host: str = Field("", max_length=256, description="A host, or nothing.")


# Answers from the index and from what people wrote: they change with these, besides the folder.
HISTORY_PATHS = tuple(
    f"/api/{name}" for name in ("history", "history/jobs", "difference", "search", "host", "annotations")
)


def build_history_api(service: HistoryService) -> APIRouter:
    """All of these routes."""
    router = APIRouter(prefix="/api")
    _add_history(router, service)
    _add_reading(router, service)
    _add_writing(router, service)
    return router


def _add_history(router: APIRouter, service: HistoryService) -> None:
    index, notes, give = service.index, service.notes, service.answers.give

    @router.get("/history", response_model=HistoryDocument, responses=_ERRORS, tags=["history"])
    async def get_history(
        request: Request,
        job: Name = "",
        host: Name = "",
        cluster: Name = "",
        kind: Name = "",
        q: Annotated[str, Query(max_length=400, description="Words that a row must hold.")] = "",
        from_ns: Moment = None,
        to_ns: Moment = None,
        offset: Offset = 0,
        limit: Limit = 100,
    ) -> Response:
        """Everything that was ever found in the folder, newest first, and day by day."""
        asked = Asked(kind=kind, cluster=cluster, job=job, host=host, text=q, from_ns=from_ns, to_ns=to_ns,
                      offset=offset, limit=limit)  # fmt: skip
        return await give(request, lambda: history.describe_history(index, notes, asked))

    @router.get("/history/jobs", response_model=HistoryJobsDocument, tags=["history"])
    async def jobs(request: Request, limit: Limit = 500) -> Response:
        """Every job that was ever seen, by its newest look or run."""
        return await give(request, lambda: history.describe_history_jobs(index, limit))

    @router.get("/difference", response_model=DifferenceDocument, responses=_ERRORS, tags=["history"])
    async def difference(request: Request, first: Ref, second: Ref) -> Response:
        """Two runs, looks or days side by side."""
        return await give(request, lambda: history.describe_difference(index, first, second))

    @router.get("/search", response_model=SearchDocument, responses=_ERRORS, tags=["history"])
    async def search(
        request: Request, q: Annotated[str, Query(min_length=1, max_length=400, description="Words, all of them.")]
    ) -> Response:
        """Jobs, hosts, runs, findings, verdicts and reports that hold every word."""
        return await give(request, lambda: history.search(index, q))


def _add_reading(router: APIRouter, service: HistoryService) -> None:
    index, notes, give = service.index, service.notes, service.answers.give

    @router.get("/host", response_model=HostDocument, responses=_ERRORS, tags=["history"])
    async def get_host(
        request: Request,
        name: Annotated[str, Query(max_length=256, description="A host.")],
        offset: Offset = 0,
        limit: Limit = 200,
    ) -> Response:
        """Everything that is known about a host."""
        return await give(
            request,
            lambda: host.describe_host(service.library.snapshot, index, notes, name, offset=offset, limit=limit),
        )

    @router.get("/annotations", response_model=AnnotationsDocument, tags=["history"])
    async def annotations(request: Request, job: Name = "", host: Name = "") -> Response:
        """Remarks that people wrote."""

        def build() -> AnnotationsDocument:
            rows = tuple(history.to_annotation_row(note) for note in notes.annotations(job, host))
            return AnnotationsDocument(annotations=rows, writable=service.writable)

        return await give(request, build)


def _add_writing(router: APIRouter, service: HistoryService) -> None:
    notes = service.notes

    @router.post(
        "/annotations",
        response_model=Written,
        responses=WRITE_ERRORS,
        tags=["history"],
        openapi_extra=body_of(NewAnnotation),
    )
    async def annotate(request: Request) -> Response:
        """Write a remark down; it survives a rebuild of the index."""
        asked = await read_body(request, NewAnnotation)
        if isinstance(asked, Response):
            return asked
        note = await run_in_threadpool(notes.annotate, author=user_of(request), **asked.model_dump())
        return Response(to_json(Written(id=note.id)), media_type="application/json")

    @router.delete("/annotations", response_model=Written, responses=WRITE_ERRORS, tags=["history"])
    async def delete(id: Annotated[str, Query(max_length=64, description="Of a remark.")]) -> Response:
        """End a remark."""
        if not await run_in_threadpool(notes.delete, id):
            return answer_error(404, f"{id}: no remark of that id")
        return Response(to_json(Written(id=id)), media_type="application/json")


def body_of(model: type[BaseModel]) -> dict[str, Any]:
    """How a body is described in the API."""
    return {"requestBody": {"required": True, "content": {"application/json": {"schema": model.model_json_schema()}}}}


async def read_body(request: Request, model: type[T]) -> T | Response:
    """The body of a request, or the answer that says what is wrong with it."""
    try:
        return model.model_validate(json.loads(await request.body()))
    except ValidationError as error:
        first = error.errors()[0]
        return answer_error(422, f"'{'.'.join(map(str, first['loc']))}': {first['msg']}")
    except (ValueError, RecursionError):
        return answer_error(422, "the body is not JSON")


def user_of(request: Request) -> str:
    """Who asks, where a proxy or a token says so."""
    return str(request.scope.get("prism_user", ""))

"""Parameters of routes: their limits, their meaning, and the windows that they describe."""

from __future__ import annotations

from typing import Annotated, Literal

from fastapi import Query
from pydantic import BaseModel, Field

from prism.serve.views.timeline import WindowRequest

Key = Annotated[str, Field(max_length=1_024, description="The key of a job, as in the list of jobs.")]
Time = Annotated[
    int | None, Field(ge=-(1 << 62), le=1 << 62, description="Nanoseconds since the origin; without it, the end.")
]
Offset = Annotated[int, Query(ge=0, le=10_000_000, description="Rows to pass over.")]
Limit = Annotated[
    int, Query(ge=1, le=10_000, description="Rows to answer with at most; `total` says how many there are.")
]
_MOST_PIXELS = 1 << 20


class TimelineQuery(BaseModel):
    """The parameters of a window of a timeline."""

    key: Key
    from_ns: Time = None
    to_ns: Time = None
    width: Annotated[int, Field(ge=16, le=4_096, description="Pixels.")] = 1_200
    first_row: Annotated[int, Field(ge=0, le=10_000_000, description="Row to begin with, from 0.")] = 0
    num_rows: Annotated[
        int, Field(ge=1, le=1_024, description="Rows; fewer are sent where rows x width is more than 2^20.")
    ] = 64
    by: Annotated[Literal["rank", "lane"], Field(description="A row for each rank, or each lane.")] = "rank"
    hide: Annotated[str, Field(max_length=200, description="Kinds to leave out, with commas between.")] = ""
    expected: Annotated[str, Field(max_length=1_024, description="Key of a prediction to lay over.")] = ""

    def to_window(self) -> WindowRequest:
        """The same for the view."""
        return WindowRequest(
            key=self.key,
            from_ns=self.from_ns,
            to_ns=self.to_ns,
            width=self.width,
            first_row=self.first_row,
            num_rows=min(self.num_rows, _MOST_PIXELS // self.width),
            by=self.by,
            hidden=frozenset(filter(None, self.hide.split(","))),
            expected=self.expected or None,
        )


class SpansQuery(BaseModel):
    """The parameters of the spans of a rank in a short window."""

    key: Key
    rank: Annotated[int, Field(ge=0, le=1 << 31, description="Global rank.")]
    lane: Annotated[str, Field(max_length=200, description="One lane of it; without it, all.")] = ""
    from_ns: Time = None
    to_ns: Time = None
    expected: Annotated[str, Field(max_length=1_024, description="Key of a prediction to look into too.")] = ""

    def to_window(self) -> WindowRequest:
        """The same for the view."""
        return WindowRequest(key=self.key, from_ns=self.from_ns, to_ns=self.to_ns, expected=self.expected or None)

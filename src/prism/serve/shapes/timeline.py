"""Windows of a timeline."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from prism.serve.shapes.jobs import StepRow


@dataclass(frozen=True, slots=True, kw_only=True)
class SpanRow:
    """One span; times count from the origin of the request."""

    kind: str
    name: str
    lane: str
    from_ns: int
    to_ns: int
    step: int | None
    bytes: int | None
    group: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class SpanColumns:
    """Spans by column: shown row, kind and name as places in their lists, and times from the origin of the request."""

    names: tuple[str, ...] = ()
    row: tuple[int, ...] = ()
    kind: tuple[int, ...] = ()
    name: tuple[int, ...] = ()
    from_ns: tuple[int, ...] = ()
    to_ns: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Picture:
    """Rows and what fills them. `pixels` is base64 of rows x width bytes, each kind * 16 + level (1 to 15)."""

    labels: tuple[str, ...]
    ranks: tuple[int, ...]
    num_rows: int  # of the whole timeline
    num_spans: int  # that the window touches, in the rows shown
    width: int
    pixels: str
    spans: SpanColumns  # instead of pixels, where there are few


@dataclass(frozen=True, slots=True, kw_only=True)
class ExpectedPicture:
    """The prediction for the same rows; no pixels where too many steps are in sight to compare."""

    aligned: Literal["clock", "step"]
    pixels: str


@dataclass(frozen=True, slots=True, kw_only=True)
class TimelineDocument:
    """A window of a timeline; times count from the origin, which is text because it does not fit a double."""

    key: str
    origin_ns: str
    first_ns: int
    last_ns: int
    from_ns: int
    to_ns: int
    kinds: tuple[str, ...]  # by code
    kinds_present: tuple[str, ...]
    total_spans: int
    steps: tuple[StepRow, ...]  # in the window, unless too many
    picture: Picture
    expected: ExpectedPicture | None


@dataclass(frozen=True, slots=True, kw_only=True)
class SpansDocument:
    """Spans of one rank in a short window, longest first."""

    observed: tuple[SpanRow, ...]
    num_observed: int
    expected: tuple[SpanRow, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class BreakdownDocument:
    """Seconds of each kind in a window, for each rank."""

    kinds: tuple[str, ...]
    ranks: tuple[int, ...]
    seconds: tuple[tuple[float, ...], ...]  # of each kind, by rank

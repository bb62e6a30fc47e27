"""A million spans on a screen: an index of them, and pictures of a window at the width of the screen."""

from prism.serve.shapes.timeline import Picture, SpanColumns, SpanRow
from prism.serve.timeline.index import SpanIndex, build_index, index_phases
from prism.serve.timeline.overlay import Overlay, align_steps
from prism.serve.timeline.picture import WindowQuery, draw_window, list_spans, measure_ranks

__all__ = [
    "Overlay",
    "Picture",
    "SpanColumns",
    "SpanIndex",
    "SpanRow",
    "WindowQuery",
    "align_steps",
    "build_index",
    "draw_window",
    "index_phases",
    "list_spans",
    "measure_ranks",
]

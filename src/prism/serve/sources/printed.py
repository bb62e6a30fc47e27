"""What `investigate`, `compare`, `predict`, `goodput` and `place` printed with --json, kept as a file of any name."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal, cast

from prism.errors import BadFileError
from prism.serve.folder import Folder, FoundFile
from prism.serve.sources.place import Place, read_object

PrintedKind = Literal[
    "investigation", "comparison", "prediction", "advice", "replay", "goodput", "placement", "placement-choice"
]
# The schema is the first field that these commands print, so the beginning of a file is enough to recognise it.
SNIFF_BYTES = 256
_SCHEMA = re.compile(rb'\A\s{0,8}\{\s{0,8}"schema"\s{0,8}:\s{0,8}"prism\.([a-z-]{1,32})/1"')
_NEEDED: Mapping[str, Mapping[str, type | tuple[type, ...]]] = {
    "investigation": {"verdict": dict, "evidence": list},
    "comparison": {"expected_ms": (int, float), "observed_ms": (int, float), "parts": list},
    "prediction": {"risks": list, "at_ns": int},
    "advice": {"nodes": list, "drains": list, "jobs": list, "at_ns": int},
    "replay": {"policies": list, "best_fixed": str},
    "goodput": {"gpu_hours": (int, float), "goodput": (int, float)},
    "placement": {"policies": dict},
    "placement-choice": {"choices": list, "job": str},
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Printed:
    """One printed document."""

    path: str
    kind: PrintedKind
    document: Mapping[str, Any]
    updated_ns: int
    page: str | None = None  # a page of the same command beside it: NAME.html, or KIND.html


def kind_of_start(start: bytes) -> str:
    """Which document begins like this; "" if none of these does."""
    found = _SCHEMA.match(start)
    return kind if found and (kind := found[1].decode()) in _NEEDED else ""


def find_page(place: Place, name: str, kind: str) -> str | None:
    """The file name of the page that lies beside a document."""
    return next((page for page in (name.removesuffix(".json") + ".html", f"{kind}.html") if page in place.files), None)


def read_printed(folder: Folder, file: FoundFile, kind: str, page: str | None = None) -> Printed:
    """Read a document and check the fields that its page needs."""
    document = read_object(folder, file.path)
    for name, type_ in _NEEDED[kind].items():
        if not isinstance(document.get(name), type_) or isinstance(document.get(name), bool):
            raise BadFileError(
                f"{file.path}: not a whole {kind}, '{name}' is missing or of another type; print it again"
            )
    return Printed(path=file.path, kind=cast(PrintedKind, kind), document=document, updated_ns=file.mtime_ns, page=page)


def say_in_a_line(source: Printed) -> str:
    """A printed document in one line."""
    document = source.document
    match source.kind:
        case "investigation":
            named = [c for c in document["verdict"].get("culprits") or () if isinstance(c, dict)]
            who = ", ".join(f"{c.get('type', '')} {c.get('id', '')}" for c in named[:4])
            return f"{document['verdict'].get('what', '')}" + (f": {who}" if who else "")
        case "comparison":
            before, after = float(document["expected_ms"]), float(document["observed_ms"])
            noise = ", within the noise" if document.get("is_noise") else ""
            return f"{before:.4g} ms a step, then {after:.4g} ms{noise}"
        case "prediction":
            return f"{len(document['risks']):,} parts, next {document.get('horizon_days', '?')} days"
        case "advice":
            return f"{len(document['nodes']):,} nodes, {len(document['drains']):,} better taken out before a long run"
        case "replay":
            return f"{len(document['policies'])} policies over faults of the past, beside {document['best_fixed']}"
        case "placement":
            return f"queues under {', '.join(map(str, document['policies']))}"
        case "placement-choice":
            return f"{document['job']}: {document.get('best') or 'fits nowhere'}"
        case "goodput":
            return f"{float(document['goodput']):.1%} of {float(document['gpu_hours']):.4g} GPU-hours trained"

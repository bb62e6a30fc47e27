"""Write docs/reference/: tables, the dashboard's API and JSON documents, each from the code that defines it.

python scripts/write_reference.py            tables.md and api.md
python scripts/write_reference.py --runs     json.md too, by running the commands on small examples
python scripts/write_reference.py --check    exit 1 where a page differs from the code
"""

from __future__ import annotations

import inspect
import json
import re
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import polars as pl

import prism.records
from prism.records.shape import Shape

FOLDER = Path(__file__).parents[1] / "docs" / "reference"
_NOTE = "Written by `make docs` from the code; do not edit.\n"
_COLUMN = re.compile(r'^\s*"(?P<name>\w+)": pl\..*?,\s*#\s*(?P<note>.+)$', re.M)


def render_tables() -> str:
    """Every table that crosses packages: its columns, what they hold, which may be missing or null."""
    lines = ["# Tables\n", _NOTE, "Times are nanoseconds. In Parquet, CSV and JSON Lines the columns have these names."]
    for name in sorted(
        n for n in prism.records.__all__ if n != "ARROWS" and isinstance(getattr(prism.records, n), Shape)
    ):
        shape: Shape = getattr(prism.records, name)
        about, notes = _read_source(name)
        lines += [f"\n## {name}\n", f"{about}\n", "| column | holds | missing or null |", "|---|---|---|"]
        for column, dtype in shape.columns.items():
            text = _describe(dtype) + (f"; {notes[column]}" if column in notes else "")
            allowed = (
                "may be missing" if column in shape.optional else "may be null" if column in shape.nullable else ""
            )
            lines.append(f"| `{column}` | {text} | {allowed} |")
    return "\n".join(lines) + "\n"


def _read_source(name: str) -> tuple[str, dict[str, str]]:
    """What the module that declares a table says of it, and the comments beside its columns."""
    for module in sys.modules.values():
        if module.__name__.startswith("prism.records.") and re.search(rf"^{name} = Shape", _source(module), re.M):
            source = _source(module)
            declared, _, rest = source[source.index(f"{name} = Shape") :].partition("\n)\n")
            said = re.match(r'"""(.*?)"""', rest, re.S)
            about = said[1] if said else (inspect.getdoc(module) or "").partition("\n")[0].removeprefix(f"{name}: ")
            return about[0].upper() + about[1:], {m["name"]: m["note"] for m in _COLUMN.finditer(declared)}
    raise LookupError(name)


def _source(module: Any) -> str:
    file = getattr(module, "__file__", None)
    return Path(file).read_text() if file else ""


def _describe(dtype: Any) -> str:
    if isinstance(dtype, pl.Enum):
        return "one of " + ", ".join(f"`{word}`" for word in dtype.categories.to_list())
    names = {pl.String: "text", pl.Boolean: "true or false", pl.Float64: "number", pl.Float32: "number"}
    return names.get(dtype, "whole number" if dtype.is_integer() else str(dtype).lower())


def render_api() -> str:
    """The routes of `prism serve`, from its own OpenAPI description."""
    from prism.serve.web.app import AppConfig, create_app

    with tempfile.TemporaryDirectory() as folder:
        guard: Any = create_app(AppConfig(folder=Path(folder)))
        described = guard.app.openapi()
    lines = [
        "# API of `prism serve`\n",
        _NOTE,
        "Routes answer JSON unless said otherwise. A service describes itself at `/api/openapi.json`. An error is "
        '`{"error": {"code": ..., "message": ..., "status": ...}}`: a word for programs and a line for people.',
    ]
    routes = [
        (f"{method.upper()} {path}", operation)
        for path, operations in sorted(described["paths"].items())
        for method, operation in operations.items()
    ]
    for route, operation in routes:
        lines += [f"\n## {route}\n", operation.get("description", operation.get("summary", "")).strip() + "\n"]
        rows = [
            f"| `{p['name']}` | {'yes' if p.get('required') else 'no'} | {_describe_parameter(p)} |"
            for p in operation.get("parameters", [])
        ]
        lines += ["| parameter | needed | meaning |", "|---|---|---|", *rows, ""] if rows else []
        answer = operation["responses"].get("200", {}).get("content", {})
        for kind, content in answer.items():
            shape = str(content.get("schema", {}).get("$ref", "")).rpartition("/")[2]
            lines.append(f"Answer: {kind}" + (f", a [{shape}](#{shape.lower()})." if shape else "."))
    lines.append("\n# Shapes of answers")
    for name, schema in sorted(described.get("components", {}).get("schemas", {}).items()):
        if "properties" not in schema or "ValidationError" in name:
            continue
        lines += [f"\n## {name}\n", (schema.get("description") or "").strip() + "\n", "| key | holds |", "|---|---|"]
        lines += [f"| `{key}` | {_describe_schema(value)} |" for key, value in schema["properties"].items()]
    return "\n".join(lines) + "\n"


def _describe_parameter(parameter: dict[str, Any]) -> str:
    text = parameter.get("description") or parameter["schema"].get("description") or ""
    return f"{_describe_schema(parameter['schema'])}. {text}".replace("|", "\\|").strip()


def _describe_schema(schema: dict[str, Any]) -> str:
    if "$ref" in schema:
        name = schema["$ref"].rpartition("/")[2]
        return f"[{name}](#{name.lower()})"
    if "anyOf" in schema:
        return " or ".join(_describe_schema(part) for part in schema["anyOf"])
    if schema.get("type") == "array":
        return f"list of {_describe_schema(schema.get('items', {}))}"
    words = {"integer": "whole number", "string": "text", "boolean": "true or false", "object": "mapping"}
    kind = schema.get("type", "anything")
    return words.get(kind, kind)


_LOG = "step 10 loss 2.1\n[rank3]: torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB.\n"
_TRACE = (
    "job_id,user,node_num,gpu_num,cpu_num,type,state,submit_time,start_time,end_time,duration,queue,gpu_time\n"
    "1,a,1,8,64,Pretrain,COMPLETED,2023-03-01 00:00:00+08:00,2023-03-01 00:01:00+08:00,2023-03-01 01:01:00+08:00,"
    "3600,60,28800\n"
    "2,b,1,1,8,Evaluation,FAILED,2023-03-01 00:02:00+08:00,2023-03-01 00:03:00+08:00,2023-03-01 00:04:00+08:00,"
    "60,60,60\n"
)
DOCUMENTS = (
    ("prism scenario", "prism scenario dense-dp-16 --output calm --json"),
    ("prism diagnose", "prism diagnose calm/flows.parquet --topology calm/topology.csv --json"),
    ("prism flows info", "prism flows info calm/flows.parquet --json"),
    ("prism flows check", "prism flows check calm/flows.parquet --json"),
    ("prism explain", "prism explain failed.log --json"),
    ("prism characterize", "prism characterize trace.csv --json"),
    ("prism compare", "prism compare calm/spans.parquet calm/spans.parquet --json"),
)


def render_documents() -> str:
    """What `--json` prints, from real output of the commands on small examples."""
    lines = [
        "# JSON documents\n",
        _NOTE,
        "What a command prints with `--json`. The keys below were read off real output of the example shown; "
        "keys under `*` differ from document to document. Keys may be added; those that are here stay.",
    ]
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "failed.log").write_text(_LOG)
        (folder / "trace.csv").write_text(_TRACE)
        for title, command in DOCUMENTS:
            printed = subprocess.run(
                [sys.executable, "-m", *command.split(), "--quiet"], cwd=folder, check=True, capture_output=True
            )
            keys = merge(json.loads(line) for line in printed.stdout.splitlines())
            lines += [f"\n## {title}\n", "```console", f"$ {command}", "```\n", "| key | holds |", "|---|---|"]
            lines += [f"| `{key}` | {' or '.join(sorted(kinds))} |" for key, kinds in keys.items()]
    return "\n".join(lines) + "\n"


def merge(documents: Iterator[Any]) -> dict[str, set[str]]:
    """The keys of JSON documents with the kinds of their values, in the order in which they come."""
    found: dict[str, set[str]] = {}

    def walk(path: str, value: Any) -> None:
        if isinstance(value, dict):
            free = bool(value) and not all(re.fullmatch(r"[a-z_0-9]+", k) for k in value)
            for key, inner in value.items():
                walk(f"{path}.*" if free else f"{path}.{key}".lstrip("."), inner)
        elif isinstance(value, list):
            if not value:
                found.setdefault(f"{path}[]", set())
            for inner in value:
                walk(f"{path}[]", inner)
        else:
            names = {bool: "true or false", int: "whole number", float: "number", str: "text", type(None): "null"}
            found.setdefault(path, set()).add(names[type(value)])

    for document in documents:
        walk("", document)
    return found


PAGES: dict[str, Callable[[], str]] = {"tables.md": render_tables, "api.md": render_api, "json.md": render_documents}


def main(arguments: list[str]) -> int:
    """Write the pages, or compare them."""
    old = 0
    for name, render in PAGES.items():
        if name == "json.md" and "--runs" not in arguments:
            continue
        file = FOLDER / name
        if "--check" not in arguments:
            FOLDER.mkdir(parents=True, exist_ok=True)
            file.write_text(render())
        elif not file.exists() or file.read_text() != render():
            print(f"docs/reference/{name} is out of date; run: make docs")
            old = 1
    return old


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

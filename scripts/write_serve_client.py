"""Write src/prism/serve/client.py, a typed client of the API of `prism serve`, from the API's own description.

python scripts/write_serve_client.py            write the file
python scripts/write_serve_client.py --check    end with 1 where the file is not what would be written
"""

from __future__ import annotations

import importlib
import keyword
import subprocess
import sys
import tempfile
from collections.abc import Collection
from pathlib import Path
from pkgutil import iter_modules
from typing import Any

from prism.serve import shapes

FILE = Path(__file__).parents[1] / "src" / "prism" / "serve" / "client.py"
HEAD = '''"""A typed client of the API of `prism serve`. Written by scripts/write_serve_client.py; do not edit.

    client = Client("http://127.0.0.1:8042", token="...")
    for job in client.jobs().jobs:
        print(job.id, job.health, job.step_s)
"""

from __future__ import annotations

import json
import types
from collections.abc import Mapping
from dataclasses import fields, is_dataclass
from typing import Any, Literal, TypeVar, Union, cast, get_args, get_origin, get_type_hints
from urllib.error import HTTPError
from urllib.parse import urlencode
from urllib.request import Request, urlopen

T = TypeVar("T")


class ServeError(Exception):
    """An answer that is not a success: `code` for programs, the text for people."""

    def __init__(self, code: str, message: str, status: int) -> None:
        super().__init__(message)
        self.code, self.status = code, status


def shape(kind: Any, value: Any) -> Any:
    """A JSON value as a declared type; what a newer service adds is left out, what an older one lacks is None."""
    if is_dataclass(kind):
        hints = get_type_hints(kind)
        given = value if isinstance(value, dict) else {}
        return cast(Any, kind)(**{f.name: shape(hints[f.name], given.get(f.name)) for f in fields(kind)})
    origin, inner = get_origin(kind), get_args(kind)
    if value is None:
        return None
    if origin in (Union, types.UnionType):
        return shape(next((k for k in inner if k is not type(None)), Any), value)
    if origin is tuple and inner[-1] is Ellipsis:
        return tuple(shape(inner[0], item) for item in value)
    if origin is dict:
        return {name: shape(inner[1], item) for name, item in value.items()}
    return float(value) if kind is float else value
'''
CLIENT = '''

class Client:
    """The API of one service."""

    def __init__(self, address: str, token: str | None = None, timeout_s: float = 30.0) -> None:
        self.address, self.token, self.timeout_s = address.rstrip("/"), token, timeout_s

    def ask(self, method: str, path: str, query: Mapping[str, Any], body: Mapping[str, Any] | None = None) -> bytes:
        """One request; the body of the answer."""
        given = {name: value for name, value in query.items() if value is not None}
        headers = {} if self.token is None else {"Authorization": f"Bearer {self.token}"}
        if method != "GET":
            headers |= {"X-Prism-Write": "1", "Content-Type": "application/json"}
        url = f"{self.address}{path}{f'?{urlencode(given)}' if given else ''}"
        data = None if body is None else json.dumps(body).encode()
        try:
            with urlopen(Request(url, data, headers, method=method), timeout=self.timeout_s) as answer:
                return cast(bytes, answer.read())
        except HTTPError as error:
            said = json.loads(error.read() or b"{}").get("error", {})
            raise ServeError(said.get("code", "error"), said.get("message", str(error)), error.code) from None

    def _get(self, kind: type[T], path: str, /, **query: Any) -> T:
        return cast(T, shape(kind, json.loads(self.ask("GET", path, query))))

    def _write(self, kind: type[T], method: str, path: str, query: Mapping[str, Any], body: Mapping[str, Any]) -> T:
        return cast(T, shape(kind, json.loads(self.ask(method, path, query, body or None))))
'''
SIMPLE = {"integer": "int", "number": "float", "string": "str", "boolean": "bool", "null": "None"}


def describe() -> dict[str, Any]:
    """The OpenAPI description of a service of an empty folder."""
    from prism.serve.web.app import AppConfig, create_app

    with tempfile.TemporaryDirectory() as name:
        app: Any = create_app(AppConfig(folder=Path(name)))
        document: dict[str, Any] = app.app.openapi()
        return document


def type_of(schema: dict[str, Any]) -> str:
    """A JSON schema as a Python type."""
    if "$ref" in schema:
        return str(schema["$ref"]).rpartition("/")[2]
    if "anyOf" in schema:
        return " | ".join(dict.fromkeys(type_of(part) for part in schema["anyOf"]))
    if "enum" in schema or "const" in schema:
        values = schema.get("enum", [schema.get("const")])
        return f"Literal[{', '.join(repr(value) for value in values)}]".replace("'", '"')
    match schema.get("type"):
        case "array":
            return f"tuple[{type_of(schema.get('items', {}))}, ...]"
        case "object":
            extra = schema.get("additionalProperties")
            return f"dict[str, {type_of(extra) if isinstance(extra, dict) else 'Any'}]"
        case str() as name:
            return SIMPLE[name]
    return "Any"


def write_imports(names: Collection[str]) -> str:
    """The shapes of answers, from where the service has them; those that no method names go later."""
    text = ""
    for module in map(importlib.import_module, (f"{shapes.__name__}.{m.name}" for m in iter_modules(shapes.__path__))):
        own = [name for name in names if getattr(getattr(module, name, None), "__module__", "") == module.__name__]
        text += f"from {module.__name__} import {', '.join(own)}\n" if own else ""
    return text


def write_method(path: str, method: str, operation: dict[str, Any]) -> str:
    """One route as a method; what is not JSON comes as bytes."""
    name = path.removeprefix("/api/").strip("/").replace("/", "_")
    name = name if method == "get" else {"post": "write", "delete": "delete"}[method] + "_" + name
    parameters = sorted(operation.get("parameters", ()), key=lambda p: not p.get("required"))
    body = operation.get("requestBody", {}).get("content", {}).get("application/json", {}).get("schema", {})
    fields = [(n, s, n in body.get("required", ())) for n, s in body.get("properties", {}).items()]
    words = [write_parameter(p["name"], p["schema"], bool(p.get("required"))) for p in parameters]
    words += [write_parameter(n, s, required) for n, s, required in sorted(fields, key=lambda f: not f[2])]
    content = operation["responses"]["200"].get("content", {})
    answer = type_of(content["application/json"]["schema"]) if "application/json" in content else "bytes"
    answer = "bytes" if answer in ("Any", "str") else answer
    query = ", ".join(f'"{p["name"]}": {p["name"]}' for p in parameters)
    given = ", ".join(f"{p['name']}={p['name']}" for p in parameters)
    if method == "get" and answer != "bytes":
        call = f'self._get({answer}, "{path}"{", " + given if given else ""})'
    elif method == "get":
        call = f'self.ask("GET", "{path}", {{{query}}})'
    else:
        sent = ", ".join(f'"{n}": {n}' for n, _, _ in fields)
        call = f'self._write({answer}, "{method.upper()}", "{path}", {{{query}}}, {{{sent}}})'
    about = operation.get("description", name).split("\n")[0].replace('"', "'")
    return (
        f"\n    def {name}(self{', *, ' + ', '.join(words) if words else ''}) -> {answer}:\n"
        f'        """{about}"""\n        return {call}\n'
    )


def write_parameter(name: str, schema: dict[str, Any], required: bool) -> str:
    """One parameter with its type and default."""
    assert not keyword.iskeyword(name)
    kind = type_of(schema)
    return f"{name}: {kind}" if required else f"{name}: {kind} = {schema.get('default')!r}"


def write_client(document: dict[str, Any]) -> str:
    """The whole file, formatted."""
    text = HEAD.replace("T = TypeVar", write_imports(document["components"]["schemas"]) + "\nT = TypeVar", 1) + CLIENT
    for path, methods in document["paths"].items():
        if path != "/api/events":  # a stream is not one answer
            text += "".join(write_method(path, method, operation) for method, operation in methods.items())
    for command in (["check", "--select", "F401,I", "--fix", "--quiet"], ["format", "--quiet"]):
        words = [sys.executable, "-m", "ruff", *command, "--stdin-filename", str(FILE), "-"]
        text = subprocess.run(words, input=text, capture_output=True, text=True, check=True).stdout
    return text


def main() -> None:
    """Write it, or say whether it is written."""
    text = write_client(describe())
    if "--check" in sys.argv[1:]:
        sys.exit(0 if FILE.exists() and FILE.read_text() == text else f"{FILE}: not as the API is; run {sys.argv[0]}")
    FILE.write_text(text)


if __name__ == "__main__":
    main()

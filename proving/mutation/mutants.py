"""Mutants: every small change of a module that its tests should notice."""

from __future__ import annotations

import ast
import copy
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

_SWAPPED: dict[type[ast.AST], type[ast.AST]] = {
    ast.Lt: ast.LtE, ast.LtE: ast.Lt, ast.Gt: ast.GtE, ast.GtE: ast.Gt, ast.Eq: ast.NotEq, ast.NotEq: ast.Eq,
    ast.In: ast.NotIn, ast.NotIn: ast.In, ast.Is: ast.IsNot, ast.IsNot: ast.Is, ast.Add: ast.Sub, ast.Sub: ast.Add,
    ast.Mult: ast.Div, ast.Div: ast.Mult, ast.FloorDiv: ast.Mult, ast.Mod: ast.Mult, ast.And: ast.Or, ast.Or: ast.And,
    ast.BitAnd: ast.BitOr, ast.BitOr: ast.BitAnd, ast.Break: ast.Continue, ast.Continue: ast.Break,
}  # fmt: skip
NOTE = "__note_line__"  # the function that traced modules call
_SWAPPED_NAMES = {"min": "max", "max": "min", "any": "all", "all": "any"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Mutant:
    """One change: in which file and line, which node of the tree (counted as `ast.walk` does), and in words."""

    file: Path
    line: int
    lines: tuple[int, ...]  # those of the statement; Python traces some of them
    at_import: bool  # a constant or a default: it runs when the module is imported
    node: int
    change: str


def find_mutants(file: Path) -> list[Mutant]:
    """Every mutant of a module."""
    tree = ast.parse(file.read_text())
    ignored = _find_ignored(tree)
    statements = _find_statements(tree)
    found = []
    for number, node in enumerate(ast.walk(tree)):
        if id(node) in ignored:
            continue
        changed = mutate_node(node)
        if changed is not None:
            statement = statements.get(id(node))
            found.append(
                Mutant(
                    file=file,
                    line=getattr(node, "lineno", 0),
                    lines=_lines_of(statement) if statement is not None else (),
                    at_import=statement is None,
                    node=number,
                    change=f"{_show(node)} -> {_show(changed)}",
                )
            )
    return found


def _find_statements(tree: ast.Module) -> dict[int, ast.stmt]:
    """By node, the innermost statement of a function's body that it belongs to."""
    found: dict[int, ast.stmt] = {}
    for function in ast.walk(tree):
        if isinstance(function, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda):
            body = function.body if isinstance(function.body, list) else []
            for statement in body:
                for inner in ast.walk(statement):
                    if isinstance(inner, ast.stmt):
                        found.update({id(node): inner for node in ast.walk(inner)})
    return found


def _lines_of(statement: ast.stmt) -> tuple[int, ...]:
    """The lines of a statement without those of the statements inside it."""
    body = getattr(statement, "body", None)
    last = body[0].lineno - 1 if isinstance(body, list) and body else (statement.end_lineno or statement.lineno)
    return tuple(range(statement.lineno, max(last, statement.lineno) + 1))


def build_mutant(mutant: Mutant) -> ast.Module:
    """The module with the change in it."""
    tree = ast.parse(mutant.file.read_text())
    if mutant.node < 0:
        return tree  # nothing is changed
    target = next(node for number, node in enumerate(ast.walk(tree)) if number == mutant.node)
    changed = mutate_node(target)
    assert changed is not None
    for parent in ast.walk(tree):
        for name, value in ast.iter_fields(parent):
            if value is target:
                setattr(parent, name, changed)
            elif isinstance(value, list):
                value[:] = [changed if item is target else item for item in value]
    return ast.fix_missing_locations(tree)


def build_traced(file: Path) -> ast.Module:
    """The module with a call of `NOTE` before every statement of a function, which is told the statement's line."""
    tree = ast.parse(file.read_text())
    functions = [node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)]
    inside = {id(node): node for function in functions for node in ast.walk(function)}
    for node in inside.values():
        for name in ("body", "orelse", "finalbody"):
            block = getattr(node, name, None)
            if isinstance(block, list) and not isinstance(node, ast.ClassDef):
                block[:] = [part for statement in block for part in _with_note(statement)]
    return ast.fix_missing_locations(tree)


def _with_note(statement: ast.stmt) -> list[ast.stmt]:
    call = ast.Expr(ast.Call(ast.Name(NOTE, ast.Load()), [ast.Constant(statement.lineno)], []))
    return [call, statement]


def mutate_node(node: ast.AST) -> ast.AST | None:
    """The changed copy of a node, or None where there is nothing to change."""
    made = copy.copy(node)
    if isinstance(made, ast.Compare):
        if type(made.ops[0]) not in _SWAPPED:
            return None
        made.ops = [_SWAPPED[type(made.ops[0])](), *made.ops[1:]]  # type: ignore[list-item]
    elif isinstance(made, ast.BinOp | ast.BoolOp | ast.AugAssign):
        if type(made.op) not in _SWAPPED:
            return None
        made.op = _SWAPPED[type(made.op)]()  # type: ignore[assignment]
    elif isinstance(made, ast.UnaryOp):
        return made.operand if isinstance(made.op, ast.Not | ast.USub | ast.Invert) else None
    elif isinstance(made, ast.Constant):
        return _mutate_constant(made)
    elif isinstance(made, ast.Return):
        if made.value is None or (isinstance(made.value, ast.Constant) and not made.value.value):
            return None  # whoever asks for a truth takes False for None; the constant itself is changed elsewhere
        made.value = ast.Constant(None)
    elif isinstance(made, ast.If | ast.IfExp | ast.While):
        if isinstance(made.test, ast.Compare | ast.BoolOp | ast.UnaryOp | ast.Constant):
            return None  # changed by itself
        made.test = ast.UnaryOp(ast.Not(), made.test)
    elif isinstance(made, ast.Name):
        if made.id not in _SWAPPED_NAMES or not isinstance(made.ctx, ast.Load):
            return None
        made.id = _SWAPPED_NAMES[made.id]
    elif isinstance(made, ast.Expr):
        return ast.copy_location(ast.Pass(), made) if isinstance(made.value, ast.Call) else None
    elif isinstance(made, ast.Break | ast.Continue):
        return ast.copy_location(_SWAPPED[type(made)](), made)
    else:
        return None
    return made


def _mutate_constant(node: ast.Constant) -> ast.Constant | None:
    if isinstance(node.value, bool):
        node.value = not node.value
    elif isinstance(node.value, int):
        node.value += 1
    elif isinstance(node.value, float):
        node.value = node.value * 2 or 1.0
    else:
        return None
    return node


def _find_ignored(tree: ast.Module) -> set[int]:
    """Nodes that say nothing about behaviour: annotations, decorators, assertions, the text of messages."""
    return {id(node) for root in _ignored_roots(tree) for node in ast.walk(root)}


def _ignored_roots(tree: ast.Module) -> Iterator[ast.AST]:
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            yield from node.decorator_list
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.returns is not None:
            yield node.returns
        if isinstance(node, ast.arg | ast.AnnAssign) and node.annotation is not None:
            yield node.annotation
        if isinstance(node, ast.JoinedStr | ast.Assert | ast.Import | ast.ImportFrom):
            yield node
        if isinstance(node, ast.If) and isinstance(node.test, ast.Name) and node.test.id == "TYPE_CHECKING":
            yield node
        if isinstance(node, ast.keyword) and node.arg in ("strict", "maintain_order", "cache", "nogil", "maxsize"):
            yield node


def _show(node: ast.AST) -> str:
    """The first line of a node as text."""
    shown = ast.unparse(node).partition("\n")[0]
    return shown if len(shown) <= 90 else shown[:87] + "..."

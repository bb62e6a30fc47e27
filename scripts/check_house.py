"""Fail where a package outgrows its limits (house.toml), a word that nobody understands comes back, or code is dead.

    python scripts/check_house.py            check
    python scripts/check_house.py --write    write what is measured now as the limits

Limits of a package: lines, numeric module constants (a number belongs in a config beside its user), and mappings of
anything (`dict[str, Any]`: between packages it is a dataclass with the codec of `prism.records.documents`).
"""

from __future__ import annotations

import re
import sys
import tomllib
from dataclasses import dataclass
from pathlib import Path

from vulture import Vulture

ROOT = Path(__file__).parents[1]
SOURCE = ROOT / "src" / "prism"
LIMITS = ROOT / "house.toml"
WORDS = re.compile(
    r"(?<![a-z-])(?:voices?|company|companies|hears?|heard|strangers?|stood_in|gossip)(?![a-z])", re.IGNORECASE
)
EMPTY_NAMES = frozenset({"utils", "util", "helpers", "helper", "common", "core", "manager", "base", "misc"})
NUMBER = re.compile(r"^_?[A-Z][A-Z_0-9]*(?:: [A-Za-z]+)? = -?[0-9.]", re.MULTILINE)
MAPPING = re.compile(r"dict\[str, Any\]")
# Names that others call: torch, typer, the standard library, users of the library.
UNUSED = ROOT / "scripts" / "unused_names.txt"


@dataclass(frozen=True, slots=True, kw_only=True)
class Size:
    """What is counted of one package."""

    lines: int
    numbers: int
    mappings: int


def main() -> int:
    """Print one line for each thing to mend; exit 1 where there are any."""
    sizes = measure()
    if "--write" in sys.argv:
        write_limits(sizes)
        return 0
    limits = tomllib.loads(LIMITS.read_text())
    wrong = [*over_limits(sizes, limits), *banned_words(), *empty_names(), *dead_code()]
    for line in wrong:
        print(line)
    whole = sum(size.lines for size in sizes.values())
    print(f"{whole:,} lines, {sum(s.numbers for s in sizes.values())} numeric constants in src/prism", file=sys.stderr)
    return 1 if wrong else 0


def measure() -> dict[str, Size]:
    """The size of every package, and of the files beside them."""
    texts: dict[str, list[str]] = {}
    for path in sorted(SOURCE.rglob("*.py")):
        parts = path.relative_to(SOURCE).parts
        texts.setdefault(parts[0] if len(parts) > 1 else "prism", []).append(path.read_text())
    return {
        name: Size(
            lines=sum(text.count("\n") for text in files),
            numbers=sum(len(NUMBER.findall(text)) for text in files),
            mappings=sum(len(MAPPING.findall(text)) for text in files),
        )
        for name, files in texts.items()
    }


def over_limits(sizes: dict[str, Size], limits: dict[str, dict[str, int]]) -> list[str]:
    """Packages that are larger than house.toml allows, and packages that it does not know."""
    found = [f"house.toml: no limits for {name}" for name in sizes.keys() - limits.keys()]
    for name, limit in limits.items():
        size = sizes.get(name, Size(lines=0, numbers=0, mappings=0))
        for what, most in limit.items():
            if getattr(size, what) > most:
                found.append(f"src/prism/{name}: {getattr(size, what)} {what}, house.toml allows {most}")
    return sorted(found)


def write_limits(sizes: dict[str, Size]) -> None:
    """Replace house.toml, keeping its first comment."""
    head = "".join(line for line in LIMITS.read_text().splitlines(keepends=True) if line.startswith("#"))
    tables = (
        f"\n[{name}]\nlines = {size.lines}\nnumbers = {size.numbers}\nmappings = {size.mappings}\n"
        for name, size in sorted(sizes.items())
    )
    LIMITS.write_text(head + "".join(tables))


def banned_words() -> list[str]:
    """Words that say nothing of the field, in names, comments and sentences."""
    return [
        f"{path.relative_to(ROOT)} line {number}: '{found.group()}' is no word of the field"
        for path in sorted(SOURCE.rglob("*"))
        if path.suffix in (".py", ".js", ".html")
        for number, line in enumerate(path.read_text().splitlines(), start=1)
        if (found := WORDS.search(line))
    ]


def empty_names() -> list[str]:
    """Files whose name tells a reader nothing."""
    return [
        f"{path.relative_to(ROOT)}: the name says nothing of what is in it"
        for path in sorted(SOURCE.rglob("*.py"))
        if path.stem.strip("_") in EMPTY_NAMES
    ]


def dead_code() -> list[str]:
    """What nothing in src, tests, proving, scripts or examples uses."""
    known = {name for line in UNUSED.read_text().splitlines() if line[:1] != "#" for name in line.split()}
    finder = Vulture(ignore_names=sorted(known), ignore_decorators=["@*.command", "@*.get", "@*.post", "@*.delete"])
    finder.scavenge([str(ROOT / name) for name in ("src", "tests", "proving", "scripts", "examples")])
    return [
        f"{Path(item.filename).relative_to(ROOT)} line {item.first_lineno}: {item.typ} '{item.name}' is not used"
        for item in finder.get_unused_code(min_confidence=60)
        if Path(item.filename).is_relative_to(SOURCE) and item.typ not in ("variable", "attribute")
    ]


if __name__ == "__main__":
    sys.exit(main())

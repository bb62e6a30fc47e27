"""Run the judges that lie beside the checkout, and fail where a figure of proving/ratchet.toml fell.

    python proving/ratchet.py              every judge that is there
    python proving/ratchet.py hangs logs   these

The judges are no part of this repository. `PRISM_JUDGES` names the folder that holds `judges/` and `data/`; by default
it is `shared` beside the checkout. A judge that is not there is left out, and that is said.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
FIGURES = Path(__file__).with_name("ratchet.toml")
LIMIT_S = 1_200


def main(wanted: list[str]) -> int:
    """Print a line per figure; exit 1 where one fell."""
    beside = Path(os.environ.get("PRISM_JUDGES", ROOT.parent / "shared"))
    table = tomllib.loads(FIGURES.read_text())
    unknown = set(wanted) - table.keys()
    if unknown:
        print(f"no judge is called {', '.join(sorted(unknown))}; there are {', '.join(table)}", file=sys.stderr)
        return 2
    fell = 0
    for name in wanted or table:
        script = beside / table[name]["run"][0]
        if not script.is_file():
            print(f"{name}: left out, {script} is not there (PRISM_JUDGES names its folder)")
            continue
        fell += judge(name, table[name], script)
    return 1 if fell else 0


def judge(name: str, facts: Mapping[str, Any], script: Path) -> int:
    """How many figures of one judge fell."""
    prism = Path(sys.executable).with_name("prism")
    words = [sys.executable, str(script), str(prism), *facts["run"][1:]]
    try:
        done = subprocess.run(words, capture_output=True, text=True, timeout=LIMIT_S)
    except subprocess.TimeoutExpired:
        print(f"{name}: not judged, no answer in {LIMIT_S} s on this machine")
        return 0
    found = read_figures(done.stdout, facts["pattern"], facts.get("key"))
    fell = 0
    for bound, kept in (("least", facts.get("least", {})), ("most", facts.get("most", {}))):
        for figure, value in kept.items():
            now = found.get(figure)
            worse = now is None or (now < value if bound == "least" else now > value)
            better = now is not None and now != value and not worse
            fell += worse
            state = "FELL" if worse else "better: write it into proving/ratchet.toml" if better else "holds"
            print(f"{name}: {figure} {'missing' if now is None else f'{now:g}'}, kept {value:g}: {state}")
    if fell:
        print("\n".join(f"  {line}" for line in done.stdout.splitlines()[-30:]))
        print("\n".join(f"  {line}" for line in done.stderr.splitlines()[-5:]))
    return fell


def read_figures(text: str, pattern: str, key: str | None) -> dict[str, float]:
    """Figures of a judge's output: the named groups of its lines, with the word of the group `key` in front."""
    found: dict[str, float] = {}
    for match in re.finditer(pattern, text, re.MULTILINE):
        groups = {name: value for name, value in match.groupdict().items() if value is not None}
        row = groups.pop(key, "") if key else ""
        found |= {f"{row} {name}".strip(): float(value) for name, value in groups.items()}
    return found


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

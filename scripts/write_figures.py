"""Write README's table of figures from proving/figures.toml; with --check only compare."""

from __future__ import annotations

import sys
import tomllib
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[1]
README, FIGURES = ROOT / "README.md", ROOT / "proving" / "figures.toml"
BEGIN, END = "<!-- figures: written by `make docs` from proving/figures.toml -->", "<!-- end of figures -->"
SPLITS = ("held out", "forward", "exact", "measured")


@dataclass(frozen=True, slots=True, kw_only=True)
class Figure:
    """One measured figure beside its peer."""

    what: str
    prism: str
    command: str
    split: str
    machine: str
    date: str
    commit: str  # the code that was measured
    peer: str = ""
    band: str = ""

    def __post_init__(self) -> None:
        if self.split not in SPLITS:
            raise SystemExit(f"{FIGURES.name}: split '{self.split}' of '{self.what}'; expected {', '.join(SPLITS)}")
        if "inside" in self.what and not self.band:
            raise SystemExit(f"{FIGURES.name}: '{self.what}' does not say how wide the bands are")

    def row(self) -> str:
        """The row of README."""
        band = f" (bands of {self.band})" if self.band else ""
        return f"| {self.what}{band} | {self.prism} | {self.peer} | {self.split}, {self.date} | `{self.command}` |"


def main() -> int:
    """Replace what stands between the two marks."""
    table = tomllib.loads(FIGURES.read_text())
    rows = [Figure(**row).row() for row in table.values()]
    head = ["| what is measured | Prism | alternative | how | command |", "|---|---|---|---|---|"]
    text = README.read_text()
    before, _, rest = text.partition(BEGIN)
    _, _, after = rest.partition(END)
    wanted = f"{before}{BEGIN}\n" + "\n".join([*head, *rows]) + f"\n{END}{after}"
    if "--check" in sys.argv:
        if wanted != text:
            print("README.md: the table of figures differs from proving/figures.toml; run `make docs`")
            return 1
        return 0
    README.write_text(wanted)
    return 0


if __name__ == "__main__":
    sys.exit(main())

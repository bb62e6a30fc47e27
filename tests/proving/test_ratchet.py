"""The ratchet fails where a judge's figure falls, and says what is not there."""

from __future__ import annotations

import tomllib
from pathlib import Path

import pytest

from proving import ratchet

JUDGE = "import sys\nprint('row: right 7 of 9, wrong 1')\nsys.exit(1)\n"


def write(folder: Path, least: int, most: int) -> Path:
    (folder / "judges").mkdir(exist_ok=True)
    (folder / "judges" / "one.py").write_text(JUDGE)
    table = folder / "figures.toml"
    table.write_text(
        "[one]\nrun = ['judges/one.py']\npattern = '^row: right (?P<right>\\d+) of \\d+, wrong (?P<wrong>\\d+)'\n"
        f"least = {{ right = {least} }}\nmost = {{ wrong = {most} }}\n"
        "[two]\nrun = ['judges/two.py']\npattern = 'x'\n"
    )
    return table


@pytest.mark.parametrize(
    ("least", "most", "code", "said"),
    [
        (7, 1, 0, "right 7, kept 7: holds"),
        (6, 1, 0, "right 7, kept 6: better"),
        (8, 1, 1, "right 7, kept 8: FELL"),
        (7, 0, 1, "wrong 1, kept 0: FELL"),
    ],
)
def test_a_figure_that_falls_fails(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], least: int, most: int,
    code: int, said: str,
) -> None:  # fmt: skip
    monkeypatch.setattr(ratchet, "FIGURES", write(tmp_path, least, most))
    monkeypatch.setenv("PRISM_JUDGES", str(tmp_path))
    assert ratchet.main([]) == code
    shown = capsys.readouterr().out
    assert said in shown and "two: left out" in shown


def test_the_kept_figures_can_be_read() -> None:
    table = tomllib.loads(ratchet.FIGURES.read_text())
    assert {"hangs", "profiles", "logs", "exports", "world"} <= table.keys()
    text = "everything: exact 3, culprits among others 0, no rank named 1, a wrong rank named 2, of which with"
    found = ratchet.read_figures(text, table["hangs"]["pattern"], "reading")
    assert found == {"everything exact": 3.0, "everything wrong": 2.0}

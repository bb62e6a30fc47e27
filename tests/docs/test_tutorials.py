"""The tutorials in docs/tutorials/ are followed as they are written, each in an empty folder."""

from __future__ import annotations

from pathlib import Path

import pytest
from runnable_pages import ROOT, follow

TUTORIALS = sorted(page for page in (ROOT / "docs" / "tutorials").glob("*.md") if page.name != "index.md")
QUICK = {"explain", "predict", "recover"}


@pytest.mark.timeout(1200)
@pytest.mark.parametrize(
    "page", [pytest.param(p, id=p.stem, marks=[pytest.mark.slow] * (p.stem not in QUICK)) for p in TUTORIALS]
)
def test_a_tutorial_leads_where_it_says(page: Path, tmp_path: Path) -> None:
    assert follow(page, tmp_path) >= 2


def test_every_tutorial_is_listed() -> None:
    index = (ROOT / "docs" / "tutorials" / "index.md").read_text()
    assert len(TUTORIALS) >= 11 and all(f"({page.name})" in index for page in TUTORIALS)

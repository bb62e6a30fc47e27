"""What the pages say holds: links lead somewhere, commands exist, every package has a guide."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from prism.cli.main import app

ROOT = Path(__file__).parents[1]
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").rglob("*.md"))]


@pytest.mark.parametrize("page", PAGES, ids=lambda p: str(p.relative_to(ROOT)))
def test_links_inside_the_repository_lead_somewhere(page: Path) -> None:
    for target in re.findall(r"\]\(([^)#\s]+)", page.read_text()):
        if "://" not in target:
            assert (page.parent / target).exists(), f"{page.name} links to {target}"


@pytest.mark.parametrize("page", PAGES, ids=lambda p: str(p.relative_to(ROOT)))
def test_commands_shown_on_a_page_exist(page: Path) -> None:
    from typer.main import get_command

    known = set(getattr(get_command(app), "commands", {}))
    shown = set(re.findall(r"^(?:\$ )?(?:\.venv/bin/)?prism ([a-z-]+)", page.read_text(), flags=re.MULTILINE))
    assert shown <= known, f"{page.name} shows {shown - known}"


def test_the_shapes_named_in_the_architecture_are_declared() -> None:
    import prism.records

    page = (ROOT / "docs" / "architecture.md").read_text()
    for name in (
        "FLOWS",
        "TOPOLOGY",
        "SPANS",
        "OPS",
        "RANKS",
        "GROUPS",
        "FINDINGS",
        "JOBS",
        "LOG",
        "Layout",
        "Verdict",
    ):
        assert name in page and hasattr(prism.records, name)

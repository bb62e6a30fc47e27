"""docs/investigate.md leads from "it hangs" to a name, on the folder that the tour leaves behind."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from prism.lab.tour.parts import HANGING, list_parts

ROOT = Path(__file__).parents[3]
sys.path.insert(0, str(ROOT / "tests" / "docs"))
from runnable_pages import follow, run  # noqa: E402

pytest.importorskip("torch", reason="needs torch")


@pytest.mark.slow
@pytest.mark.timeout(1200)
def test_the_page_leads_to_the_rank_that_hangs(tmp_path: Path) -> None:
    made = subprocess.run(
        [sys.executable, str(HANGING), str(tmp_path / "out/demo/hang")], capture_output=True, text=True
    )
    assert made.returncode == 0, made.stderr
    assert not list((tmp_path / "out/demo/hang").glob(".*")), "nothing of the making is left"
    assert follow(ROOT / "docs" / "investigate.md", tmp_path, run) >= 4
    assert "</html>" in (tmp_path / "verdict" / "investigation.html").read_text()


def test_the_tour_leaves_the_folder_that_the_page_names(tmp_path: Path) -> None:
    (part,) = [part for part in list_parts(Path("out/demo")) if part.name == "investigate"]
    assert part.words[1] == "out/demo/hang" and part.words[1] in (ROOT / "docs" / "investigate.md").read_text()

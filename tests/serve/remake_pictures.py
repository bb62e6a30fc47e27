"""Take the pictures of pages again.

python tests/serve/remake_pictures.py golden   the small ones that tests compare with
python tests/serve/remake_pictures.py docs     docs/images/serve-*.png, on a cluster of 512 GPUs
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

import served_folder
from browser import GOLDEN, SHOTS, Shot, open_browser, shrink, take_shot
from served_folder import make_folder
from service import run_service

IMAGES = Path(__file__).parents[2] / "docs" / "images"


def remake_golden(folder: Path) -> None:
    """Pages of the test folder, averaged over blocks."""
    GOLDEN.mkdir(exist_ok=True)
    with run_service(folder) as service, open_browser() as browser:
        for shot in SHOTS:
            shrink(take_shot(browser, service.address, shot)).save(GOLDEN / f"{shot.name}.png", optimize=True)


def remake_docs(folder: Path) -> None:
    """Pages as a reader of the docs sees them, cut to what fits a screen."""
    import io

    from PIL import Image

    shots = [
        Shot("now", "/"),
        Shot("incident", "/incident?id=i-1"),
        Shot("cluster", "/cluster"),
        Shot("job", "/job?key=report~job-1"),
        Shot("failures", "/failures"),
        Shot("evaluation", "/evaluation"),
        Shot("datacenter", "/datacenter"),
        Shot("job-dark", "/job?key=report~job-1&expected=report%2Fcluster~job-1", dark=True),
    ]
    with run_service(folder) as service, open_browser() as browser:
        for shot in shots:
            page = Image.open(io.BytesIO(take_shot(browser, service.address, shot))).convert("RGB")
            page = page.crop((0, 0, page.width, 1_150)).quantize(256)
            page.save(IMAGES / f"serve-{shot.name}.png", optimize=True)


def main() -> None:
    """Remake the pictures that are named."""
    what = sys.argv[1] if len(sys.argv) > 1 else ""
    if what not in ("golden", "docs"):
        sys.exit(__doc__)
    with tempfile.TemporaryDirectory() as name:
        root = Path(name) / "served"
        root.mkdir()
        if what == "golden":
            remake_golden(make_folder(root))
        else:
            served_folder.SCRIPT = "at noon"  # tests look for a script there; readers need not
            remake_docs(make_folder(root, "demo-512"))


if __name__ == "__main__":
    main()

"""The built wheel and sdist install into empty environments, with every extra, and run."""

from __future__ import annotations

import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
EXTRAS = [
    extra
    for extra in tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    if extra not in ("dev", "bench")
]
# What an extra is for, as an import that fails without it.
PROOF = {
    "emulate": "import torch",
    "recover": "import prism.recover.checkpoint",
    "observe": "import ray",
    "evaluate": "import safetensors",
    "harness": "import lm_eval",
    "s3": "import boto3",
    "serve": "import prism.serve.web.app",
}

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1800)]


def call(*command: str | Path, **options: object) -> str:
    done = subprocess.run([str(c) for c in command], capture_output=True, text=True, **options)  # type: ignore[call-overload]
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-4000:]
    return str(done.stdout)


@pytest.fixture(scope="session")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("dist")
    call(sys.executable, "-m", "venv", folder / "builder")
    call(folder / "builder/bin/pip", "install", "-q", "build")
    call(folder / "builder/bin/python", "-m", "build", "--outdir", folder / "dist", ROOT)
    return folder / "dist"


def make_environment(folder: Path, wanted: str) -> Path:
    """An empty environment with the wanted package; versions are those of constraints.txt, torch is its CPU build."""
    call(sys.executable, "-m", "venv", folder)
    if "torch" in (ROOT / "constraints.txt").read_text() and "[" in wanted:
        torch = next(c for c in (ROOT / "constraints.txt").read_text().split() if c.startswith("torch=="))
        call("sh", ROOT / "scripts" / "install_torch.sh", folder / "bin/python", torch)
    call(folder / "bin/pip", "install", "-q", "-c", ROOT / "constraints.txt", wanted)
    return folder / "bin"


@pytest.mark.parametrize("kind", ["*.whl", "*.tar.gz"])
def test_a_plain_install_diagnoses_the_embedded_cluster(built: Path, tmp_path: Path, kind: str) -> None:
    (package,) = built.glob(kind)
    programs = make_environment(tmp_path / "env", str(package))
    shown = call(programs / "prism", "demo", "--only", "observe", "--output", tmp_path / "demo", cwd=tmp_path)
    assert "slow" in shown
    assert (tmp_path / "demo").is_dir()


@pytest.mark.parametrize("extra", EXTRAS)
def test_every_extra_installs_and_brings_what_it_is_for(built: Path, tmp_path: Path, extra: str) -> None:
    (wheel,) = built.glob("*.whl")
    programs = make_environment(tmp_path / "env", f"{wheel}[{extra}]")
    call(programs / "python", "-c", f"import prism; {PROOF.get(extra, 'pass')}", cwd=tmp_path)
    call(programs / "prism", "--help", cwd=tmp_path)


def test_the_wheel_holds_what_the_sources_hold(built: Path) -> None:
    import zipfile

    (wheel,) = built.glob("*.whl")
    with zipfile.ZipFile(wheel) as archive:
        packed = {n for n in archive.namelist() if n.startswith("prism/")}
    listed = call("git", "-C", ROOT, "ls-files", "src/prism")
    assert {line.removeprefix("src/") for line in listed.splitlines()} <= packed

"""`prism supervise` leaves a verdict in the folder of every attempt that failed, where the dashboard finds it."""

from __future__ import annotations

import json
from pathlib import Path

from prism.records.verdict import Verdict
from prism.recover.supervise import actions
from prism.recover.supervise.config import SuperviseConfig
from prism.recover.supervise.investigating import Investigations
from prism.recover.supervise.launchers.local import LocalLauncher
from prism.recover.supervise.runner import Supervisor, Tools


def test_every_attempt_that_ended_badly_is_investigated(tmp_path: Path) -> None:
    looked_at: list[Path] = []

    def unknown(folder: Path, code: int | None) -> Verdict:
        return Verdict(log=str(folder), reason="Unknown", category="unknown", action="restart", confidence=0.0)

    config = SuperviseConfig()
    tools = Tools(
        launcher=LocalLauncher(config.launch), explainer=unknown, investigate=looked_at.append, say=lambda text: None
    )
    supervisor = Supervisor(tmp_path / "run", ("true",), config, tools)
    supervisor._act(actions.Explain(attempt=2, code=1))
    supervisor.journal.close()
    assert [p.name for p in looked_at] == [(tmp_path / "run" / "attempts" / looked_at[0].name).name]


def test_investigations_run_one_at_a_time_and_end_with_the_supervisor(tmp_path: Path) -> None:
    investigations = Investigations()
    assert investigations.start(tmp_path) and not investigations.start(tmp_path)
    process = investigations._process
    assert process is not None and process.poll() is None
    investigations.close(wait=False)
    assert process.poll() is not None


def test_the_verdict_is_written_beside_the_logs(tmp_path: Path) -> None:
    (tmp_path / "rank-0.log").write_text(
        'Traceback (most recent call last):\n  File "train.py", line 3, in <module>\ntorch.OutOfMemoryError: CUDA out of memory. '
        "Tried to allocate 2.00 GiB\n"
    )
    investigations = Investigations()
    assert investigations.start(tmp_path)
    assert investigations._process is not None
    investigations._process.wait(600)
    investigations.close(wait=True)
    document = json.loads((tmp_path / "investigation.json").read_text())
    assert document["schema"] == "prism.investigation/1" and document["evidence"][0]["source"] == "log"
    assert "</html>" in (tmp_path / "investigation.html").read_text()

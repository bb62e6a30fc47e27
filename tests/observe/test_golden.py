"""What is said of the named scenarios stays what it is, unless it is changed on purpose.

`python tests/observe/test_golden.py` writes the outlines anew.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from prism.lab.scenarios import load_scenario, make_scenario
from prism.observe import diagnose

OUTLINES = Path(__file__).parent / "golden" / "outlines.json"
NAMES = (
    "accumulate-32", "dense-dp-16", "flapping-link-64", "fsdp-64", "load-imbalance-64", "one-nic-32", "restart-64",
    "slow-gpu-64", "dense-3d-64", "heavy-last-stage-128",
)  # fmt: skip


def outline(name: str) -> dict[str, Any]:
    """Jobs with their layouts, states, steps and pairs by kind, and findings with their culprits, of one scenario."""
    made = make_scenario(load_scenario(name), 0)
    document = diagnose(made.flows, made.topology).to_json()
    jobs = [
        {
            "endpoints": len(job["endpoints"]),
            "layout": [job["layout"][degree] for degree in ("dp", "pp", "tp", "cp", "ep")],
            "state": job["state"],
            "steps": len(job["steps"]),
            "pairs": {kind: sum(p["kind"] == kind for p in job["pairs"]) for kind in {p["kind"] for p in job["pairs"]}},
        }
        for job in document["jobs"]
    ]
    findings = [[f["kind"], f["culprit"]["id"], round(f["lost_gpu_seconds"])] for f in document["findings"]]
    return {"jobs": jobs, "findings": findings, "notes": document["notes"]}


@pytest.mark.parametrize("name", NAMES)
def test_the_diagnosis_of_a_named_scenario_is_what_was_recorded(name: str) -> None:
    assert outline(name) == json.loads(OUTLINES.read_text())[name]


if __name__ == "__main__":
    OUTLINES.write_text(json.dumps({name: outline(name) for name in NAMES}, indent=1, sort_keys=True) + "\n")

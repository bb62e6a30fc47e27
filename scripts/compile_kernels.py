"""Compile what is otherwise compiled on first use, so that the first diagnosis does not wait for it."""

from __future__ import annotations

from prism.observe import build_timeline
from prism.observe.diagnose import diagnose
from prism.scenarios import load_scenario, make_scenario


def main() -> None:
    """Diagnose small clusters, one healthy and one with a fault."""
    for name in ("dense-dp-16", "slow-gpu-64"):
        made = make_scenario(load_scenario(name), seed=0)
        build_timeline(diagnose(made.flows, made.topology))


if __name__ == "__main__":
    main()

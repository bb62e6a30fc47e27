"""Clusters with known truth: jobs, layouts and faults that become flows, a topology, a timeline and a truth file."""

from prism.lab.scenarios.random_family import RandomConfig, random_scenario
from prism.lab.scenarios.run import ScenarioRun, make_scenario, write_graphs, write_scenario
from prism.lab.scenarios.scenario import Scenario
from prism.lab.scenarios.scenario_file import load_scenario, read_scenario, scenario_names

__all__ = [
    "RandomConfig",
    "Scenario",
    "ScenarioRun",
    "load_scenario",
    "make_scenario",
    "random_scenario",
    "read_scenario",
    "scenario_names",
    "write_graphs",
    "write_scenario",
]

"""Everything a job left behind, one verdict; and an expected timeline against an observed one."""

from prism.investigate.clues import Clue, Suspect
from prism.investigate.compare import Comparison, Part, compare_timelines
from prism.investigate.investigation import Investigation, Request, investigate

__all__ = ["Clue", "Comparison", "Investigation", "Part", "Request", "Suspect", "compare_timelines", "investigate"]

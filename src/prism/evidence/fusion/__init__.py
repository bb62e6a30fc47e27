"""One verdict from everything that a job left behind; and a comparison of an expected and an observed timeline."""

from prism.evidence.fusion.clues import Clue, Suspect
from prism.evidence.fusion.compare import Comparison, Part, compare_timelines
from prism.evidence.fusion.investigation import Investigation, Request, investigate

__all__ = ["Clue", "Comparison", "Investigation", "Part", "Request", "Suspect", "compare_timelines", "investigate"]

"""Flows to jobs, parallel groups, steps, a timeline and findings."""

from prism.observe.calls import list_calls
from prism.observe.diagnose import diagnose
from prism.observe.diagnosis import Diagnosis, JobDiagnosis
from prism.observe.timeline.drawing import build_timeline

__all__ = ["Diagnosis", "JobDiagnosis", "build_timeline", "diagnose", "list_calls"]

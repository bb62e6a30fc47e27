"""Flows to jobs, parallel groups, steps, a timeline and findings."""

from prism.observe.diagnose import Diagnosis, JobDiagnosis, diagnose
from prism.observe.timeline import build_timeline

__all__ = ["Diagnosis", "JobDiagnosis", "build_timeline", "diagnose"]

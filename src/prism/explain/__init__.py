"""From a failed job's logs to the root cause and what to do, with the lines that prove it."""

from prism.explain.diagnose import Diagnosis, Knowledge, diagnose
from prism.explain.joblog import JobLog, read_job, read_text

__all__ = ["Diagnosis", "JobLog", "Knowledge", "diagnose", "read_job", "read_text"]

"""From a failed job's logs to the root cause and what to do, with the lines that prove it."""

from prism.evidence.logs.diagnose import Diagnosis, Knowledge, diagnose
from prism.evidence.logs.joblog import JobLog, read_job, read_text

__all__ = ["Diagnosis", "JobLog", "Knowledge", "diagnose", "read_job", "read_text"]

"""Finds bad hosts: tests in pairs and groups, repeated until every host is trusted or condemned."""

from prism.recover.isolate.report import BadLink, IsolationReport
from prism.recover.isolate.search import Search, SearchConfig

__all__ = ["BadLink", "IsolationReport", "Search", "SearchConfig"]

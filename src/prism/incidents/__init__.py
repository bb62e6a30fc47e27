"""Incidents: one problem from its first sign to its end, who is told of it, and what to do."""

from prism.incidents.book import BookConfig, IncidentBook
from prism.incidents.channels import AlertConfig, Channel, read_alerts
from prism.incidents.desk import IncidentDesk
from prism.incidents.events import Acknowledged, Closed, Look, Sighting, SourceLost, Studied, Tick
from prism.incidents.incident import Change, Incident, Place, Witness
from prism.incidents.kinds import KINDS, Kind, kind_of
from prism.incidents.store import IncidentReader, IncidentStore

__all__ = [
    "KINDS",
    "Acknowledged",
    "AlertConfig",
    "BookConfig",
    "Change",
    "Channel",
    "Closed",
    "Incident",
    "IncidentBook",
    "IncidentDesk",
    "IncidentReader",
    "IncidentStore",
    "Kind",
    "Look",
    "Place",
    "Sighting",
    "SourceLost",
    "Studied",
    "Tick",
    "Witness",
    "kind_of",
    "read_alerts",
]

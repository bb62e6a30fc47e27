"""The run as a state: events in, actions out, no files, no processes, no clocks."""

from __future__ import annotations

from dataclasses import dataclass

from prism.recover.progress import STORAGE
from prism.recover.supervise import events
from prism.recover.supervise.actions import Action
from prism.recover.supervise.endings import on_examined, on_exit, on_explained, on_stop_asked, on_taken_up
from prism.recover.supervise.job import Cause, JobRecord, Phase
from prism.recover.supervise.running import on_checkpoint, on_corruption, on_step
from prism.recover.supervise.silence import on_looked, on_tick

__all__ = ["Cause", "JobState", "Phase"]


@dataclass(slots=True, kw_only=True)
class JobState(JobRecord):
    """The record, and what is decided on it."""

    def handle(self, event: events.Event) -> list[Action]:
        """Take an event, change, and say what to do."""
        if self.over:
            return on_taken_up(self, event.now_s) if isinstance(event, events.TakenUp) else []
        match event:
            case events.Tick():
                return on_tick(self, event.now_s)
            case events.RisksRead():
                self.per_day = dict(event.per_day)
                return []
            case events.Launched():
                self.hosts = event.hosts
                return []
            case events.Queued():
                self.pace.last_seen_s = event.now_s
                return []
            case events.StepDone():
                return on_step(self, event)
            case events.OutputSeen():
                # A trainer that reports may be stuck while a helper writes; one that does not has only its log.
                if not self.pace.reports:
                    self.pace.note_output(event.now_s, in_line=event.in_line)
                return []
            case events.Looked():
                return on_looked(self, event)
            case events.Paused() | events.Resumed():
                self.pace.paused, self.pace.last_seen_s = isinstance(event, events.Paused), event.now_s
                self.pace.waits_for = STORAGE if isinstance(event, events.Paused) and event.what == STORAGE else ""
                return []
            case events.Corrupted():
                return on_corruption(self, event)
            case events.Exited():
                return on_exit(self, event)
            case events.Explained():
                return on_explained(self, event)
            case events.Examined():
                return on_examined(self, event)
            case events.StopAsked():
                return on_stop_asked(self)
            case _:
                return on_checkpoint(self, event)

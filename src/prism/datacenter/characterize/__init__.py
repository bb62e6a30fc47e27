"""From a datacenter's job trace to the workload report and its comparison; also synthetic traces."""

from prism.datacenter.characterize.characterization import Characterization, CharacterizeOptions, characterize
from prism.datacenter.characterize.checkpoints import CheckpointAdvice, CheckpointCosts, advise_checkpoints
from prism.datacenter.characterize.columns import ColumnChoice, parse_choices
from prism.datacenter.characterize.comparison import Comparison, compare
from prism.datacenter.characterize.document import write_document
from prism.datacenter.characterize.faults import FaultStudy, read_faults, study_faults
from prism.datacenter.characterize.generator import GeneratorOptions, generate_batches, generate_trace
from prism.datacenter.characterize.overview import Action, Overview, Part
from prism.datacenter.characterize.profile import Profile, read_profile, write_profile
from prism.datacenter.characterize.reading import read_jobs
from prism.datacenter.characterize.report import write_report
from prism.datacenter.characterize.study import Study, StudyOptions, study
from prism.datacenter.characterize.tally import Tally, merge_tallies, tally_jobs
from prism.datacenter.characterize.utilisation import Utilisation, read_utilisation
from prism.datacenter.characterize.weekly import Weeks

__all__ = [
    "Action",
    "Characterization",
    "CharacterizeOptions",
    "CheckpointAdvice",
    "CheckpointCosts",
    "ColumnChoice",
    "Comparison",
    "FaultStudy",
    "GeneratorOptions",
    "Overview",
    "Part",
    "Profile",
    "Study",
    "StudyOptions",
    "Tally",
    "Utilisation",
    "Weeks",
    "advise_checkpoints",
    "characterize",
    "compare",
    "generate_batches",
    "generate_trace",
    "merge_tallies",
    "parse_choices",
    "read_faults",
    "read_jobs",
    "read_profile",
    "read_utilisation",
    "study",
    "study_faults",
    "tally_jobs",
    "write_document",
    "write_profile",
    "write_report",
]

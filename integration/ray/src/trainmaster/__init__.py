"""Trainmaster for Python: describe a job, report from any loop, train elastically on Ray.

`trainmaster.ray` (imported on its own) needs Ray; the rest doesn't.
"""

from .errors import JobError, JobFailed, Refused, TrainmasterError, Unreachable
from .job import Convergence, Dataset, Job, Partition, Role, SpeedSample, Utility
from .loop import finish, report, should_stop

__all__ = [
    "Convergence",
    "Dataset",
    "Job",
    "JobError",
    "JobFailed",
    "Partition",
    "Refused",
    "Role",
    "SpeedSample",
    "TrainmasterError",
    "Unreachable",
    "Utility",
    "finish",
    "report",
    "should_stop",
]

"""Trainmaster for Python: describe jobs, report progress from any training loop, train elastically on Ray.

Only `trainmaster.ray`, which is imported separately, needs Ray.
"""

import os

if "TRAINMASTER_JOB" in os.environ:
    # Before gRPC starts. Its handlers of forks stop reports for a moment, print a line, and can crash the processes
    # that load data, which don't use it.
    os.environ.setdefault("GRPC_ENABLE_FORK_SUPPORT", "0")

from .batch import AdaptiveBatch
from .errors import JobError, JobFailed, Refused, TrainmasterError, Unreachable
from .job import Convergence, Dataset, Job, Partition, Role, SpeedSample, Utility
from .loop import finish, report, saved, should_stop

__all__ = [
    "AdaptiveBatch",
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
    "saved",
    "should_stop",
]

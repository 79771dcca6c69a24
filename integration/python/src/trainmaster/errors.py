"""Exceptions. Messages have the key, the value and the allowed values."""


class TrainmasterError(Exception):
    """Base class of this package's exceptions."""


class JobError(TrainmasterError, ValueError):
    """A job description with an unknown key or a bad value."""


class Unreachable(TrainmasterError):
    """No daemon answers."""


class Refused(TrainmasterError):
    """The daemon or the cluster refuses. The message is the daemon's or the cluster's."""


class JobFailed(TrainmasterError):
    """The job ended without success."""


class Interrupted(TrainmasterError):
    """A worker's program has ended before its training was done. The job goes on from its last checkpoint."""

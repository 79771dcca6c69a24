"""What can go wrong, as types. Messages name the thing, the value and what is allowed."""


class TrainmasterError(Exception):
    """Everything that this package raises on purpose."""


class JobError(TrainmasterError, ValueError):
    """A job description with an unknown key or a bad value."""


class Unreachable(TrainmasterError):
    """No daemon answers."""


class Refused(TrainmasterError):
    """The daemon, or the cluster, says no; the message is its own words."""


class JobFailed(TrainmasterError):
    """The job ended without success."""

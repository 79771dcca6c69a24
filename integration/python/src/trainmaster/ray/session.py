"""A connection to the daemon and to its Ray cluster."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any, get_args

import ray

from ..channel import Jobs
from ..errors import JobFailed, Refused, TrainmasterError
from ..job import Job
from ..text import printable
from . import gcs
from .driver import Change, Driver, OnDriverDeath, Result, Settings, identity
from .record import Record
from .torchrun import Torchrun

# The states in which a job can't train any more.
_OVER = ("rejected", "completed", "failed", "cancelled", "stopped")
# The first version with label selectors for placement groups.
_OLDEST_RAY = (2, 49)


def connect(
    address: str = "localhost:7070",
    *,
    token: str = "",
    token_file: str | Path | None = None,
    ca: str | Path | None = None,
    cert: str | Path | None = None,
    key: str | Path | None = None,
    checkpoint_dir: str | Path = "~/trainmaster",
    ray_address: str = "auto",
) -> Session:
    """Connects to a daemon (`trainmaster serve --adapter ray`) and, without a connection to Ray yet, to its Ray
    cluster.

    The daemon requires a token with the role submit: `token`, else the one in `token_file`, else the one in the file
    TRAINMASTER_TOKEN_FILE, else the one of this user's daemon on this machine. For https, `ca` is the file of the
    certificate authority (default: TRAINMASTER_CA). `cert` and `key` are the files of a client certificate (default:
    TRAINMASTER_CERT, TRAINMASTER_KEY), which can replace the token.

    `checkpoint_dir` has to be a folder that all nodes share.
    """
    version = tuple(int(part) for part in ray.__version__.split(".")[:2])
    if version < _OLDEST_RAY:
        raise TrainmasterError(f"ray {ray.__version__} is too old: 2.49 or newer is needed for label selectors")
    jobs = Jobs(address, token, ca, token_file=token_file, cert=cert, key=key)
    jobs.list()  # fails now instead of during a job
    owns_ray = not ray.is_initialized()
    if owns_ray:
        ray.init(address=ray_address)
    return Session(jobs, Path(checkpoint_dir).expanduser().absolute(), owns_ray)


class Session:
    """Runs jobs. Several threads can run one job each."""

    def __init__(self, jobs: Jobs, checkpoint_dir: Path, owns_ray: bool) -> None:
        self.jobs = jobs
        self._checkpoint_dir = checkpoint_dir
        self._owns_ray = owns_ray
        self._lock = threading.Lock()
        self._names: set[str] = set()

    def __enter__(self) -> Session:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def close(self) -> None:
        self.jobs.close()
        if self._owns_ray:
            ray.shutdown()

    def fit(
        self,
        job: Job,
        *,
        worker: Callable[[], Any],
        server: Callable[[], Any] | None = None,
        on_driver_death: OnDriverDeath = "cancel",
        resume: bool = False,
        runtime_env: dict[str, Any] | None = None,
        on_change: Callable[[Change], None] | None = None,
    ) -> Result:
        """Trains a job to its end, in the shapes of its plans, and returns the result.

        `worker` and `server` are classes, or other callables without arguments that make an object. A worker has a
        method `run(ctx)`. If this driver dies, the job is cancelled. With `on_driver_death="resume"`, the job waits for
        another driver instead. With `resume=True`, the driver continues such a job, or submits the job if there is
        none.

        Raises `Refused` if the daemon refuses the job (for example a name in use, or a demand that no server can meet).
        Raises `JobFailed` if the job ends without success.
        """
        if (server is None) != (job.server is None):
            raise TrainmasterError(
                f"server: {server!r} must be given if and only if the job has servers; {job.name} has "
                + ("none" if job.server is None else "some")
            )
        if on_driver_death not in get_args(OnDriverDeath):
            raise TrainmasterError(f"on_driver_death: {on_driver_death!r} must be cancel or resume")
        if isinstance(worker, Torchrun):
            job, worker = worker.of(job)
        elif job.workdir or job.checkpoints or job.env or "nproc_per_node" in job.labels:
            raise TrainmasterError(
                f"{job.name}: workdir, checkpoints, env and nproc_per_node are for Torchrun; runtime_env= is for others"
            )
        with self._lock:
            if job.name in self._names:
                raise Refused(f"{job.name}: this session already runs a job with this name")
            self._names.add(job.name)
        try:
            record = Record(self._checkpoint_dir / job.name)
            number, token, claim = self._enter(job, record, resume)
            settings = Settings(
                job,
                number,
                token,
                self.jobs.address,
                self.jobs.ca,
                worker,
                server,
                self._checkpoint_dir / job.name,
                on_driver_death,
                runtime_env,
            )
            try:
                result = Driver(settings, on_change).run()
            except Refused:
                raise self._end_of(number) from None
            finally:
                # The claim ends with this process at the latest.
                with contextlib.suppress(*gcs.AWAY):
                    gcs.release(claim)
            record.remove()
            return result
        finally:
            with self._lock:
                self._names.discard(job.name)

    def _enter(self, job: Job, record: Record, resume: bool) -> tuple[int, str, str]:
        """Submits the job or finds that of a dead driver, and claims it. Returns its number, token and claim."""
        if resume and (known := record.read()):
            number, token = known
            status = self.jobs.find(str(number))
            if status and status.name == job.name and status.state not in _OVER:
                return number, token, _claim(job, number, token)
        number, token = self.jobs.submit(job)
        try:
            claim = _claim(job, number, token)
            record.write(number, token)
        except BaseException:
            # Without its token, no driver could continue the job, and its name would stay in use.
            self.jobs.cancel(str(number))
            raise
        return number, token, claim

    def _end_of(self, number: int) -> Exception:
        """The reason for a job's end, from the daemon."""
        status = self.jobs.find(str(number))
        if not status:
            return JobFailed(f"job {number}: the daemon does not know the job any more")
        kind = Refused if status.state == "rejected" else JobFailed
        return kind(f"{status.name}: {status.state}: {printable(status.reason)}")


def _claim(job: Job, number: int, token: str) -> str:
    try:
        return gcs.claim(identity(number, token))
    except Refused as refused:
        raise Refused(f"{job.name}: {refused}") from None

"""Job descriptions: the fields and units of the TOML job file, as dataclasses."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, TypeVar, get_args

from . import units
from ._proto import job_pb2 as pb
from .errors import JobError

Quantity = int | float | str
Mode = Literal["sync", "async", "allreduce"]
Resize = Literal["any", "workers", "fixed"]
Stop = Literal["epochs", "optimal", "accuracy"]
UtilityKind = Literal["sigmoid", "constant", "linear", "step", "table"]

_NAME = re.compile(r"(?![.-])[A-Za-z0-9._-]{1,128}")
_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
# Where servers stand, by their labels.
_LEVELS = ("zone", "block", "rack", "server")
_AMOUNTS = ("gpu", "cpu", "memory", "disk", "bandwidth")
_MOST_SLOTS = 10_000
_T = TypeVar("_T")


@dataclass(frozen=True)
class Role:
    """The demand of one worker or parameter server, and the bounds of their number.

    `resources` has other resources by name: types of GPU (`{"gpu:a100": 1}`) and custom ones (`{"license": 2}`).
    """

    gpu: Quantity | None = None
    cpu: Quantity | None = None
    memory: Quantity | None = None
    disk: Quantity | None = None
    bandwidth: Quantity | None = None
    resources: Mapping[str, Quantity] = field(default_factory=dict)
    min: int = 1
    max: int | None = None
    requested: int | None = None
    command: str = ""

    def counts(self) -> tuple[int, int, int]:
        """Returns min, max and requested. Without `max`, the maximum is `requested`."""
        requested = self.min if self.requested is None else self.requested
        return self.min, requested if self.max is None else self.max, requested

    def demand(self, key: str) -> dict[str, int]:
        """The demand by resource name, in thousandths, MiB and Mbit/s."""
        given: dict[str, Quantity] = {name: value for name in _AMOUNTS if (value := getattr(self, name)) is not None}
        demand = {name: units.amount(f"{key}.{name}", name, value) for name, value in given.items()}
        for name, value in self.resources.items():
            demand[name] = units.amount(f"{key}.resources.{name}", name, value)
        return demand

    def check(self, key: str) -> None:
        demand = self.demand(key)
        gpus = [name for name, value in demand.items() if value and (name == "gpu" or name.startswith("gpu:"))]
        if len(gpus) > 1:
            raise JobError(f"{key}.gpu: name one kind of GPU, not both {gpus[0]!r} and {gpus[1]!r}")
        for name in gpus:
            if demand[name] > 1000 and demand[name] % 1000:
                raise JobError(
                    f"{key}.{name}: {demand[name] / 1000} must be a whole number or a fraction of one device"
                )
        if not any(demand.values()):
            raise JobError(f"{key}.cpu: a demand of nothing can't be scheduled; give at least one resource")
        for name in ("min", "max", "requested"):
            value = getattr(self, name)
            if value is not None and not _is_count(value):
                raise JobError(f"{key}.{name}: {value!r} must be a whole number")
        least, most, requested = self.counts()
        if not 1 <= least <= most <= _MOST_SLOTS:
            raise JobError(f"{key}.max: min = {least}, max = {most} must be 1 ≤ min ≤ max ≤ {_MOST_SLOTS}")
        if not least <= requested <= most:
            raise JobError(f"{key}.requested: {requested} must be from min = {least} to max = {most}")

    def message(self, key: str) -> pb.Role:
        # The daemon fills in what is left out: by default the smallest of the job's sizes.
        most, requested = self.max or 0, self.requested or 0
        return pb.Role(demand=self.demand(key), min=self.min, max=most, requested=requested, command=self.command)


@dataclass(frozen=True)
class Convergence:
    """Converged when `patience` epochs in a row each lower the loss by less than `delta` times the first loss."""

    delta: float = 0.01
    patience: int = 3
    max_epochs: int = 200


@dataclass(frozen=True)
class Utility:
    """The job's worth, by the time from its arrival to its end."""

    kind: UtilityKind
    value: float
    decay: float = 0.0
    target: Quantity | None = None
    points: Sequence[tuple[Quantity, float]] = ()


@dataclass(frozen=True)
class Dataset:
    """Data chunks, for engines that schedule chunks one by one."""

    chunks: int
    batches_per_chunk: int
    epochs: int
    batch_time: Quantity | None = None
    upload: str = ""
    chunk_size: Quantity | None = None


@dataclass(frozen=True)
class SpeedSample:
    """A speed measured before submission, in steps per second, with p parameter servers and w workers."""

    p: int
    w: int
    speed: float


@dataclass(frozen=True)
class Partition:
    """One partition of a model. `after` has the indexes of the partitions whose output it needs."""

    parameters: int = 0
    after: Sequence[int] = ()


@dataclass(frozen=True)
class Job:
    """A training job, with the names and units of the job file. Nested parts can be plain dicts.

    `workdir`, `checkpoints` and `env` are for programs that workers start (`Torchrun`).

    >>> Job(name="digits", worker={"gpu": 0.5, "memory": "1GiB", "max": 4}, server={"cpu": 1}).worker.max
    4
    """

    name: str
    worker: Role
    server: Role | None = None
    mode: Mode = "sync"
    model: str | None = None
    tenant: str = "default"
    queue: str = "default"
    priority: int = 0
    resize: Resize = "any"
    batch: int = 1
    examples: int = 0
    convergence: Convergence = field(default_factory=Convergence)
    separate_roles: bool = False
    model_size: Quantity | None = None
    utility: Utility | None = None
    deadline: Quantity | None = None
    accuracy: float | None = None
    urgency: int | None = None
    stop: Stop = "epochs"
    stop_under_load: Stop | None = None
    dataset: Dataset | None = None
    partitions: int | Sequence[Partition] = ()
    labels: Mapping[str, str] = field(default_factory=dict)
    time_limit: Quantity | None = None
    restart_cost: Quantity | None = None
    profile: Sequence[SpeedSample] = ()
    workdir: str | None = None
    checkpoints: str | None = None
    env: Mapping[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        def nest(key: str, kind: type[_T]) -> None:
            object.__setattr__(self, key, _nested(key, kind, getattr(self, key)))

        nest("worker", Role)
        nest("convergence", Convergence)
        for key, kind in (("server", Role), ("utility", Utility), ("dataset", Dataset)):
            if getattr(self, key) is not None:
                nest(key, kind)
        profile = tuple(_nested(f"profile[{at}]", SpeedSample, row) for at, row in enumerate(self.profile))
        object.__setattr__(self, "profile", profile)
        object.__setattr__(self, "partitions", _partitions(self.partitions))
        self._check()

    @classmethod
    def from_dict(cls, fields: Mapping[str, Any]) -> Job:
        """Makes a job from the table of a job file (`tomllib.load`)."""
        fields = dict(fields)
        epochs = fields.pop("epochs", None)
        if epochs is not None:
            if "convergence" in fields:
                raise JobError(f"epochs: {epochs} is a fixed number, so convergence has no use; leave one of them out")
            _at_least("epochs", epochs, 1)
            fields["convergence"] = {"delta": 0.0, "max_epochs": epochs}
        constraints = fields.pop("constraints", {})
        unknown = set(constraints) - {"labels"}
        if unknown:
            raise JobError(f"constraints.{min(unknown)}: unknown key; allowed is labels")
        if "labels" in constraints:
            fields["labels"] = constraints["labels"]
        elastic = fields.pop("elastic", None)
        if elastic == "fixed":
            fields["resize"] = "fixed"
        processes = fields.pop("nproc_per_node", None)
        if processes is not None:
            _at_least("nproc_per_node", processes, 1)
            processes = str(processes)
        own = {
            "launcher": fields.pop("launcher", None),
            "elastic": elastic if elastic != "fixed" else None,
            "nproc_per_node": processes,
        }
        told = {
            **{label: value for label, value in own.items() if value is not None},
            **_labels("topology", ("require", "prefer"), fields.pop("topology", {})),
            **_labels("parallel", ("tp", "pp", "ep"), fields.pop("parallel", {})),
        }
        for label in [label for label in told if label.startswith("parallel.")]:
            _at_least(label, told[label], 1)
            told[label] = str(told[label])
        if isinstance(fields.get("batch"), Mapping):
            fields["batch"], batches = _batch(fields["batch"])
            told.update(batches)
        worker = fields.get("worker")
        if isinstance(worker, Mapping) and "sizes" in worker:
            told["worker.sizes"] = _sizes(worker["sizes"])
            fields["worker"] = {key: value for key, value in worker.items() if key != "sizes"}
        if told:
            twice = told.keys() & fields.get("labels", {}).keys()
            if twice:
                raise JobError(f"{min(twice)}: stands in constraints.labels, too; leave one of them out")
            fields["labels"] = {**fields.get("labels", {}), **told}
        return _nested("", cls, fields)

    def _check(self) -> None:
        names = {"name": self.name, "model": self.model or self.name, "tenant": self.tenant, "queue": self.queue}
        for key, name in names.items():
            if not isinstance(name, str) or not _NAME.fullmatch(name):
                allowed = "1 to 128 letters, digits, '.', '_' or '-', not starting with '.' or '-'"
                raise JobError(f"{key}: {name!r} must be {allowed}")
        if self.name.isdecimal():
            raise JobError(f"name: {self.name!r} reads as a job's number; put a letter into it")
        for label in ("topology.require", "topology.prefer"):
            if label in self.labels:
                _one_of(label, self.labels[label], _LEVELS)
        for label, values in (("launcher", ("torchrun", "none")), ("elastic", ("in_place", "restart"))):
            if label in self.labels:
                _one_of(label, self.labels[label], values)
        _one_of("mode", self.mode, get_args(Mode))
        _one_of("resize", self.resize, get_args(Resize))
        _at_least("batch", self.batch, 1)
        _at_least("examples", self.examples, 0)
        if not 0 <= self.convergence.delta < 1:
            raise JobError(f"convergence.delta: {self.convergence.delta} must be from 0 up to 1")
        _at_least("convergence.patience", self.convergence.patience, 1)
        _at_least("convergence.max_epochs", self.convergence.max_epochs, 1)
        if self.mode == "allreduce" and self.server:
            raise JobError("server: an allreduce job has no parameter servers; leave it out or change the mode")
        if self.mode != "allreduce" and not self.server:
            raise JobError(
                f'server: is missing: a {self.mode} job needs parameter servers (mode = "allreduce" needs none)'
            )
        if self.separate_roles and not self.server:
            raise JobError("separate_roles: true needs parameter servers to keep apart; leave it out")
        self.worker.check("worker")
        if self.server:
            self.server.check("server")
        if self.accuracy is not None and not 0 <= self.accuracy <= 1:
            raise JobError(f"accuracy: {self.accuracy} must be from 0 to 1")
        _one_of("stop", self.stop, get_args(Stop))
        if self.stop_under_load is not None:
            _one_of("stop_under_load", self.stop_under_load, get_args(Stop))
        if self.partitions and self.resize != "fixed":
            raise JobError('partitions: a model that is cut into parts runs as requested; add resize = "fixed"')
        if self.utility:
            _one_of("utility.kind", self.utility.kind, get_args(UtilityKind))
        self._check_surroundings()
        self.message()  # reads every quantity

    def _check_surroundings(self) -> None:
        for key in ("workdir", "checkpoints"):
            path = getattr(self, key)
            inside = key == "checkpoints" and self.workdir is not None
            if path is not None and not (isinstance(path, str) and path and (inside or path.startswith("/"))):
                raise JobError(f"{key}: {path!r} must begin with /, and be there on every server")
        if not isinstance(self.env, Mapping):
            raise JobError(f"env: {self.env!r} must be a table of variables")
        for name, value in self.env.items():
            if not isinstance(name, str) or not _VARIABLE.fullmatch(name):
                allowed = "a variable's name has letters, digits and _, and doesn't start with a digit"
                raise JobError(f"env: {name!r}: {allowed}")
            if not isinstance(value, str) or "\0" in value:
                raise JobError(f"env.{name}: {value!r} must be a text")

    def _parts(self) -> Sequence[Partition]:
        # `__post_init__` has replaced a number by a tuple.
        return () if isinstance(self.partitions, int) else self.partitions

    def message(self) -> pb.Job:
        """The job as a protobuf message."""
        job = pb.Job(
            name=self.name,
            model=self.model or "",
            tenant=self.tenant,
            queue=self.queue,
            priority=self.priority,
            resize=_number(pb.Resize, "RESIZE", self.resize),
            mode=_number(pb.TrainingMode, "TRAINING_MODE", self.mode),
            batch=self.batch,
            examples=self.examples,
            convergence=pb.Convergence(**dataclasses.asdict(self.convergence)),
            worker=self.worker.message("worker"),
            separate_roles=self.separate_roles,
            labels=self.labels,
            accuracy=self.accuracy,
            urgency=self.urgency,
            stop=_number(pb.Stop, "STOP", self.stop),
            stop_under_load=_number(pb.Stop, "STOP", self.stop_under_load or self.stop),
            partitions=[pb.Partition(parameters=part.parameters, after=part.after) for part in self._parts()],
            profile=[pb.SpeedSample(servers=row.p, workers=row.w, speed=row.speed) for row in self.profile],
        )
        if self.server:
            job.server.CopyFrom(self.server.message("server"))
        for key in ("deadline", "time_limit", "restart_cost"):
            if (value := getattr(self, key)) is not None:
                setattr(job, f"{key}_ms", units.span(key, value))
        if self.model_size is not None:
            job.model_size_mib = units.size("model_size", self.model_size)
        if self.utility:
            job.utility.CopyFrom(_utility(self.utility))
        if self.dataset:
            job.dataset.CopyFrom(_dataset(self.dataset))
        return job


def _labels(key: str, known: Sequence[str], table: Any) -> dict[str, Any]:
    """The labels that say what a table of the job file says."""
    listed = ", ".join(known[:-1]) + " and " + known[-1]
    if not isinstance(table, Mapping):
        raise JobError(f"{key}: {table!r} must be a table with {listed.replace(' and ', ' or ')}")
    unknown = set(table) - set(known)
    if unknown:
        raise JobError(f"{key}.{min(unknown)}: unknown key; allowed are {listed}")
    return {f"{key}.{name}": value for name, value in table.items()}


def _batch(table: Mapping[str, Any]) -> tuple[int, dict[str, str]]:
    """The submitted batch, and the labels of the range that the scheduler may choose from."""
    known = ("size", "min", "max", "local")
    for name in _labels("batch", known, table):
        _at_least(name, table[name.removeprefix("batch.")], 1)
    # A job starts with the smallest batch, if the file doesn't say another.
    size = table.get("size", table.get("min"))
    if size is None:
        raise JobError("batch.size: is missing: the number of examples with which the job starts")
    return size, {f"batch.{name}": str(value) for name, value in table.items() if name != "size"}


def _sizes(sizes: Any) -> str:
    """The label of the numbers of workers with which a job can run. The daemon checks the text."""
    if isinstance(sizes, str):
        return sizes
    listed = [sizes] if _is_count(sizes) else sizes
    if not isinstance(listed, Sequence) or not listed or not all(map(_is_count, listed)):
        allowed = "must be a list such as [1, 2, 4], 'multiples of 4' or 'powers of 2'"
        raise JobError(f"worker.sizes: {sizes!r} {allowed}")
    return ",".join(map(str, listed))


def _utility(utility: Utility) -> pb.Utility:
    return pb.Utility(
        kind=_number(pb.UtilityKind, "UTILITY_KIND", utility.kind),
        value=utility.value,
        decay=utility.decay,
        target_ms=0 if utility.target is None else units.span("utility.target", utility.target),
        points=[pb.UtilityPoint(elapsed_ms=units.span("utility.points", at), worth=w) for at, w in utility.points],
    )


def _dataset(data: Dataset) -> pb.Dataset:
    message = pb.Dataset(
        chunks=data.chunks, batches_per_chunk=data.batches_per_chunk, epochs=data.epochs, upload=data.upload
    )
    if data.batch_time is not None:
        message.batch_time_ms = units.span("dataset.batch_time", data.batch_time)
    if data.chunk_size is not None:
        message.chunk_size_mib = units.size("dataset.chunk_size", data.chunk_size)
    return message


def _partitions(given: object) -> tuple[Partition, ...]:
    """Makes partitions from a list. A number makes a chain of as many equal partitions."""
    if _is_count(given):
        return tuple(Partition(after=(at - 1,) if at else ()) for at in range(given))  # type: ignore[call-overload]
    if isinstance(given, str) or not isinstance(given, Sequence):
        raise JobError(f"partitions: {given!r} must be how many, or a list of parts")
    return tuple(_nested(f"partitions[{at}]", Partition, part) for at, part in enumerate(given))


def _nested(key: str, kind: type[_T], value: object) -> _T:
    if isinstance(value, kind):
        return value
    if not isinstance(value, Mapping):
        raise JobError(f"{key}: {value!r} must be a {kind.__name__} or a table of its fields")
    fields = {spec.name: spec for spec in dataclasses.fields(kind)}  # type: ignore[arg-type]
    prefix = f"{key}." if key else ""
    given = dict(value)
    if kind is Role:
        # In the job file, types of GPU are keys like other resources.
        typed = {name: given.pop(name) for name in list(given) if str(name).startswith("gpu:")}
        if typed:
            given["resources"] = {**given.get("resources", {}), **typed}
    for name in given:
        if name not in fields:
            raise JobError(f"{prefix}{name}: unknown key; allowed are {', '.join(fields)}")
    for name, spec in fields.items():
        required = spec.default is dataclasses.MISSING and spec.default_factory is dataclasses.MISSING
        if required and name not in given:
            raise JobError(f"{prefix}{name}: is missing")
    return kind(**given)


def _number(enum: Any, prefix: str, value: str) -> Any:
    return enum.Value(f"{prefix}_{value.upper()}")


def _is_count(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 0


def _one_of(key: str, value: object, allowed: tuple[str, ...]) -> None:
    if value not in allowed:
        raise JobError(f"{key}: {value!r} must be one of {', '.join(allowed)}")


def _at_least(key: str, value: object, least: int) -> None:
    if not _is_count(value) or value < least:  # type: ignore[operator]
        raise JobError(f"{key}: {value!r} must be a whole number of at least {least}")

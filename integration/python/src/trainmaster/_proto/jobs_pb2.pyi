from . import job_pb2 as _job_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from typing import ClassVar as _ClassVar, Iterable as _Iterable, Mapping as _Mapping, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class SubmitRequest(_message.Message):
    __slots__ = ("job", "external")
    JOB_FIELD_NUMBER: _ClassVar[int]
    EXTERNAL_FIELD_NUMBER: _ClassVar[int]
    job: _job_pb2.Job
    external: _job_pb2.ExternalId
    def __init__(self, job: _Optional[_Union[_job_pb2.Job, _Mapping]] = ..., external: _Optional[_Union[_job_pb2.ExternalId, _Mapping]] = ...) -> None: ...

class SubmitReply(_message.Message):
    __slots__ = ("job", "token", "next_decision_ms", "notes")
    JOB_FIELD_NUMBER: _ClassVar[int]
    TOKEN_FIELD_NUMBER: _ClassVar[int]
    NEXT_DECISION_MS_FIELD_NUMBER: _ClassVar[int]
    NOTES_FIELD_NUMBER: _ClassVar[int]
    job: int
    token: str
    next_decision_ms: int
    notes: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, job: _Optional[int] = ..., token: _Optional[str] = ..., next_decision_ms: _Optional[int] = ..., notes: _Optional[_Iterable[str]] = ...) -> None: ...

class CancelRequest(_message.Message):
    __slots__ = ("job",)
    JOB_FIELD_NUMBER: _ClassVar[int]
    job: str
    def __init__(self, job: _Optional[str] = ...) -> None: ...

class CancelReply(_message.Message):
    __slots__ = ("not_written",)
    NOT_WRITTEN_FIELD_NUMBER: _ClassVar[int]
    not_written: str
    def __init__(self, not_written: _Optional[str] = ...) -> None: ...

class PauseRequest(_message.Message):
    __slots__ = ("job", "resume")
    JOB_FIELD_NUMBER: _ClassVar[int]
    RESUME_FIELD_NUMBER: _ClassVar[int]
    job: str
    resume: bool
    def __init__(self, job: _Optional[str] = ..., resume: bool = ...) -> None: ...

class PauseReply(_message.Message):
    __slots__ = ("not_written",)
    NOT_WRITTEN_FIELD_NUMBER: _ClassVar[int]
    not_written: str
    def __init__(self, not_written: _Optional[str] = ...) -> None: ...

class ListRequest(_message.Message):
    __slots__ = ("all", "specs", "jobs")
    ALL_FIELD_NUMBER: _ClassVar[int]
    SPECS_FIELD_NUMBER: _ClassVar[int]
    JOBS_FIELD_NUMBER: _ClassVar[int]
    all: bool
    specs: bool
    jobs: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, all: bool = ..., specs: bool = ..., jobs: _Optional[_Iterable[str]] = ...) -> None: ...

class ListReply(_message.Message):
    __slots__ = ("jobs", "decision", "engine", "mode", "next_decision_ms", "fallback")
    JOBS_FIELD_NUMBER: _ClassVar[int]
    DECISION_FIELD_NUMBER: _ClassVar[int]
    ENGINE_FIELD_NUMBER: _ClassVar[int]
    MODE_FIELD_NUMBER: _ClassVar[int]
    NEXT_DECISION_MS_FIELD_NUMBER: _ClassVar[int]
    FALLBACK_FIELD_NUMBER: _ClassVar[int]
    jobs: _containers.RepeatedCompositeFieldContainer[JobStatus]
    decision: int
    engine: str
    mode: str
    next_decision_ms: int
    fallback: str
    def __init__(self, jobs: _Optional[_Iterable[_Union[JobStatus, _Mapping]]] = ..., decision: _Optional[int] = ..., engine: _Optional[str] = ..., mode: _Optional[str] = ..., next_decision_ms: _Optional[int] = ..., fallback: _Optional[str] = ...) -> None: ...

class JobStatus(_message.Message):
    __slots__ = ("job", "name", "tenant", "queue", "state", "reason", "workers", "servers", "step", "epoch", "loss", "predicted_epochs", "predicted_low", "predicted_high", "remaining_ms", "submitted_ms", "started_ms", "ended_ms", "incarnation", "revision", "speed", "slots", "rescales", "restart_ms", "max_epochs", "predicted_speed", "external", "spec", "held", "failures", "failed_ms", "priority")
    JOB_FIELD_NUMBER: _ClassVar[int]
    NAME_FIELD_NUMBER: _ClassVar[int]
    TENANT_FIELD_NUMBER: _ClassVar[int]
    QUEUE_FIELD_NUMBER: _ClassVar[int]
    STATE_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    WORKERS_FIELD_NUMBER: _ClassVar[int]
    SERVERS_FIELD_NUMBER: _ClassVar[int]
    STEP_FIELD_NUMBER: _ClassVar[int]
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    LOSS_FIELD_NUMBER: _ClassVar[int]
    PREDICTED_EPOCHS_FIELD_NUMBER: _ClassVar[int]
    PREDICTED_LOW_FIELD_NUMBER: _ClassVar[int]
    PREDICTED_HIGH_FIELD_NUMBER: _ClassVar[int]
    REMAINING_MS_FIELD_NUMBER: _ClassVar[int]
    SUBMITTED_MS_FIELD_NUMBER: _ClassVar[int]
    STARTED_MS_FIELD_NUMBER: _ClassVar[int]
    ENDED_MS_FIELD_NUMBER: _ClassVar[int]
    INCARNATION_FIELD_NUMBER: _ClassVar[int]
    REVISION_FIELD_NUMBER: _ClassVar[int]
    SPEED_FIELD_NUMBER: _ClassVar[int]
    SLOTS_FIELD_NUMBER: _ClassVar[int]
    RESCALES_FIELD_NUMBER: _ClassVar[int]
    RESTART_MS_FIELD_NUMBER: _ClassVar[int]
    MAX_EPOCHS_FIELD_NUMBER: _ClassVar[int]
    PREDICTED_SPEED_FIELD_NUMBER: _ClassVar[int]
    EXTERNAL_FIELD_NUMBER: _ClassVar[int]
    SPEC_FIELD_NUMBER: _ClassVar[int]
    HELD_FIELD_NUMBER: _ClassVar[int]
    FAILURES_FIELD_NUMBER: _ClassVar[int]
    FAILED_MS_FIELD_NUMBER: _ClassVar[int]
    PRIORITY_FIELD_NUMBER: _ClassVar[int]
    job: int
    name: str
    tenant: str
    queue: str
    state: str
    reason: str
    workers: int
    servers: int
    step: int
    epoch: int
    loss: float
    predicted_epochs: float
    predicted_low: float
    predicted_high: float
    remaining_ms: int
    submitted_ms: int
    started_ms: int
    ended_ms: int
    incarnation: int
    revision: int
    speed: float
    slots: _containers.RepeatedCompositeFieldContainer[_job_pb2.Slot]
    rescales: int
    restart_ms: int
    max_epochs: int
    predicted_speed: float
    external: _job_pb2.ExternalId
    spec: _job_pb2.Job
    held: bool
    failures: int
    failed_ms: int
    priority: int
    def __init__(self, job: _Optional[int] = ..., name: _Optional[str] = ..., tenant: _Optional[str] = ..., queue: _Optional[str] = ..., state: _Optional[str] = ..., reason: _Optional[str] = ..., workers: _Optional[int] = ..., servers: _Optional[int] = ..., step: _Optional[int] = ..., epoch: _Optional[int] = ..., loss: _Optional[float] = ..., predicted_epochs: _Optional[float] = ..., predicted_low: _Optional[float] = ..., predicted_high: _Optional[float] = ..., remaining_ms: _Optional[int] = ..., submitted_ms: _Optional[int] = ..., started_ms: _Optional[int] = ..., ended_ms: _Optional[int] = ..., incarnation: _Optional[int] = ..., revision: _Optional[int] = ..., speed: _Optional[float] = ..., slots: _Optional[_Iterable[_Union[_job_pb2.Slot, _Mapping]]] = ..., rescales: _Optional[int] = ..., restart_ms: _Optional[int] = ..., max_epochs: _Optional[int] = ..., predicted_speed: _Optional[float] = ..., external: _Optional[_Union[_job_pb2.ExternalId, _Mapping]] = ..., spec: _Optional[_Union[_job_pb2.Job, _Mapping]] = ..., held: bool = ..., failures: _Optional[int] = ..., failed_ms: _Optional[int] = ..., priority: _Optional[int] = ...) -> None: ...

class ExplainRequest(_message.Message):
    __slots__ = ("job",)
    JOB_FIELD_NUMBER: _ClassVar[int]
    job: str
    def __init__(self, job: _Optional[str] = ...) -> None: ...

class ExplainReply(_message.Message):
    __slots__ = ("lines", "json")
    LINES_FIELD_NUMBER: _ClassVar[int]
    JSON_FIELD_NUMBER: _ClassVar[int]
    lines: _containers.RepeatedScalarFieldContainer[str]
    json: str
    def __init__(self, lines: _Optional[_Iterable[str]] = ..., json: _Optional[str] = ...) -> None: ...

class LogsRequest(_message.Message):
    __slots__ = ("job", "follow", "tail", "after")
    class AfterEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: int
        def __init__(self, key: _Optional[str] = ..., value: _Optional[int] = ...) -> None: ...
    JOB_FIELD_NUMBER: _ClassVar[int]
    FOLLOW_FIELD_NUMBER: _ClassVar[int]
    TAIL_FIELD_NUMBER: _ClassVar[int]
    AFTER_FIELD_NUMBER: _ClassVar[int]
    job: str
    follow: bool
    tail: int
    after: _containers.ScalarMap[str, int]
    def __init__(self, job: _Optional[str] = ..., follow: bool = ..., tail: _Optional[int] = ..., after: _Optional[_Mapping[str, int]] = ...) -> None: ...

class LogsReply(_message.Message):
    __slots__ = ("log", "data", "end", "logs", "job")
    LOG_FIELD_NUMBER: _ClassVar[int]
    DATA_FIELD_NUMBER: _ClassVar[int]
    END_FIELD_NUMBER: _ClassVar[int]
    LOGS_FIELD_NUMBER: _ClassVar[int]
    JOB_FIELD_NUMBER: _ClassVar[int]
    log: str
    data: bytes
    end: int
    logs: int
    job: int
    def __init__(self, log: _Optional[str] = ..., data: _Optional[bytes] = ..., end: _Optional[int] = ..., logs: _Optional[int] = ..., job: _Optional[int] = ...) -> None: ...

class ServersRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class ServersReply(_message.Message):
    __slots__ = ("servers",)
    SERVERS_FIELD_NUMBER: _ClassVar[int]
    servers: _containers.RepeatedCompositeFieldContainer[ServerStatus]
    def __init__(self, servers: _Optional[_Iterable[_Union[ServerStatus, _Mapping]]] = ...) -> None: ...

class ServerStatus(_message.Message):
    __slots__ = ("name", "manager", "draining", "capacity", "foreign", "used", "free", "labels", "jobs", "other_slots")
    class CapacityEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: int
        def __init__(self, key: _Optional[str] = ..., value: _Optional[int] = ...) -> None: ...
    class ForeignEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: int
        def __init__(self, key: _Optional[str] = ..., value: _Optional[int] = ...) -> None: ...
    class UsedEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: int
        def __init__(self, key: _Optional[str] = ..., value: _Optional[int] = ...) -> None: ...
    class FreeEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: int
        def __init__(self, key: _Optional[str] = ..., value: _Optional[int] = ...) -> None: ...
    class LabelsEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: str
        def __init__(self, key: _Optional[str] = ..., value: _Optional[str] = ...) -> None: ...
    NAME_FIELD_NUMBER: _ClassVar[int]
    MANAGER_FIELD_NUMBER: _ClassVar[int]
    DRAINING_FIELD_NUMBER: _ClassVar[int]
    CAPACITY_FIELD_NUMBER: _ClassVar[int]
    FOREIGN_FIELD_NUMBER: _ClassVar[int]
    USED_FIELD_NUMBER: _ClassVar[int]
    FREE_FIELD_NUMBER: _ClassVar[int]
    LABELS_FIELD_NUMBER: _ClassVar[int]
    JOBS_FIELD_NUMBER: _ClassVar[int]
    OTHER_SLOTS_FIELD_NUMBER: _ClassVar[int]
    name: str
    manager: str
    draining: bool
    capacity: _containers.ScalarMap[str, int]
    foreign: _containers.ScalarMap[str, int]
    used: _containers.ScalarMap[str, int]
    free: _containers.ScalarMap[str, int]
    labels: _containers.ScalarMap[str, str]
    jobs: _containers.RepeatedCompositeFieldContainer[ServerJob]
    other_slots: int
    def __init__(self, name: _Optional[str] = ..., manager: _Optional[str] = ..., draining: bool = ..., capacity: _Optional[_Mapping[str, int]] = ..., foreign: _Optional[_Mapping[str, int]] = ..., used: _Optional[_Mapping[str, int]] = ..., free: _Optional[_Mapping[str, int]] = ..., labels: _Optional[_Mapping[str, str]] = ..., jobs: _Optional[_Iterable[_Union[ServerJob, _Mapping]]] = ..., other_slots: _Optional[int] = ...) -> None: ...

class ServerJob(_message.Message):
    __slots__ = ("job", "name", "workers", "servers")
    JOB_FIELD_NUMBER: _ClassVar[int]
    NAME_FIELD_NUMBER: _ClassVar[int]
    WORKERS_FIELD_NUMBER: _ClassVar[int]
    SERVERS_FIELD_NUMBER: _ClassVar[int]
    job: int
    name: str
    workers: int
    servers: int
    def __init__(self, job: _Optional[int] = ..., name: _Optional[str] = ..., workers: _Optional[int] = ..., servers: _Optional[int] = ...) -> None: ...

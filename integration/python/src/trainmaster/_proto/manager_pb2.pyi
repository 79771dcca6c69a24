from . import job_pb2 as _job_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from typing import ClassVar as _ClassVar, Iterable as _Iterable, Mapping as _Mapping, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class ObservedPhase(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    OBSERVED_PHASE_STARTING: _ClassVar[ObservedPhase]
    OBSERVED_PHASE_RUNNING: _ClassVar[ObservedPhase]
    OBSERVED_PHASE_STOPPING: _ClassVar[ObservedPhase]
    OBSERVED_PHASE_STOPPED: _ClassVar[ObservedPhase]
    OBSERVED_PHASE_COMPLETED: _ClassVar[ObservedPhase]
    OBSERVED_PHASE_FAILED: _ClassVar[ObservedPhase]

class EnactedResult(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    ENACTED_RESULT_ACCEPTED: _ClassVar[EnactedResult]
    ENACTED_RESULT_PARTIAL: _ClassVar[EnactedResult]
    ENACTED_RESULT_REFUSED: _ClassVar[EnactedResult]

class Action(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    ACTION_RUN: _ClassVar[Action]
    ACTION_WAIT: _ClassVar[Action]
    ACTION_STOP: _ClassVar[Action]
    ACTION_REJECT: _ClassVar[Action]
    ACTION_RELEASE: _ClassVar[Action]
OBSERVED_PHASE_STARTING: ObservedPhase
OBSERVED_PHASE_RUNNING: ObservedPhase
OBSERVED_PHASE_STOPPING: ObservedPhase
OBSERVED_PHASE_STOPPED: ObservedPhase
OBSERVED_PHASE_COMPLETED: ObservedPhase
OBSERVED_PHASE_FAILED: ObservedPhase
ENACTED_RESULT_ACCEPTED: EnactedResult
ENACTED_RESULT_PARTIAL: EnactedResult
ENACTED_RESULT_REFUSED: EnactedResult
ACTION_RUN: Action
ACTION_WAIT: Action
ACTION_STOP: Action
ACTION_REJECT: Action
ACTION_RELEASE: Action

class Observation(_message.Message):
    __slots__ = ("manager", "snapshot", "delta", "enacted", "utilisation")
    MANAGER_FIELD_NUMBER: _ClassVar[int]
    SNAPSHOT_FIELD_NUMBER: _ClassVar[int]
    DELTA_FIELD_NUMBER: _ClassVar[int]
    ENACTED_FIELD_NUMBER: _ClassVar[int]
    UTILISATION_FIELD_NUMBER: _ClassVar[int]
    manager: str
    snapshot: Snapshot
    delta: Delta
    enacted: Enacted
    utilisation: Utilisation
    def __init__(self, manager: _Optional[str] = ..., snapshot: _Optional[_Union[Snapshot, _Mapping]] = ..., delta: _Optional[_Union[Delta, _Mapping]] = ..., enacted: _Optional[_Union[Enacted, _Mapping]] = ..., utilisation: _Optional[_Union[Utilisation, _Mapping]] = ...) -> None: ...

class Snapshot(_message.Message):
    __slots__ = ("servers", "jobs", "owns_queue", "takes_submissions")
    SERVERS_FIELD_NUMBER: _ClassVar[int]
    JOBS_FIELD_NUMBER: _ClassVar[int]
    OWNS_QUEUE_FIELD_NUMBER: _ClassVar[int]
    TAKES_SUBMISSIONS_FIELD_NUMBER: _ClassVar[int]
    servers: _containers.RepeatedCompositeFieldContainer[Server]
    jobs: _containers.RepeatedCompositeFieldContainer[ObservedJob]
    owns_queue: bool
    takes_submissions: bool
    def __init__(self, servers: _Optional[_Iterable[_Union[Server, _Mapping]]] = ..., jobs: _Optional[_Iterable[_Union[ObservedJob, _Mapping]]] = ..., owns_queue: bool = ..., takes_submissions: bool = ...) -> None: ...

class Delta(_message.Message):
    __slots__ = ("servers", "servers_left", "jobs")
    SERVERS_FIELD_NUMBER: _ClassVar[int]
    SERVERS_LEFT_FIELD_NUMBER: _ClassVar[int]
    JOBS_FIELD_NUMBER: _ClassVar[int]
    servers: _containers.RepeatedCompositeFieldContainer[Server]
    servers_left: _containers.RepeatedScalarFieldContainer[str]
    jobs: _containers.RepeatedCompositeFieldContainer[ObservedJob]
    def __init__(self, servers: _Optional[_Iterable[_Union[Server, _Mapping]]] = ..., servers_left: _Optional[_Iterable[str]] = ..., jobs: _Optional[_Iterable[_Union[ObservedJob, _Mapping]]] = ...) -> None: ...

class Server(_message.Message):
    __slots__ = ("name", "capacity", "devices", "labels", "draining", "foreign", "foreign_devices")
    class CapacityEntry(_message.Message):
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
    class ForeignEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: int
        def __init__(self, key: _Optional[str] = ..., value: _Optional[int] = ...) -> None: ...
    NAME_FIELD_NUMBER: _ClassVar[int]
    CAPACITY_FIELD_NUMBER: _ClassVar[int]
    DEVICES_FIELD_NUMBER: _ClassVar[int]
    LABELS_FIELD_NUMBER: _ClassVar[int]
    DRAINING_FIELD_NUMBER: _ClassVar[int]
    FOREIGN_FIELD_NUMBER: _ClassVar[int]
    FOREIGN_DEVICES_FIELD_NUMBER: _ClassVar[int]
    name: str
    capacity: _containers.ScalarMap[str, int]
    devices: _containers.RepeatedCompositeFieldContainer[Device]
    labels: _containers.ScalarMap[str, str]
    draining: bool
    foreign: _containers.ScalarMap[str, int]
    foreign_devices: _containers.RepeatedCompositeFieldContainer[_job_pb2.DeviceShare]
    def __init__(self, name: _Optional[str] = ..., capacity: _Optional[_Mapping[str, int]] = ..., devices: _Optional[_Iterable[_Union[Device, _Mapping]]] = ..., labels: _Optional[_Mapping[str, str]] = ..., draining: bool = ..., foreign: _Optional[_Mapping[str, int]] = ..., foreign_devices: _Optional[_Iterable[_Union[_job_pb2.DeviceShare, _Mapping]]] = ...) -> None: ...

class Utilisation(_message.Message):
    __slots__ = ("servers",)
    SERVERS_FIELD_NUMBER: _ClassVar[int]
    servers: _containers.RepeatedCompositeFieldContainer[ServerUse]
    def __init__(self, servers: _Optional[_Iterable[_Union[ServerUse, _Mapping]]] = ...) -> None: ...

class ServerUse(_message.Message):
    __slots__ = ("server", "used", "devices", "slots")
    class UsedEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: int
        def __init__(self, key: _Optional[str] = ..., value: _Optional[int] = ...) -> None: ...
    SERVER_FIELD_NUMBER: _ClassVar[int]
    USED_FIELD_NUMBER: _ClassVar[int]
    DEVICES_FIELD_NUMBER: _ClassVar[int]
    SLOTS_FIELD_NUMBER: _ClassVar[int]
    server: str
    used: _containers.ScalarMap[str, int]
    devices: _containers.RepeatedCompositeFieldContainer[_job_pb2.DeviceShare]
    slots: _containers.RepeatedCompositeFieldContainer[SlotUse]
    def __init__(self, server: _Optional[str] = ..., used: _Optional[_Mapping[str, int]] = ..., devices: _Optional[_Iterable[_Union[_job_pb2.DeviceShare, _Mapping]]] = ..., slots: _Optional[_Iterable[_Union[SlotUse, _Mapping]]] = ...) -> None: ...

class SlotUse(_message.Message):
    __slots__ = ("job", "role", "index", "used", "devices")
    class UsedEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: int
        def __init__(self, key: _Optional[str] = ..., value: _Optional[int] = ...) -> None: ...
    JOB_FIELD_NUMBER: _ClassVar[int]
    ROLE_FIELD_NUMBER: _ClassVar[int]
    INDEX_FIELD_NUMBER: _ClassVar[int]
    USED_FIELD_NUMBER: _ClassVar[int]
    DEVICES_FIELD_NUMBER: _ClassVar[int]
    job: int
    role: _job_pb2.SlotRole
    index: int
    used: _containers.ScalarMap[str, int]
    devices: _containers.RepeatedCompositeFieldContainer[_job_pb2.DeviceShare]
    def __init__(self, job: _Optional[int] = ..., role: _Optional[_Union[_job_pb2.SlotRole, str]] = ..., index: _Optional[int] = ..., used: _Optional[_Mapping[str, int]] = ..., devices: _Optional[_Iterable[_Union[_job_pb2.DeviceShare, _Mapping]]] = ...) -> None: ...

class Device(_message.Message):
    __slots__ = ("kind",)
    KIND_FIELD_NUMBER: _ClassVar[int]
    kind: str
    def __init__(self, kind: _Optional[str] = ...) -> None: ...

class ObservedJob(_message.Message):
    __slots__ = ("job", "incarnation", "slots", "phase", "message")
    JOB_FIELD_NUMBER: _ClassVar[int]
    INCARNATION_FIELD_NUMBER: _ClassVar[int]
    SLOTS_FIELD_NUMBER: _ClassVar[int]
    PHASE_FIELD_NUMBER: _ClassVar[int]
    MESSAGE_FIELD_NUMBER: _ClassVar[int]
    job: int
    incarnation: int
    slots: _containers.RepeatedCompositeFieldContainer[_job_pb2.Slot]
    phase: ObservedPhase
    message: str
    def __init__(self, job: _Optional[int] = ..., incarnation: _Optional[int] = ..., slots: _Optional[_Iterable[_Union[_job_pb2.Slot, _Mapping]]] = ..., phase: _Optional[_Union[ObservedPhase, str]] = ..., message: _Optional[str] = ...) -> None: ...

class Enacted(_message.Message):
    __slots__ = ("decision", "job", "result", "cause", "retry_after_ms")
    DECISION_FIELD_NUMBER: _ClassVar[int]
    JOB_FIELD_NUMBER: _ClassVar[int]
    RESULT_FIELD_NUMBER: _ClassVar[int]
    CAUSE_FIELD_NUMBER: _ClassVar[int]
    RETRY_AFTER_MS_FIELD_NUMBER: _ClassVar[int]
    decision: int
    job: int
    result: EnactedResult
    cause: str
    retry_after_ms: int
    def __init__(self, decision: _Optional[int] = ..., job: _Optional[int] = ..., result: _Optional[_Union[EnactedResult, str]] = ..., cause: _Optional[str] = ..., retry_after_ms: _Optional[int] = ...) -> None: ...

class Plan(_message.Message):
    __slots__ = ("term", "decision", "ttl_ms", "jobs", "full")
    TERM_FIELD_NUMBER: _ClassVar[int]
    DECISION_FIELD_NUMBER: _ClassVar[int]
    TTL_MS_FIELD_NUMBER: _ClassVar[int]
    JOBS_FIELD_NUMBER: _ClassVar[int]
    FULL_FIELD_NUMBER: _ClassVar[int]
    term: int
    decision: int
    ttl_ms: int
    jobs: _containers.RepeatedCompositeFieldContainer[JobPlan]
    full: bool
    def __init__(self, term: _Optional[int] = ..., decision: _Optional[int] = ..., ttl_ms: _Optional[int] = ..., jobs: _Optional[_Iterable[_Union[JobPlan, _Mapping]]] = ..., full: bool = ...) -> None: ...

class JobPlan(_message.Message):
    __slots__ = ("job", "name", "action", "incarnation", "revision", "slots", "reason", "worker_command", "server_command", "token", "grace_ms", "environment", "work", "external", "ended", "tenant", "reason_kind", "worker_demand", "server_demand", "workers", "servers")
    class EnvironmentEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: str
        def __init__(self, key: _Optional[str] = ..., value: _Optional[str] = ...) -> None: ...
    class WorkerDemandEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: int
        def __init__(self, key: _Optional[str] = ..., value: _Optional[int] = ...) -> None: ...
    class ServerDemandEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: int
        def __init__(self, key: _Optional[str] = ..., value: _Optional[int] = ...) -> None: ...
    JOB_FIELD_NUMBER: _ClassVar[int]
    NAME_FIELD_NUMBER: _ClassVar[int]
    ACTION_FIELD_NUMBER: _ClassVar[int]
    INCARNATION_FIELD_NUMBER: _ClassVar[int]
    REVISION_FIELD_NUMBER: _ClassVar[int]
    SLOTS_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    WORKER_COMMAND_FIELD_NUMBER: _ClassVar[int]
    SERVER_COMMAND_FIELD_NUMBER: _ClassVar[int]
    TOKEN_FIELD_NUMBER: _ClassVar[int]
    GRACE_MS_FIELD_NUMBER: _ClassVar[int]
    ENVIRONMENT_FIELD_NUMBER: _ClassVar[int]
    WORK_FIELD_NUMBER: _ClassVar[int]
    EXTERNAL_FIELD_NUMBER: _ClassVar[int]
    ENDED_FIELD_NUMBER: _ClassVar[int]
    TENANT_FIELD_NUMBER: _ClassVar[int]
    REASON_KIND_FIELD_NUMBER: _ClassVar[int]
    WORKER_DEMAND_FIELD_NUMBER: _ClassVar[int]
    SERVER_DEMAND_FIELD_NUMBER: _ClassVar[int]
    WORKERS_FIELD_NUMBER: _ClassVar[int]
    SERVERS_FIELD_NUMBER: _ClassVar[int]
    job: int
    name: str
    action: Action
    incarnation: int
    revision: int
    slots: _containers.RepeatedCompositeFieldContainer[_job_pb2.Slot]
    reason: str
    worker_command: str
    server_command: str
    token: str
    grace_ms: int
    environment: _containers.ScalarMap[str, str]
    work: _containers.RepeatedCompositeFieldContainer[_job_pb2.Work]
    external: _job_pb2.ExternalId
    ended: str
    tenant: str
    reason_kind: str
    worker_demand: _containers.ScalarMap[str, int]
    server_demand: _containers.ScalarMap[str, int]
    workers: int
    servers: int
    def __init__(self, job: _Optional[int] = ..., name: _Optional[str] = ..., action: _Optional[_Union[Action, str]] = ..., incarnation: _Optional[int] = ..., revision: _Optional[int] = ..., slots: _Optional[_Iterable[_Union[_job_pb2.Slot, _Mapping]]] = ..., reason: _Optional[str] = ..., worker_command: _Optional[str] = ..., server_command: _Optional[str] = ..., token: _Optional[str] = ..., grace_ms: _Optional[int] = ..., environment: _Optional[_Mapping[str, str]] = ..., work: _Optional[_Iterable[_Union[_job_pb2.Work, _Mapping]]] = ..., external: _Optional[_Union[_job_pb2.ExternalId, _Mapping]] = ..., ended: _Optional[str] = ..., tenant: _Optional[str] = ..., reason_kind: _Optional[str] = ..., worker_demand: _Optional[_Mapping[str, int]] = ..., server_demand: _Optional[_Mapping[str, int]] = ..., workers: _Optional[int] = ..., servers: _Optional[int] = ...) -> None: ...

class AdmitRequest(_message.Message):
    __slots__ = ("job",)
    JOB_FIELD_NUMBER: _ClassVar[int]
    job: _job_pb2.Job
    def __init__(self, job: _Optional[_Union[_job_pb2.Job, _Mapping]] = ...) -> None: ...

class AdmitReply(_message.Message):
    __slots__ = ("admitted", "reason")
    ADMITTED_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    admitted: bool
    reason: str
    def __init__(self, admitted: bool = ..., reason: _Optional[str] = ...) -> None: ...

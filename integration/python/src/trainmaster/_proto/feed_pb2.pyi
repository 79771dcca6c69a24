from . import job_pb2 as _job_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from typing import ClassVar as _ClassVar, Iterable as _Iterable, Mapping as _Mapping, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class AssignmentPhase(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    ASSIGNMENT_PHASE_RUN: _ClassVar[AssignmentPhase]
    ASSIGNMENT_PHASE_STOP: _ClassVar[AssignmentPhase]
ASSIGNMENT_PHASE_RUN: AssignmentPhase
ASSIGNMENT_PHASE_STOP: AssignmentPhase

class WatchRequest(_message.Message):
    __slots__ = ("job", "incarnation", "role", "index", "address")
    JOB_FIELD_NUMBER: _ClassVar[int]
    INCARNATION_FIELD_NUMBER: _ClassVar[int]
    ROLE_FIELD_NUMBER: _ClassVar[int]
    INDEX_FIELD_NUMBER: _ClassVar[int]
    ADDRESS_FIELD_NUMBER: _ClassVar[int]
    job: str
    incarnation: int
    role: _job_pb2.SlotRole
    index: int
    address: str
    def __init__(self, job: _Optional[str] = ..., incarnation: _Optional[int] = ..., role: _Optional[_Union[_job_pb2.SlotRole, str]] = ..., index: _Optional[int] = ..., address: _Optional[str] = ...) -> None: ...

class Assignment(_message.Message):
    __slots__ = ("job", "incarnation", "revision", "peers", "phase", "grace_ms", "last_seq", "work", "batch")
    JOB_FIELD_NUMBER: _ClassVar[int]
    INCARNATION_FIELD_NUMBER: _ClassVar[int]
    REVISION_FIELD_NUMBER: _ClassVar[int]
    PEERS_FIELD_NUMBER: _ClassVar[int]
    PHASE_FIELD_NUMBER: _ClassVar[int]
    GRACE_MS_FIELD_NUMBER: _ClassVar[int]
    LAST_SEQ_FIELD_NUMBER: _ClassVar[int]
    WORK_FIELD_NUMBER: _ClassVar[int]
    BATCH_FIELD_NUMBER: _ClassVar[int]
    job: int
    incarnation: int
    revision: int
    peers: _containers.RepeatedCompositeFieldContainer[Peer]
    phase: AssignmentPhase
    grace_ms: int
    last_seq: int
    work: _containers.RepeatedCompositeFieldContainer[_job_pb2.Work]
    batch: Batch
    def __init__(self, job: _Optional[int] = ..., incarnation: _Optional[int] = ..., revision: _Optional[int] = ..., peers: _Optional[_Iterable[_Union[Peer, _Mapping]]] = ..., phase: _Optional[_Union[AssignmentPhase, str]] = ..., grace_ms: _Optional[int] = ..., last_seq: _Optional[int] = ..., work: _Optional[_Iterable[_Union[_job_pb2.Work, _Mapping]]] = ..., batch: _Optional[_Union[Batch, _Mapping]] = ...) -> None: ...

class Batch(_message.Message):
    __slots__ = ("size", "local", "passes", "submitted")
    SIZE_FIELD_NUMBER: _ClassVar[int]
    LOCAL_FIELD_NUMBER: _ClassVar[int]
    PASSES_FIELD_NUMBER: _ClassVar[int]
    SUBMITTED_FIELD_NUMBER: _ClassVar[int]
    size: int
    local: int
    passes: int
    submitted: int
    def __init__(self, size: _Optional[int] = ..., local: _Optional[int] = ..., passes: _Optional[int] = ..., submitted: _Optional[int] = ...) -> None: ...

class Peer(_message.Message):
    __slots__ = ("slot", "address")
    SLOT_FIELD_NUMBER: _ClassVar[int]
    ADDRESS_FIELD_NUMBER: _ClassVar[int]
    slot: _job_pb2.Slot
    address: str
    def __init__(self, slot: _Optional[_Union[_job_pb2.Slot, _Mapping]] = ..., address: _Optional[str] = ...) -> None: ...

class ReportRequest(_message.Message):
    __slots__ = ("job", "incarnation", "role", "index", "progress")
    JOB_FIELD_NUMBER: _ClassVar[int]
    INCARNATION_FIELD_NUMBER: _ClassVar[int]
    ROLE_FIELD_NUMBER: _ClassVar[int]
    INDEX_FIELD_NUMBER: _ClassVar[int]
    PROGRESS_FIELD_NUMBER: _ClassVar[int]
    job: str
    incarnation: int
    role: _job_pb2.SlotRole
    index: int
    progress: _containers.RepeatedCompositeFieldContainer[Progress]
    def __init__(self, job: _Optional[str] = ..., incarnation: _Optional[int] = ..., role: _Optional[_Union[_job_pb2.SlotRole, str]] = ..., index: _Optional[int] = ..., progress: _Optional[_Iterable[_Union[Progress, _Mapping]]] = ...) -> None: ...

class Progress(_message.Message):
    __slots__ = ("seq", "step", "epoch", "steps_per_epoch", "loss", "accuracy", "examples", "steps", "duration_ms", "workers", "servers", "slot_times", "finished", "converged", "restart_ms", "chunks", "batch", "grad_sqr", "grad_var")
    SEQ_FIELD_NUMBER: _ClassVar[int]
    STEP_FIELD_NUMBER: _ClassVar[int]
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    STEPS_PER_EPOCH_FIELD_NUMBER: _ClassVar[int]
    LOSS_FIELD_NUMBER: _ClassVar[int]
    ACCURACY_FIELD_NUMBER: _ClassVar[int]
    EXAMPLES_FIELD_NUMBER: _ClassVar[int]
    STEPS_FIELD_NUMBER: _ClassVar[int]
    DURATION_MS_FIELD_NUMBER: _ClassVar[int]
    WORKERS_FIELD_NUMBER: _ClassVar[int]
    SERVERS_FIELD_NUMBER: _ClassVar[int]
    SLOT_TIMES_FIELD_NUMBER: _ClassVar[int]
    FINISHED_FIELD_NUMBER: _ClassVar[int]
    CONVERGED_FIELD_NUMBER: _ClassVar[int]
    RESTART_MS_FIELD_NUMBER: _ClassVar[int]
    CHUNKS_FIELD_NUMBER: _ClassVar[int]
    BATCH_FIELD_NUMBER: _ClassVar[int]
    GRAD_SQR_FIELD_NUMBER: _ClassVar[int]
    GRAD_VAR_FIELD_NUMBER: _ClassVar[int]
    seq: int
    step: int
    epoch: int
    steps_per_epoch: int
    loss: float
    accuracy: float
    examples: int
    steps: int
    duration_ms: float
    workers: int
    servers: int
    slot_times: _containers.RepeatedCompositeFieldContainer[SlotTime]
    finished: bool
    converged: bool
    restart_ms: float
    chunks: _containers.RepeatedScalarFieldContainer[int]
    batch: int
    grad_sqr: float
    grad_var: float
    def __init__(self, seq: _Optional[int] = ..., step: _Optional[int] = ..., epoch: _Optional[int] = ..., steps_per_epoch: _Optional[int] = ..., loss: _Optional[float] = ..., accuracy: _Optional[float] = ..., examples: _Optional[int] = ..., steps: _Optional[int] = ..., duration_ms: _Optional[float] = ..., workers: _Optional[int] = ..., servers: _Optional[int] = ..., slot_times: _Optional[_Iterable[_Union[SlotTime, _Mapping]]] = ..., finished: bool = ..., converged: bool = ..., restart_ms: _Optional[float] = ..., chunks: _Optional[_Iterable[int]] = ..., batch: _Optional[int] = ..., grad_sqr: _Optional[float] = ..., grad_var: _Optional[float] = ...) -> None: ...

class SlotTime(_message.Message):
    __slots__ = ("worker", "step_ms")
    WORKER_FIELD_NUMBER: _ClassVar[int]
    STEP_MS_FIELD_NUMBER: _ClassVar[int]
    worker: int
    step_ms: float
    def __init__(self, worker: _Optional[int] = ..., step_ms: _Optional[float] = ...) -> None: ...

class ReportReply(_message.Message):
    __slots__ = ("accepted", "reason")
    ACCEPTED_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    accepted: bool
    reason: str
    def __init__(self, accepted: bool = ..., reason: _Optional[str] = ...) -> None: ...

class AcknowledgeRequest(_message.Message):
    __slots__ = ("job", "incarnation", "revision", "role", "index", "checkpoint_step", "checkpoint_ms", "leaving")
    JOB_FIELD_NUMBER: _ClassVar[int]
    INCARNATION_FIELD_NUMBER: _ClassVar[int]
    REVISION_FIELD_NUMBER: _ClassVar[int]
    ROLE_FIELD_NUMBER: _ClassVar[int]
    INDEX_FIELD_NUMBER: _ClassVar[int]
    CHECKPOINT_STEP_FIELD_NUMBER: _ClassVar[int]
    CHECKPOINT_MS_FIELD_NUMBER: _ClassVar[int]
    LEAVING_FIELD_NUMBER: _ClassVar[int]
    job: str
    incarnation: int
    revision: int
    role: _job_pb2.SlotRole
    index: int
    checkpoint_step: int
    checkpoint_ms: float
    leaving: bool
    def __init__(self, job: _Optional[str] = ..., incarnation: _Optional[int] = ..., revision: _Optional[int] = ..., role: _Optional[_Union[_job_pb2.SlotRole, str]] = ..., index: _Optional[int] = ..., checkpoint_step: _Optional[int] = ..., checkpoint_ms: _Optional[float] = ..., leaving: bool = ...) -> None: ...

class AcknowledgeReply(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

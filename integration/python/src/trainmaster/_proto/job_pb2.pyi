from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from typing import ClassVar as _ClassVar, Iterable as _Iterable, Mapping as _Mapping, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class Stop(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    STOP_EPOCHS: _ClassVar[Stop]
    STOP_OPTIMAL: _ClassVar[Stop]
    STOP_ACCURACY: _ClassVar[Stop]

class Resize(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    RESIZE_ANY: _ClassVar[Resize]
    RESIZE_WORKERS: _ClassVar[Resize]
    RESIZE_FIXED: _ClassVar[Resize]

class TrainingMode(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    TRAINING_MODE_SYNC: _ClassVar[TrainingMode]
    TRAINING_MODE_ASYNC: _ClassVar[TrainingMode]
    TRAINING_MODE_ALLREDUCE: _ClassVar[TrainingMode]

class UtilityKind(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    UTILITY_KIND_SIGMOID: _ClassVar[UtilityKind]
    UTILITY_KIND_CONSTANT: _ClassVar[UtilityKind]
    UTILITY_KIND_LINEAR: _ClassVar[UtilityKind]
    UTILITY_KIND_STEP: _ClassVar[UtilityKind]
    UTILITY_KIND_TABLE: _ClassVar[UtilityKind]

class SlotRole(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    SLOT_ROLE_WORKER: _ClassVar[SlotRole]
    SLOT_ROLE_SERVER: _ClassVar[SlotRole]

class WorkState(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    WORK_STATE_RUNNING: _ClassVar[WorkState]
    WORK_STATE_QUEUED: _ClassVar[WorkState]
    WORK_STATE_PREEMPTED: _ClassVar[WorkState]
    WORK_STATE_DONE: _ClassVar[WorkState]
STOP_EPOCHS: Stop
STOP_OPTIMAL: Stop
STOP_ACCURACY: Stop
RESIZE_ANY: Resize
RESIZE_WORKERS: Resize
RESIZE_FIXED: Resize
TRAINING_MODE_SYNC: TrainingMode
TRAINING_MODE_ASYNC: TrainingMode
TRAINING_MODE_ALLREDUCE: TrainingMode
UTILITY_KIND_SIGMOID: UtilityKind
UTILITY_KIND_CONSTANT: UtilityKind
UTILITY_KIND_LINEAR: UtilityKind
UTILITY_KIND_STEP: UtilityKind
UTILITY_KIND_TABLE: UtilityKind
SLOT_ROLE_WORKER: SlotRole
SLOT_ROLE_SERVER: SlotRole
WORK_STATE_RUNNING: WorkState
WORK_STATE_QUEUED: WorkState
WORK_STATE_PREEMPTED: WorkState
WORK_STATE_DONE: WorkState

class Job(_message.Message):
    __slots__ = ("name", "model", "tenant", "queue", "priority", "resize", "mode", "batch", "examples", "convergence", "worker", "server", "model_size_mib", "utility", "deadline_ms", "accuracy", "urgency", "dataset", "labels", "time_limit_ms", "restart_cost_ms", "profile", "separate_roles", "partitions", "stop", "stop_under_load")
    class LabelsEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: str
        def __init__(self, key: _Optional[str] = ..., value: _Optional[str] = ...) -> None: ...
    NAME_FIELD_NUMBER: _ClassVar[int]
    MODEL_FIELD_NUMBER: _ClassVar[int]
    TENANT_FIELD_NUMBER: _ClassVar[int]
    QUEUE_FIELD_NUMBER: _ClassVar[int]
    PRIORITY_FIELD_NUMBER: _ClassVar[int]
    RESIZE_FIELD_NUMBER: _ClassVar[int]
    MODE_FIELD_NUMBER: _ClassVar[int]
    BATCH_FIELD_NUMBER: _ClassVar[int]
    EXAMPLES_FIELD_NUMBER: _ClassVar[int]
    CONVERGENCE_FIELD_NUMBER: _ClassVar[int]
    WORKER_FIELD_NUMBER: _ClassVar[int]
    SERVER_FIELD_NUMBER: _ClassVar[int]
    MODEL_SIZE_MIB_FIELD_NUMBER: _ClassVar[int]
    UTILITY_FIELD_NUMBER: _ClassVar[int]
    DEADLINE_MS_FIELD_NUMBER: _ClassVar[int]
    ACCURACY_FIELD_NUMBER: _ClassVar[int]
    URGENCY_FIELD_NUMBER: _ClassVar[int]
    DATASET_FIELD_NUMBER: _ClassVar[int]
    LABELS_FIELD_NUMBER: _ClassVar[int]
    TIME_LIMIT_MS_FIELD_NUMBER: _ClassVar[int]
    RESTART_COST_MS_FIELD_NUMBER: _ClassVar[int]
    PROFILE_FIELD_NUMBER: _ClassVar[int]
    SEPARATE_ROLES_FIELD_NUMBER: _ClassVar[int]
    PARTITIONS_FIELD_NUMBER: _ClassVar[int]
    STOP_FIELD_NUMBER: _ClassVar[int]
    STOP_UNDER_LOAD_FIELD_NUMBER: _ClassVar[int]
    name: str
    model: str
    tenant: str
    queue: str
    priority: int
    resize: Resize
    mode: TrainingMode
    batch: int
    examples: int
    convergence: Convergence
    worker: Role
    server: Role
    model_size_mib: int
    utility: Utility
    deadline_ms: int
    accuracy: float
    urgency: int
    dataset: Dataset
    labels: _containers.ScalarMap[str, str]
    time_limit_ms: int
    restart_cost_ms: int
    profile: _containers.RepeatedCompositeFieldContainer[SpeedSample]
    separate_roles: bool
    partitions: _containers.RepeatedCompositeFieldContainer[Partition]
    stop: Stop
    stop_under_load: Stop
    def __init__(self, name: _Optional[str] = ..., model: _Optional[str] = ..., tenant: _Optional[str] = ..., queue: _Optional[str] = ..., priority: _Optional[int] = ..., resize: _Optional[_Union[Resize, str]] = ..., mode: _Optional[_Union[TrainingMode, str]] = ..., batch: _Optional[int] = ..., examples: _Optional[int] = ..., convergence: _Optional[_Union[Convergence, _Mapping]] = ..., worker: _Optional[_Union[Role, _Mapping]] = ..., server: _Optional[_Union[Role, _Mapping]] = ..., model_size_mib: _Optional[int] = ..., utility: _Optional[_Union[Utility, _Mapping]] = ..., deadline_ms: _Optional[int] = ..., accuracy: _Optional[float] = ..., urgency: _Optional[int] = ..., dataset: _Optional[_Union[Dataset, _Mapping]] = ..., labels: _Optional[_Mapping[str, str]] = ..., time_limit_ms: _Optional[int] = ..., restart_cost_ms: _Optional[int] = ..., profile: _Optional[_Iterable[_Union[SpeedSample, _Mapping]]] = ..., separate_roles: bool = ..., partitions: _Optional[_Iterable[_Union[Partition, _Mapping]]] = ..., stop: _Optional[_Union[Stop, str]] = ..., stop_under_load: _Optional[_Union[Stop, str]] = ...) -> None: ...

class ExternalId(_message.Message):
    __slots__ = ("cluster", "native")
    CLUSTER_FIELD_NUMBER: _ClassVar[int]
    NATIVE_FIELD_NUMBER: _ClassVar[int]
    cluster: str
    native: str
    def __init__(self, cluster: _Optional[str] = ..., native: _Optional[str] = ...) -> None: ...

class Partition(_message.Message):
    __slots__ = ("parameters", "after")
    PARAMETERS_FIELD_NUMBER: _ClassVar[int]
    AFTER_FIELD_NUMBER: _ClassVar[int]
    parameters: int
    after: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, parameters: _Optional[int] = ..., after: _Optional[_Iterable[int]] = ...) -> None: ...

class Convergence(_message.Message):
    __slots__ = ("delta", "patience", "max_epochs")
    DELTA_FIELD_NUMBER: _ClassVar[int]
    PATIENCE_FIELD_NUMBER: _ClassVar[int]
    MAX_EPOCHS_FIELD_NUMBER: _ClassVar[int]
    delta: float
    patience: int
    max_epochs: int
    def __init__(self, delta: _Optional[float] = ..., patience: _Optional[int] = ..., max_epochs: _Optional[int] = ...) -> None: ...

class Role(_message.Message):
    __slots__ = ("demand", "min", "max", "requested", "command")
    class DemandEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: int
        def __init__(self, key: _Optional[str] = ..., value: _Optional[int] = ...) -> None: ...
    DEMAND_FIELD_NUMBER: _ClassVar[int]
    MIN_FIELD_NUMBER: _ClassVar[int]
    MAX_FIELD_NUMBER: _ClassVar[int]
    REQUESTED_FIELD_NUMBER: _ClassVar[int]
    COMMAND_FIELD_NUMBER: _ClassVar[int]
    demand: _containers.ScalarMap[str, int]
    min: int
    max: int
    requested: int
    command: str
    def __init__(self, demand: _Optional[_Mapping[str, int]] = ..., min: _Optional[int] = ..., max: _Optional[int] = ..., requested: _Optional[int] = ..., command: _Optional[str] = ...) -> None: ...

class Utility(_message.Message):
    __slots__ = ("kind", "value", "decay", "target_ms", "points")
    KIND_FIELD_NUMBER: _ClassVar[int]
    VALUE_FIELD_NUMBER: _ClassVar[int]
    DECAY_FIELD_NUMBER: _ClassVar[int]
    TARGET_MS_FIELD_NUMBER: _ClassVar[int]
    POINTS_FIELD_NUMBER: _ClassVar[int]
    kind: UtilityKind
    value: float
    decay: float
    target_ms: int
    points: _containers.RepeatedCompositeFieldContainer[UtilityPoint]
    def __init__(self, kind: _Optional[_Union[UtilityKind, str]] = ..., value: _Optional[float] = ..., decay: _Optional[float] = ..., target_ms: _Optional[int] = ..., points: _Optional[_Iterable[_Union[UtilityPoint, _Mapping]]] = ...) -> None: ...

class UtilityPoint(_message.Message):
    __slots__ = ("elapsed_ms", "worth")
    ELAPSED_MS_FIELD_NUMBER: _ClassVar[int]
    WORTH_FIELD_NUMBER: _ClassVar[int]
    elapsed_ms: int
    worth: float
    def __init__(self, elapsed_ms: _Optional[int] = ..., worth: _Optional[float] = ...) -> None: ...

class Dataset(_message.Message):
    __slots__ = ("chunks", "batches_per_chunk", "epochs", "upload", "batch_time_ms", "chunk_size_mib")
    CHUNKS_FIELD_NUMBER: _ClassVar[int]
    BATCHES_PER_CHUNK_FIELD_NUMBER: _ClassVar[int]
    EPOCHS_FIELD_NUMBER: _ClassVar[int]
    UPLOAD_FIELD_NUMBER: _ClassVar[int]
    BATCH_TIME_MS_FIELD_NUMBER: _ClassVar[int]
    CHUNK_SIZE_MIB_FIELD_NUMBER: _ClassVar[int]
    chunks: int
    batches_per_chunk: int
    epochs: int
    upload: str
    batch_time_ms: int
    chunk_size_mib: int
    def __init__(self, chunks: _Optional[int] = ..., batches_per_chunk: _Optional[int] = ..., epochs: _Optional[int] = ..., upload: _Optional[str] = ..., batch_time_ms: _Optional[int] = ..., chunk_size_mib: _Optional[int] = ...) -> None: ...

class SpeedSample(_message.Message):
    __slots__ = ("servers", "workers", "speed")
    SERVERS_FIELD_NUMBER: _ClassVar[int]
    WORKERS_FIELD_NUMBER: _ClassVar[int]
    SPEED_FIELD_NUMBER: _ClassVar[int]
    servers: int
    workers: int
    speed: float
    def __init__(self, servers: _Optional[int] = ..., workers: _Optional[int] = ..., speed: _Optional[float] = ...) -> None: ...

class DeviceShare(_message.Message):
    __slots__ = ("device", "milli")
    DEVICE_FIELD_NUMBER: _ClassVar[int]
    MILLI_FIELD_NUMBER: _ClassVar[int]
    device: int
    milli: int
    def __init__(self, device: _Optional[int] = ..., milli: _Optional[int] = ...) -> None: ...

class Slot(_message.Message):
    __slots__ = ("role", "index", "server", "devices", "idle")
    ROLE_FIELD_NUMBER: _ClassVar[int]
    INDEX_FIELD_NUMBER: _ClassVar[int]
    SERVER_FIELD_NUMBER: _ClassVar[int]
    DEVICES_FIELD_NUMBER: _ClassVar[int]
    IDLE_FIELD_NUMBER: _ClassVar[int]
    role: SlotRole
    index: int
    server: str
    devices: _containers.RepeatedCompositeFieldContainer[DeviceShare]
    idle: bool
    def __init__(self, role: _Optional[_Union[SlotRole, str]] = ..., index: _Optional[int] = ..., server: _Optional[str] = ..., devices: _Optional[_Iterable[_Union[DeviceShare, _Mapping]]] = ..., idle: bool = ...) -> None: ...

class Work(_message.Message):
    __slots__ = ("chunk", "worker", "state", "rank")
    CHUNK_FIELD_NUMBER: _ClassVar[int]
    WORKER_FIELD_NUMBER: _ClassVar[int]
    STATE_FIELD_NUMBER: _ClassVar[int]
    RANK_FIELD_NUMBER: _ClassVar[int]
    chunk: int
    worker: int
    state: WorkState
    rank: int
    def __init__(self, chunk: _Optional[int] = ..., worker: _Optional[int] = ..., state: _Optional[_Union[WorkState, str]] = ..., rank: _Optional[int] = ...) -> None: ...

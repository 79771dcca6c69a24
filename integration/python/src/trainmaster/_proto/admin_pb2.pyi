from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from typing import ClassVar as _ClassVar, Iterable as _Iterable, Mapping as _Mapping, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class SchedulingMode(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    SCHEDULING_MODE_ACTIVE: _ClassVar[SchedulingMode]
    SCHEDULING_MODE_SHADOW: _ClassVar[SchedulingMode]
    SCHEDULING_MODE_PAUSED: _ClassVar[SchedulingMode]

class TokenRole(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    TOKEN_ROLE_UNSPECIFIED: _ClassVar[TokenRole]
    TOKEN_ROLE_ADMIN: _ClassVar[TokenRole]
    TOKEN_ROLE_SUBMIT: _ClassVar[TokenRole]
    TOKEN_ROLE_MANAGER: _ClassVar[TokenRole]
    TOKEN_ROLE_READ: _ClassVar[TokenRole]
    TOKEN_ROLE_METRICS: _ClassVar[TokenRole]
SCHEDULING_MODE_ACTIVE: SchedulingMode
SCHEDULING_MODE_SHADOW: SchedulingMode
SCHEDULING_MODE_PAUSED: SchedulingMode
TOKEN_ROLE_UNSPECIFIED: TokenRole
TOKEN_ROLE_ADMIN: TokenRole
TOKEN_ROLE_SUBMIT: TokenRole
TOKEN_ROLE_MANAGER: TokenRole
TOKEN_ROLE_READ: TokenRole
TOKEN_ROLE_METRICS: TokenRole

class SetModeRequest(_message.Message):
    __slots__ = ("mode",)
    MODE_FIELD_NUMBER: _ClassVar[int]
    mode: SchedulingMode
    def __init__(self, mode: _Optional[_Union[SchedulingMode, str]] = ...) -> None: ...

class SetModeReply(_message.Message):
    __slots__ = ("previous", "not_written")
    PREVIOUS_FIELD_NUMBER: _ClassVar[int]
    NOT_WRITTEN_FIELD_NUMBER: _ClassVar[int]
    previous: SchedulingMode
    not_written: str
    def __init__(self, previous: _Optional[_Union[SchedulingMode, str]] = ..., not_written: _Optional[str] = ...) -> None: ...

class DryRunRequest(_message.Message):
    __slots__ = ("engine",)
    ENGINE_FIELD_NUMBER: _ClassVar[int]
    engine: str
    def __init__(self, engine: _Optional[str] = ...) -> None: ...

class DryRunReply(_message.Message):
    __slots__ = ("changes", "engine")
    CHANGES_FIELD_NUMBER: _ClassVar[int]
    ENGINE_FIELD_NUMBER: _ClassVar[int]
    changes: _containers.RepeatedCompositeFieldContainer[PlannedChange]
    engine: str
    def __init__(self, changes: _Optional[_Iterable[_Union[PlannedChange, _Mapping]]] = ..., engine: _Optional[str] = ...) -> None: ...

class PlannedChange(_message.Message):
    __slots__ = ("job", "name", "before", "after", "reason")
    JOB_FIELD_NUMBER: _ClassVar[int]
    NAME_FIELD_NUMBER: _ClassVar[int]
    BEFORE_FIELD_NUMBER: _ClassVar[int]
    AFTER_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    job: int
    name: str
    before: str
    after: str
    reason: str
    def __init__(self, job: _Optional[int] = ..., name: _Optional[str] = ..., before: _Optional[str] = ..., after: _Optional[str] = ..., reason: _Optional[str] = ...) -> None: ...

class StatusRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class StatusReply(_message.Message):
    __slots__ = ("version", "engine", "mode", "decision", "digest", "servers", "jobs", "decision_age_ms", "managers", "journal_error", "state_dir", "next_decision_ms", "adapters", "fallback", "open_doors", "log_lines_dropped", "certificate_ends_ms")
    VERSION_FIELD_NUMBER: _ClassVar[int]
    ENGINE_FIELD_NUMBER: _ClassVar[int]
    MODE_FIELD_NUMBER: _ClassVar[int]
    DECISION_FIELD_NUMBER: _ClassVar[int]
    DIGEST_FIELD_NUMBER: _ClassVar[int]
    SERVERS_FIELD_NUMBER: _ClassVar[int]
    JOBS_FIELD_NUMBER: _ClassVar[int]
    DECISION_AGE_MS_FIELD_NUMBER: _ClassVar[int]
    MANAGERS_FIELD_NUMBER: _ClassVar[int]
    JOURNAL_ERROR_FIELD_NUMBER: _ClassVar[int]
    STATE_DIR_FIELD_NUMBER: _ClassVar[int]
    NEXT_DECISION_MS_FIELD_NUMBER: _ClassVar[int]
    ADAPTERS_FIELD_NUMBER: _ClassVar[int]
    FALLBACK_FIELD_NUMBER: _ClassVar[int]
    OPEN_DOORS_FIELD_NUMBER: _ClassVar[int]
    LOG_LINES_DROPPED_FIELD_NUMBER: _ClassVar[int]
    CERTIFICATE_ENDS_MS_FIELD_NUMBER: _ClassVar[int]
    version: str
    engine: str
    mode: SchedulingMode
    decision: int
    digest: str
    servers: int
    jobs: int
    decision_age_ms: int
    managers: _containers.RepeatedScalarFieldContainer[str]
    journal_error: str
    state_dir: str
    next_decision_ms: int
    adapters: _containers.RepeatedScalarFieldContainer[str]
    fallback: str
    open_doors: _containers.RepeatedScalarFieldContainer[str]
    log_lines_dropped: int
    certificate_ends_ms: int
    def __init__(self, version: _Optional[str] = ..., engine: _Optional[str] = ..., mode: _Optional[_Union[SchedulingMode, str]] = ..., decision: _Optional[int] = ..., digest: _Optional[str] = ..., servers: _Optional[int] = ..., jobs: _Optional[int] = ..., decision_age_ms: _Optional[int] = ..., managers: _Optional[_Iterable[str]] = ..., journal_error: _Optional[str] = ..., state_dir: _Optional[str] = ..., next_decision_ms: _Optional[int] = ..., adapters: _Optional[_Iterable[str]] = ..., fallback: _Optional[str] = ..., open_doors: _Optional[_Iterable[str]] = ..., log_lines_dropped: _Optional[int] = ..., certificate_ends_ms: _Optional[int] = ...) -> None: ...

class Token(_message.Message):
    __slots__ = ("name", "role", "tenants", "manager", "created_ms", "expires_ms", "used_ms")
    NAME_FIELD_NUMBER: _ClassVar[int]
    ROLE_FIELD_NUMBER: _ClassVar[int]
    TENANTS_FIELD_NUMBER: _ClassVar[int]
    MANAGER_FIELD_NUMBER: _ClassVar[int]
    CREATED_MS_FIELD_NUMBER: _ClassVar[int]
    EXPIRES_MS_FIELD_NUMBER: _ClassVar[int]
    USED_MS_FIELD_NUMBER: _ClassVar[int]
    name: str
    role: TokenRole
    tenants: _containers.RepeatedScalarFieldContainer[str]
    manager: str
    created_ms: int
    expires_ms: int
    used_ms: int
    def __init__(self, name: _Optional[str] = ..., role: _Optional[_Union[TokenRole, str]] = ..., tenants: _Optional[_Iterable[str]] = ..., manager: _Optional[str] = ..., created_ms: _Optional[int] = ..., expires_ms: _Optional[int] = ..., used_ms: _Optional[int] = ...) -> None: ...

class CreateTokenRequest(_message.Message):
    __slots__ = ("name", "role", "tenants", "manager", "lasts_ms", "secret")
    NAME_FIELD_NUMBER: _ClassVar[int]
    ROLE_FIELD_NUMBER: _ClassVar[int]
    TENANTS_FIELD_NUMBER: _ClassVar[int]
    MANAGER_FIELD_NUMBER: _ClassVar[int]
    LASTS_MS_FIELD_NUMBER: _ClassVar[int]
    SECRET_FIELD_NUMBER: _ClassVar[int]
    name: str
    role: TokenRole
    tenants: _containers.RepeatedScalarFieldContainer[str]
    manager: str
    lasts_ms: int
    secret: str
    def __init__(self, name: _Optional[str] = ..., role: _Optional[_Union[TokenRole, str]] = ..., tenants: _Optional[_Iterable[str]] = ..., manager: _Optional[str] = ..., lasts_ms: _Optional[int] = ..., secret: _Optional[str] = ...) -> None: ...

class CreateTokenReply(_message.Message):
    __slots__ = ("token", "secret")
    TOKEN_FIELD_NUMBER: _ClassVar[int]
    SECRET_FIELD_NUMBER: _ClassVar[int]
    token: Token
    secret: str
    def __init__(self, token: _Optional[_Union[Token, _Mapping]] = ..., secret: _Optional[str] = ...) -> None: ...

class ListTokensRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class ListTokensReply(_message.Message):
    __slots__ = ("tokens",)
    TOKENS_FIELD_NUMBER: _ClassVar[int]
    tokens: _containers.RepeatedCompositeFieldContainer[Token]
    def __init__(self, tokens: _Optional[_Iterable[_Union[Token, _Mapping]]] = ...) -> None: ...

class RotateTokenRequest(_message.Message):
    __slots__ = ("name", "overlap_ms", "secret")
    NAME_FIELD_NUMBER: _ClassVar[int]
    OVERLAP_MS_FIELD_NUMBER: _ClassVar[int]
    SECRET_FIELD_NUMBER: _ClassVar[int]
    name: str
    overlap_ms: int
    secret: str
    def __init__(self, name: _Optional[str] = ..., overlap_ms: _Optional[int] = ..., secret: _Optional[str] = ...) -> None: ...

class RevokeTokenRequest(_message.Message):
    __slots__ = ("name",)
    NAME_FIELD_NUMBER: _ClassVar[int]
    name: str
    def __init__(self, name: _Optional[str] = ...) -> None: ...

class RevokeTokenReply(_message.Message):
    __slots__ = ("not_written",)
    NOT_WRITTEN_FIELD_NUMBER: _ClassVar[int]
    not_written: str
    def __init__(self, not_written: _Optional[str] = ...) -> None: ...

//! Errors, as numbers and texts.

use std::ffi::CStr;

use libc::c_char;
use trainmaster_core::{
    EventError, JobFileError, SettingsError,
    fit::FitError,
    job::JobSpecError,
    journal::JournalError,
    paa::PaaError,
    scheduler::{self, Superseded},
};

/// The result of a successful function.
pub const TRAINMASTER_OK: u32 = 0;

/// The result of a function that failed and changed nothing. Numbers are never reused, and new ones may be added.
/// trainmaster_error_name() returns their names.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum trainmaster_error {
    /// A required pointer is NULL.
    Null = 1,
    /// A struct's size, an array's stride or a length is impossible, or a struct of a newer version has fields set that
    /// this library doesn't know.
    Size = 2,
    /// A number is not an allowed one, a text is not UTF-8, or a pointer is not aligned.
    Value = 3,
    /// The handle is in use by another thread, or by the caller of a callback.
    Busy = 4,
    /// An earlier panic has poisoned the handle. Only status, take_issues, all_issues, drain_journal, set_log, restore
    /// and free work.
    Poisoned = 5,
    /// A bug in the library was caught. If it occurred during a change of a scheduler, the scheduler is poisoned.
    Panic = 6,
    /// Wrong order of calls: the ticket has not run yet, has run or was committed already, or is for fits instead of a
    /// decision.
    Order = 7,
    /// The ticket was superseded by a newer one or abandoned, its scheduler was restored since, or it belongs to
    /// another scheduler.
    Superseded = 8,
    /// The caller's buffer is too small. The required length was written.
    Buffer = 9,
    /// The journal's writer returned something other than 0.
    Write = 10,
    /// The settings are invalid: a key, an engine, or a parameter.
    Settings = 20,
    /// The engine failed to decide.
    Engine = 21,
    /// The job's description is invalid.
    Job = 30,
    /// An active job has the same name.
    DuplicateName = 31,
    /// The job could never run, even alone.
    NeverFits = 32,
    /// There are too many types of resources.
    ResourceTypes = 33,
    /// The engine in charge can't run such a job.
    Unsupported = 34,
    /// There is no such active job.
    UnknownJob = 35,
    /// There is no such server.
    UnknownServer = 36,
    /// The server's description is invalid.
    Server = 37,
    /// The resync was never begun.
    Sync = 38,
    /// The report is out of order, out of range or of another incarnation. It is counted.
    Report = 39,
    /// The refusal is for something that is no longer issued. It is counted.
    LateRefusal = 40,
    /// The time is before an earlier one.
    Time = 41,
    /// The policy can't be read, is corrupt, has other inputs, or had worse results than the heuristic. The previous
    /// policy stays in force.
    Policy = 42,
    /// The journal has no snapshot.
    NoSnapshot = 50,
    /// A record of the journal is corrupt or of another version.
    Unreadable = 51,
    /// A repeated decision differs from the journal's, because another version of the engine made it.
    Diverged = 52,
    /// There are too few measurements for a fit.
    TooFewPoints = 60,
    /// A sum or difference of the numbers is too large.
    TooLarge = 61,
}

use trainmaster_error as Code;

/// An error number and its text.
#[derive(Debug)]
pub(crate) struct Failure {
    pub(crate) code: Code,
    pub(crate) text: String,
}

impl Failure {
    pub(crate) fn new(code: Code, text: impl Into<String>) -> Self {
        Self { code, text: text.into() }
    }

    pub(crate) fn value(text: impl Into<String>) -> Self {
        Self::new(Code::Value, text)
    }
}

impl From<EventError> for Failure {
    fn from(error: EventError) -> Self {
        let code = match &error {
            EventError::Spec(_) => Code::Job,
            EventError::Settings(_) => Code::Settings,
            EventError::DuplicateName { .. } => Code::DuplicateName,
            EventError::NeverFits(_) => Code::NeverFits,
            EventError::ResourceTypes { .. } => Code::ResourceTypes,
            EventError::Unsupported { .. } => Code::Unsupported,
            EventError::UnknownJob(_) => Code::UnknownJob,
            EventError::UnknownServer(_) => Code::UnknownServer,
            EventError::Server { .. } => Code::Server,
            EventError::Sync { .. } => Code::Sync,
            EventError::Report { .. } => Code::Report,
            EventError::LateRefusal { .. } => Code::LateRefusal,
            EventError::Time { .. } => Code::Time,
            EventError::Policy(_) => Code::Policy,
        };
        Self::new(code, error.to_string())
    }
}

impl From<JournalError> for Failure {
    fn from(error: JournalError) -> Self {
        let code = match &error {
            JournalError::NoSnapshot => Code::NoSnapshot,
            JournalError::Unreadable { .. } => Code::Unreadable,
            JournalError::Settings { .. } => Code::Settings,
            JournalError::Diverged { .. } => Code::Diverged,
        };
        Self::new(code, error.to_string())
    }
}

impl From<FitError> for Failure {
    fn from(error: FitError) -> Self {
        let code = match error {
            FitError::TooFewPoints { .. } => Code::TooFewPoints,
            FitError::TooLarge => Code::TooLarge,
        };
        Self::new(code, error.to_string())
    }
}

impl From<PaaError> for Failure {
    fn from(error: PaaError) -> Self {
        let code = match error {
            PaaError::NoServers => Code::Value,
            PaaError::TooLarge => Code::TooLarge,
        };
        Self::new(code, error.to_string())
    }
}

macro_rules! always {
    ($($error:ty => $code:ident,)*) => {$(
        impl From<$error> for Failure {
            fn from(error: $error) -> Self {
                Self::new(Code::$code, error.to_string())
            }
        }
    )*};
}

always! {
    SettingsError => Settings,
    scheduler::Failure => Engine,
    JobSpecError => Job,
    JobFileError => Job,
    Superseded => Superseded,
}

const NAMES: &[(Code, &CStr)] = &[
    (Code::Null, c"TRAINMASTER_ERROR_NULL"),
    (Code::Size, c"TRAINMASTER_ERROR_SIZE"),
    (Code::Value, c"TRAINMASTER_ERROR_VALUE"),
    (Code::Busy, c"TRAINMASTER_ERROR_BUSY"),
    (Code::Poisoned, c"TRAINMASTER_ERROR_POISONED"),
    (Code::Panic, c"TRAINMASTER_ERROR_PANIC"),
    (Code::Order, c"TRAINMASTER_ERROR_ORDER"),
    (Code::Superseded, c"TRAINMASTER_ERROR_SUPERSEDED"),
    (Code::Buffer, c"TRAINMASTER_ERROR_BUFFER"),
    (Code::Write, c"TRAINMASTER_ERROR_WRITE"),
    (Code::Settings, c"TRAINMASTER_ERROR_SETTINGS"),
    (Code::Engine, c"TRAINMASTER_ERROR_ENGINE"),
    (Code::Job, c"TRAINMASTER_ERROR_JOB"),
    (Code::DuplicateName, c"TRAINMASTER_ERROR_DUPLICATE_NAME"),
    (Code::NeverFits, c"TRAINMASTER_ERROR_NEVER_FITS"),
    (Code::ResourceTypes, c"TRAINMASTER_ERROR_RESOURCE_TYPES"),
    (Code::Unsupported, c"TRAINMASTER_ERROR_UNSUPPORTED"),
    (Code::UnknownJob, c"TRAINMASTER_ERROR_UNKNOWN_JOB"),
    (Code::UnknownServer, c"TRAINMASTER_ERROR_UNKNOWN_SERVER"),
    (Code::Server, c"TRAINMASTER_ERROR_SERVER"),
    (Code::Sync, c"TRAINMASTER_ERROR_SYNC"),
    (Code::Report, c"TRAINMASTER_ERROR_REPORT"),
    (Code::LateRefusal, c"TRAINMASTER_ERROR_LATE_REFUSAL"),
    (Code::Policy, c"TRAINMASTER_ERROR_POLICY"),
    (Code::Time, c"TRAINMASTER_ERROR_TIME"),
    (Code::NoSnapshot, c"TRAINMASTER_ERROR_NO_SNAPSHOT"),
    (Code::Unreadable, c"TRAINMASTER_ERROR_UNREADABLE"),
    (Code::Diverged, c"TRAINMASTER_ERROR_DIVERGED"),
    (Code::TooFewPoints, c"TRAINMASTER_ERROR_TOO_FEW_POINTS"),
    (Code::TooLarge, c"TRAINMASTER_ERROR_TOO_LARGE"),
];

/// The name of an error number, such as "TRAINMASTER_ERROR_TIME", or "unknown error". The text belongs to the library
/// and exists while it is loaded. Any thread.
#[unsafe(no_mangle)]
pub extern "C" fn trainmaster_error_name(error: u32) -> *const c_char {
    if error == TRAINMASTER_OK {
        return c"TRAINMASTER_OK".as_ptr();
    }
    let named = NAMES.iter().find(|(code, _)| *code as u32 == error);
    named.map_or(c"unknown error", |(_, name)| name).as_ptr()
}

//! Errors in messages.

use thiserror::Error;
use trainmaster_core::job::JobSpecError;

/// A field with an invalid value.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[error("{field}: {problem}")]
pub struct ConvertError {
    /// The field, with the path to it: `worker.demand.gpu`, `slots[2].devices[0].milli`.
    pub field: String,
    /// The value and the allowed ones.
    pub problem: String,
}

impl ConvertError {
    /// An error in a field.
    pub fn new(field: impl Into<String>, problem: impl ToString) -> Self {
        Self { field: field.into(), problem: problem.to_string() }
    }

    /// An unknown value of an enumeration.
    pub(crate) fn unknown(field: impl Into<String>, value: i32, allowed: &str) -> Self {
        Self::new(field, format!("{value} must be {allowed}"))
    }

    /// The same error inside an outer field.
    pub(crate) fn inside(self, outer: impl std::fmt::Display) -> Self {
        Self { field: format!("{outer}.{}", self.field), ..self }
    }
}

impl From<JobSpecError> for ConvertError {
    fn from(error: JobSpecError) -> Self {
        Self { field: error.key, problem: error.problem }
    }
}

impl From<ConvertError> for tonic::Status {
    fn from(error: ConvertError) -> Self {
        Self::invalid_argument(error.to_string())
    }
}

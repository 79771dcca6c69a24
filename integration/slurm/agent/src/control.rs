//! What people ask the agent: `trainmaster slurm status | explain | mode`, a line of JSON on the control socket.

use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use trainmaster_core::{Mode, explain::Explanation};

/// A request.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(tag = "command", rename_all = "lowercase", deny_unknown_fields)]
pub(crate) enum Command {
    /// How things stand.
    Status {},
    /// Why a job is as it is.
    Explain {
        /// Slurm's number of it, or its name.
        job: String,
    },
    /// The kill switch.
    Mode {
        /// Which.
        mode: Mode,
    },
    /// Something goes wrong.
    #[cfg(feature = "fault-injection")]
    Fault {
        /// What.
        fault: crate::fault::Fault,
    },
}

/// The answer to [`Command::Status`].
#[derive(Debug, Serialize)]
pub(crate) struct Status<'a> {
    pub(crate) mode: Mode,
    pub(crate) engine: &'a str,
    /// Decides instead, since that one failed too often.
    pub(crate) fallback: Option<&'a str>,
    pub(crate) servers: usize,
    pub(crate) decisions: u64,
    /// Of the last decision and of the last loading of Slurm's state, in milliseconds.
    pub(crate) decision_ms: f64,
    pub(crate) slowest_decision_ms: f64,
    pub(crate) load_ms: f64,
    pub(crate) orders: u64,
    /// That Slurm takes for one, on average.
    pub(crate) order_ms: f64,
    pub(crate) refusals: u64,
    /// Why nothing can be promised now, if so.
    pub(crate) problem: Option<&'a str>,
    pub(crate) jobs: Vec<JobStatus>,
}

/// A job in it.
#[derive(Debug, Serialize)]
pub(crate) struct JobStatus {
    /// Slurm's number.
    pub(crate) id: Option<u32>,
    pub(crate) name: String,
    pub(crate) planned: String,
    pub(crate) observed: String,
    pub(crate) incarnation: u32,
    pub(crate) epoch: f64,
    pub(crate) reason: Option<String>,
}

/// The answer to [`Command::Explain`].
#[derive(Debug, Serialize)]
pub(crate) struct Explained {
    pub(crate) id: Option<u32>,
    #[serde(flatten)]
    pub(crate) explanation: Explanation,
}

pub(crate) fn answer(answer: &impl Serialize) -> Value {
    serde_json::to_value(answer).unwrap_or_else(|error| json!({ "error": error.to_string() }))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn requests_are_read() {
        let read = |text| serde_json::from_str::<Command>(text);
        assert_eq!(read(r#"{"command":"mode","mode":"paused"}"#).unwrap(), Command::Mode { mode: Mode::Paused });
        assert_eq!(read(r#"{"command":"explain","job":"7"}"#).unwrap(), Command::Explain { job: "7".into() });
        assert_eq!(read(r#"{"command":"status"}"#).unwrap(), Command::Status {});
        assert!(read(r#"{"command":"mode","mode":"off"}"#).unwrap_err().to_string().contains("paused"));
        assert!(read(r#"{"command":"reboot"}"#).unwrap_err().to_string().contains("explain"));
    }
}

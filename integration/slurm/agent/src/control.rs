//! The requests of `trainmaster slurm status | explain | metrics | mode`: one line of JSON each, on the control socket.

use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use trainmaster_core::Mode;
use trainmaster_proto::Explained;

/// A request.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(tag = "command", rename_all = "lowercase", deny_unknown_fields)]
pub(crate) enum Command {
    /// The agent's status.
    Status {},
    /// The explanation of a job's state.
    Explain {
        /// Its number in Slurm, or its name.
        job: String,
    },
    /// Metrics in Prometheus's text format.
    Metrics {
        /// Whether those with names of tenants, queues and jobs are among them.
        #[serde(default)]
        names: bool,
    },
    /// The off switch.
    Mode {
        /// The new mode.
        mode: Mode,
    },
    /// Injects a fault.
    #[cfg(feature = "fault-injection")]
    Fault {
        /// The fault.
        fault: crate::fault::Fault,
    },
}

/// The answer to [`Command::Status`].
#[derive(Debug, Serialize)]
pub(crate) struct Status<'a> {
    pub(crate) mode: Mode,
    pub(crate) engine: &'a str,
    /// The engine that decides instead, because the configured one failed too often.
    pub(crate) fallback: Option<&'a str>,
    pub(crate) servers: usize,
    pub(crate) decisions: u64,
    /// Times of the last decision, of the slowest one, and of the last loading of Slurm's state, in milliseconds.
    pub(crate) decision_ms: f64,
    pub(crate) slowest_decision_ms: f64,
    pub(crate) load_ms: f64,
    pub(crate) orders: u64,
    /// Slurm's average time for an order, in milliseconds.
    pub(crate) order_ms: f64,
    pub(crate) refusals: u64,
    /// The journal's current error, if any. Then nothing can be written.
    pub(crate) problem: Option<&'a str>,
    pub(crate) jobs: Vec<JobStatus>,
}

/// A job in the status.
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
pub(crate) struct Answer<'a> {
    pub(crate) id: Option<u32>,
    #[serde(flatten)]
    pub(crate) explained: Explained<'a>,
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
        assert_eq!(read(r#"{"command":"metrics"}"#).unwrap(), Command::Metrics { names: false });
        assert_eq!(read(r#"{"command":"status"}"#).unwrap(), Command::Status {});
        assert!(read(r#"{"command":"mode","mode":"off"}"#).unwrap_err().to_string().contains("paused"));
        assert!(read(r#"{"command":"reboot"}"#).unwrap_err().to_string().contains("explain"));
    }
}

//! A job's order, checked for this machine, and the goal that follows from it.

use std::{
    collections::{BTreeMap, BTreeSet},
    fmt,
    path::PathBuf,
    time::Duration,
};

use trainmaster_manager::{Action, Order, Placement, SlotId, Token};

use super::super::cluster::Cluster;

/// Maximum number of a job's slots on one machine. A plan with more is invalid.
const MOST_SLOTS: usize = 4096;

/// A program and its arguments, ready to start.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Command {
    pub(crate) program: PathBuf,
    pub(crate) arguments: Vec<String>,
}

/// A short hash of a token. It distinguishes two tokens, but can't be used to report.
pub(crate) fn fingerprint(Token(token): &Token) -> String {
    if token.is_empty() { String::new() } else { blake3::hash(token.as_bytes()).to_hex()[..16].to_owned() }
}

/// The planned shape of a job.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Run {
    pub(crate) incarnation: u32,
    pub(crate) revision: u32,
    pub(crate) slots: BTreeMap<SlotId, Placement>,
    /// Slots without work for now. Their devices are given to another job.
    pub(crate) idle: BTreeSet<SlotId>,
    pub(crate) worker: Command,
    pub(crate) server: Command,
    pub(crate) token: Token,
    pub(crate) environment: BTreeMap<String, String>,
}

/// The goal for a job.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Goal {
    Run(Box<Run>),
    /// Stopped, to run again later.
    Wait,
    /// Stopped permanently.
    End,
    /// Left as it is, and no longer managed.
    Release,
}

/// A job's part of the plan.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Wanted {
    pub(crate) name: String,
    pub(crate) goal: Goal,
    /// Time between SIGTERM and SIGKILL.
    pub(crate) grace: Duration,
}

type Resolver = dyn Fn(&str) -> Result<Command, String> + Send;

/// The function that finds a command's program. The caller provides it, because it reads the file system.
pub(crate) struct Resolve(Box<Resolver>);

impl Resolve {
    pub(crate) fn by(resolve: impl Fn(&str) -> Result<Command, String> + Send + 'static) -> Self {
        Self(Box::new(resolve))
    }
}

impl fmt::Debug for Resolve {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Resolve")
    }
}

impl Wanted {
    /// Converts an order to this machine's goal.
    ///
    /// # Errors
    /// The cause of the refusal. It names the value and the allowed range.
    pub(crate) fn of(order: Order, cluster: &Cluster, Resolve(resolve): &Resolve) -> Result<Self, String> {
        let goal = match order.action {
            Action::Wait => Goal::Wait,
            Action::Stop { .. } | Action::Reject => Goal::End,
            Action::Release(_) => Goal::Release,
            Action::Run(run) => {
                check_name(&order.name)?;
                check_environment(&run.environment)?;
                if run.slots.len() > MOST_SLOTS {
                    return Err(format!("{} slots to run; allowed are 1 to {MOST_SLOTS}", run.slots.len()));
                }
                let (worker, server) = (run.worker_command.trim(), run.server_command.trim());
                Goal::Run(Box::new(Run {
                    incarnation: order.incarnation,
                    revision: order.revision,
                    worker: resolve(worker)?,
                    // One program can have both roles: it reads its role from the environment.
                    server: resolve(if server.is_empty() { worker } else { server })?,
                    slots: run.slots,
                    idle: run.idle,
                    token: order.token,
                    environment: run.environment,
                }))
            }
        };
        Ok(Self { name: order.name, goal, grace: order.grace.unwrap_or_else(|| cluster.grace()) })
    }

    pub(crate) fn run(&self) -> Option<&Run> {
        match &self.goal {
            Goal::Run(run) => Some(run),
            _ => None,
        }
    }
}

/// Names are used as folder names.
fn check_name(name: &str) -> Result<(), String> {
    let allowed = |c: char| c.is_ascii_alphanumeric() || matches!(c, '.' | '_' | '-');
    if name.is_empty() || name.len() > 128 || !name.chars().all(allowed) || name.starts_with('.') {
        return Err(format!(
            "job name {name:?}; allowed are 1 to 128 letters, digits, '.', '_' and '-', not starting with '.'"
        ));
    }
    Ok(())
}

fn check_environment(environment: &BTreeMap<String, String>) -> Result<(), String> {
    for (key, value) in environment {
        if key.is_empty() || key.contains(['=', '\0']) || value.contains('\0') {
            return Err(format!("environment variable {key:?}; a name has no '=' and neither part has a NUL"));
        }
    }
    Ok(())
}

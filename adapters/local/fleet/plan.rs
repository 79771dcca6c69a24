//! A job's plan as it arrives, checked and made into what is wanted.

use std::{
    collections::{BTreeMap, BTreeSet},
    fmt,
    path::PathBuf,
    time::Duration,
};

use trainmaster_proto::v1;

use super::super::{
    cluster::Cluster,
    slot::{Placement, SlotId, from_wire},
};

/// More slots than one machine should ever run for a job; a plan beyond it is a mistake, not a wish.
const MOST_SLOTS: usize = 4096;
/// A longer grace is cut to this.
const LONGEST_GRACE: Duration = Duration::from_secs(24 * 3600);

/// A program and its arguments, ready to start.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Command {
    pub(crate) program: PathBuf,
    pub(crate) arguments: Vec<String>,
}

/// A job's token: shown nowhere.
#[derive(Clone, Default, PartialEq, Eq)]
pub(crate) struct Token(pub(crate) String);

impl Token {
    /// What may be written down of it: enough to tell two tokens apart, useless for reporting.
    pub(crate) fn fingerprint(&self) -> String {
        if self.0.is_empty() { String::new() } else { blake3::hash(self.0.as_bytes()).to_hex()[..16].to_owned() }
    }
}

impl fmt::Debug for Token {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Token(…)")
    }
}

/// The shape a job is to have.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Run {
    pub(crate) incarnation: u32,
    pub(crate) revision: u32,
    pub(crate) slots: BTreeMap<SlotId, Placement>,
    /// Those that have nothing to do for now: their devices are another job's.
    pub(crate) idle: BTreeSet<SlotId>,
    pub(crate) worker: Command,
    pub(crate) server: Command,
    pub(crate) token: Token,
    pub(crate) environment: BTreeMap<String, String>,
}

/// What is to become of a job.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Goal {
    Run(Box<Run>),
    /// Stopped, to run again later.
    Wait,
    /// Stopped for good.
    End,
    /// Left as it is, no longer managed.
    Release,
}

/// A job's part of the plan.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Wanted {
    pub(crate) name: String,
    pub(crate) goal: Goal,
    /// Between SIGTERM and SIGKILL.
    pub(crate) grace: Duration,
}

impl Wanted {
    pub(crate) fn run(&self) -> Option<&Run> {
        match &self.goal {
            Goal::Run(run) => Some(run),
            _ => None,
        }
    }
}

/// How a command's text becomes a program: looks at the file system, so the caller brings it.
pub(crate) type Resolve<'a> = &'a dyn Fn(&str) -> Result<Command, String>;

/// Checks a job's plan by itself: its numbers, its servers and devices, its commands.
///
/// # Errors
/// The cause of the refusal, naming the value and what is allowed.
pub(crate) fn read(plan: v1::JobPlan, cluster: &Cluster, resolve: Resolve<'_>) -> Result<Wanted, String> {
    let grace = match u64::try_from(plan.grace_ms) {
        Ok(0) => cluster.grace(),
        Ok(ms) => Duration::from_millis(ms).min(LONGEST_GRACE),
        Err(_) => return Err(format!("grace_ms = {}; allowed is 0 (the cluster's) or more", plan.grace_ms)),
    };
    let goal = match v1::Action::try_from(plan.action) {
        Ok(v1::Action::Wait) => Goal::Wait,
        Ok(v1::Action::Stop | v1::Action::Reject) => Goal::End,
        Ok(v1::Action::Release) => Goal::Release,
        Ok(v1::Action::Run) => {
            check_name(&plan.name)?;
            let environment = plan.environment.into_iter().collect();
            check_environment(&environment)?;
            let worker = plan.worker_command.trim();
            let server = plan.server_command.trim();
            let (slots, idle) = slots(plan.slots, cluster)?;
            Goal::Run(Box::new(Run {
                incarnation: plan.incarnation,
                revision: plan.revision,
                slots,
                idle,
                worker: resolve(worker)?,
                // One program can play both roles: it reads its role from the environment.
                server: resolve(if server.is_empty() { worker } else { server })?,
                token: Token(plan.token),
                environment,
            }))
        }
        Err(_) => return Err(format!("action {} is unknown; allowed are 0 to 4", plan.action)),
    };
    Ok(Wanted { name: plan.name, goal, grace })
}

/// Names become folder names.
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

/// Slots by role and index, and which of them are idle.
type Slots = (BTreeMap<SlotId, Placement>, BTreeSet<SlotId>);

fn slots(slots: Vec<v1::Slot>, cluster: &Cluster) -> Result<Slots, String> {
    if slots.is_empty() || slots.len() > MOST_SLOTS {
        return Err(format!("{} slots to run; allowed are 1 to {MOST_SLOTS}", slots.len()));
    }
    let (mut read, mut idle) = (BTreeMap::new(), BTreeSet::new());
    for slot in slots {
        let rests = slot.idle;
        let (id, placement) = from_wire(slot)?;
        if rests {
            idle.insert(id);
        }
        let server = cluster.server(&placement.server).ok_or_else(|| {
            format!("{id} is to run on {:?}, which is not a server of {:?}", placement.server, cluster.name())
        })?;
        for share in &placement.devices {
            let devices = server.devices().len();
            if share.device as usize >= devices {
                return Err(format!(
                    "{id} is to use device {} of {:?}, which has {devices}",
                    share.device, placement.server
                ));
            }
            if !(1..=1000).contains(&share.milli) {
                return Err(format!(
                    "{id} is to have {} thousandths of device {} of {:?}; allowed are 1 to 1000",
                    share.milli, share.device, placement.server
                ));
            }
        }
        if read.insert(id, placement).is_some() {
            return Err(format!("{id} is named twice"));
        }
    }
    Ok((read, idle))
}

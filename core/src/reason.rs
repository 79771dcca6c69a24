//! Why a job doesn't run, or has less than planned: typed, with the numbers a person can act on.

use std::{cmp::Reverse, sync::Arc};

use serde::{Deserialize, Serialize};

use crate::{
    decision::{Role, Shape},
    ids::{JobId, ResourceId, ServerId},
    job::Job,
    server::Server,
    settings::Mode,
    state::{Account, State},
    time::{Span, Time},
};

/// Whose limit is meant.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub enum Scope {
    /// The whole cluster's capacity.
    Cluster,
    /// A queue's limit.
    Queue(Arc<str>),
    /// A tenant's limit.
    Tenant(Arc<str>),
}

/// Why.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Reason {
    /// No decision has been made about it since it arrived, was resumed, or its wait was over.
    NotConsidered,
    /// No server could hold even one of this role, empty.
    NeverFits {
        /// Worker or parameter server.
        role: Role,
        /// What is short.
        resource: ResourceId,
        /// What one needs.
        needed: i64,
        /// The most that any matching server has.
        largest: i64,
        /// That server; none if no server matches the labels.
        server: Option<ServerId>,
    },
    /// The shape has no room on any set of servers now.
    NoRoom {
        /// What was to be placed.
        shape: Shape,
        /// Worker or parameter server.
        role: Role,
        /// What is short for one of that role.
        resource: ResourceId,
        /// What one needs.
        needed: i64,
        /// The most that is free on any one matching server.
        largest: i64,
        /// That server.
        server: Option<ServerId>,
    },
    /// Not even the smallest shape is within a total.
    Exhausted {
        /// Of what.
        scope: Scope,
        /// Which resource.
        resource: ResourceId,
        /// What the job's smallest shape needs.
        needed: i64,
        /// What is left.
        left: i64,
        /// What there is in all.
        limit: i64,
    },
    /// Others go first.
    Behind {
        /// The job directly ahead.
        job: JobId,
        /// How many are ahead.
        position: u32,
    },
    /// Planned, but its room is still being released.
    Releasing {
        /// A server it waits for.
        server: ServerId,
        /// Which resource of it.
        resource: ResourceId,
        /// What is missing there.
        missing: i64,
    },
    /// The manager refused it.
    Refused {
        /// The manager's words.
        cause: Arc<str>,
        /// When it is asked again.
        retry_at: Time,
    },
    /// A server it ran on is gone.
    ServerLost {
        /// Which.
        server: ServerId,
    },
    /// Its server has less room than planned: other work came, or capacity went.
    Evicted {
        /// Which.
        server: ServerId,
        /// What is short.
        resource: ResourceId,
        /// By how much.
        missing: i64,
    },
    /// What it is worth by its end doesn't outweigh what running it costs others.
    Outweighed {
        /// Its utility.
        worth: Worth,
        /// What others lose.
        cost: Worth,
        /// What the difference has to be above.
        threshold: Worth,
    },
    /// A person holds it.
    Held,
    /// It ran longer than allowed.
    TimeLimit {
        /// What is allowed.
        limit: Span,
    },
    /// A person cancelled it.
    Cancelled,
    /// Its training is over.
    Finished,
    /// The engine that decides doesn't take such jobs.
    Unsupported {
        /// What about it.
        what: Arc<str>,
    },
    /// It has a schedule, with nothing in this slot of it.
    Scheduled {
        /// When it starts, or goes on.
        next_start: Time,
    },
    /// Even its best schedule costs as much as it is worth.
    PricedOut(PricedOut),
    /// Its work doesn't fit what is free until the horizon.
    Unfinishable {
        /// The horizon's end.
        until: Time,
        /// Chunks that it has left to train.
        needed: u64,
        /// Chunks that there is room for.
        free: u64,
    },
    /// Servers with room for it carry as much as they should, or would with it.
    Overloaded {
        /// The one it had to leave, or else one that carries least.
        server: ServerId,
        /// What is short there …
        resource: ResourceId,
        /// … and how much of it is in use.
        used: Share,
    },
    /// It has the accuracy that suffices.
    AccuracyReached {
        /// What it has.
        accuracy: Share,
        /// What was asked for.
        wanted: Share,
    },
    /// Training on would gain next to nothing.
    NothingToGain {
        /// The best it has had.
        accuracy: Share,
        /// What it would have in the end, most likely.
        predicted: Share,
        /// How probable it is that it would hardly be more.
        probability: Share,
    },
    /// The engine's policy scores waiting above every place that has room.
    HeldBack {
        /// What waiting scores.
        waiting: Worth,
        /// The server of the best place …
        server: ServerId,
        /// … and what that scores.
        score: Worth,
    },
    /// It would end below the accuracy that was asked for.
    OutOfReach {
        /// What was asked for.
        wanted: Share,
        /// What it would have in the end, most likely.
        predicted: Share,
        /// How probable it is that this is less.
        probability: Share,
    },
    /// A reason of the engine's own.
    Engine(EngineReason),
}

/// A reason that only one engine gives.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct EngineReason {
    /// Its kind, in snake case such as `more_service`: a decision names a job again only when that changes.
    pub kind: Arc<str>,
    /// In words, with the numbers of the decision.
    pub text: Arc<str>,
}

/// A part of a whole, in millionths.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Share(pub i64);

impl Share {
    /// The nearest one.
    pub fn of(part: f64) -> Self {
        Self(libm::round(part * 1e6) as i64)
    }
}

impl std::fmt::Display for Share {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{:.1} %", self.0 as f64 / 1e4)
    }
}

/// An amount of utility, in millionths: reasons are compared and hashed, so they hold no floats.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Worth(pub i64);

impl Worth {
    /// The nearest one.
    pub fn of(utility: f64) -> Self {
        Self(libm::round(utility * 1e6) as i64)
    }
}

impl std::fmt::Display for Worth {
    /// With more decimals the smaller it is.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let value = self.0 as f64 / 1e6;
        let decimals = match self.0.unsigned_abs() {
            0 | 10_000_000.. => 2,
            100_000.. => 3,
            _ => 6,
        };
        write!(f, "{value:.decimals$}")
    }
}

/// What priced a job out, by its best schedule at the prices of its arrival.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PricedOut {
    /// Worth − cost, not above 0.
    pub payoff: Worth,
    /// What it would be worth.
    pub utility: Worth,
    /// What the resources of that schedule cost.
    pub cost: Worth,
    /// When it would end.
    pub end: Time,
    /// The role and resource that most of the cost is for.
    pub role: Role,
    /// See [`role`](Self::role).
    pub resource: ResourceId,
    /// What one of that role takes of it …
    pub amount: i64,
    /// … and what that costs in a slot, on average over the schedule …
    pub price: Worth,
    /// … and where nothing is booked.
    pub idle: Worth,
    /// When it is tried again; not by itself where there is no time.
    pub retry_at: Option<Time>,
}

/// The kind of a [`Reason`], without its numbers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "snake_case")]
#[allow(missing_docs)] // see the variants of `Reason`
pub enum ReasonKind {
    NotConsidered,
    NeverFits,
    NoRoom,
    Exhausted,
    Behind,
    Releasing,
    Refused,
    ServerLost,
    Evicted,
    Outweighed,
    Held,
    TimeLimit,
    Cancelled,
    Finished,
    Unsupported,
    Scheduled,
    PricedOut,
    Unfinishable,
    Overloaded,
    HeldBack,
    AccuracyReached,
    NothingToGain,
    OutOfReach,
    Engine,
}

impl Reason {
    /// A reason of an engine's own, of a kind in snake case.
    pub fn of_engine(kind: &str, text: impl Into<Arc<str>>) -> Self {
        Self::Engine(EngineReason { kind: kind.into(), text: text.into() })
    }

    /// Whether both say the same, whatever their numbers.
    pub fn same_kind(&self, other: &Self) -> bool {
        match (self, other) {
            (Self::Engine(mine), Self::Engine(theirs)) => mine.kind == theirs.kind,
            _ => self.kind() == other.kind(),
        }
    }

    /// Its kind: a decision names a job again only when this changes.
    pub fn kind(&self) -> ReasonKind {
        match self {
            Self::NotConsidered => ReasonKind::NotConsidered,
            Self::NeverFits { .. } => ReasonKind::NeverFits,
            Self::NoRoom { .. } => ReasonKind::NoRoom,
            Self::Exhausted { .. } => ReasonKind::Exhausted,
            Self::Behind { .. } => ReasonKind::Behind,
            Self::Releasing { .. } => ReasonKind::Releasing,
            Self::Refused { .. } => ReasonKind::Refused,
            Self::ServerLost { .. } => ReasonKind::ServerLost,
            Self::Evicted { .. } => ReasonKind::Evicted,
            Self::Outweighed { .. } => ReasonKind::Outweighed,
            Self::Held => ReasonKind::Held,
            Self::TimeLimit { .. } => ReasonKind::TimeLimit,
            Self::Cancelled => ReasonKind::Cancelled,
            Self::Finished => ReasonKind::Finished,
            Self::Unsupported { .. } => ReasonKind::Unsupported,
            Self::Scheduled { .. } => ReasonKind::Scheduled,
            Self::PricedOut(_) => ReasonKind::PricedOut,
            Self::Unfinishable { .. } => ReasonKind::Unfinishable,
            Self::Overloaded { .. } => ReasonKind::Overloaded,
            Self::HeldBack { .. } => ReasonKind::HeldBack,
            Self::AccuracyReached { .. } => ReasonKind::AccuracyReached,
            Self::NothingToGain { .. } => ReasonKind::NothingToGain,
            Self::OutOfReach { .. } => ReasonKind::OutOfReach,
            Self::Engine(_) => ReasonKind::Engine,
        }
    }

    /// The server it names.
    pub(crate) fn server(&self) -> Option<ServerId> {
        match self {
            Self::NeverFits { server, .. } | Self::NoRoom { server, .. } => *server,
            Self::Releasing { server, .. }
            | Self::ServerLost { server }
            | Self::Evicted { server, .. }
            | Self::Overloaded { server, .. }
            | Self::HeldBack { server, .. } => Some(*server),
            _ => None,
        }
    }

    /// The same with the numbers of the moment, as far as the plan tells them; a verdict keeps those of the decision
    /// that gave it. O(servers).
    pub fn refreshed(&self, state: &State, job: &Job) -> Self {
        match self {
            Self::NoRoom { shape, role, resource, needed, .. } => {
                let free = |server: &Arc<Server>| server.usable()[*resource] - server.planned.amounts[*resource];
                let servers = state
                    .present_servers()
                    .filter(|server| server.accepts(&job.spec.labels) && server.hosts.takes(*role));
                let best = servers.map(|server| (free(server), Reverse(server.id))).max();
                let (largest, server) = best.map_or((0, None), |(free, id)| (free, Some(id.0)));
                Self::NoRoom { shape: *shape, role: *role, resource: *resource, needed: *needed, largest, server }
            }
            Self::Exhausted { scope, resource, needed, limit, .. } => {
                let of = |account: &Account| {
                    let limit = account.limits.get(resource).copied().unwrap_or(*limit);
                    (limit, account.planned[*resource])
                };
                let (limit, planned) = match scope {
                    Scope::Cluster => {
                        let planned = state.present_servers().map(|server| server.planned.amounts[*resource]).sum();
                        (state.usable[*resource], planned)
                    }
                    Scope::Queue(_) => of(&state.queues[job.queue.0 as usize]),
                    Scope::Tenant(_) => of(&state.tenants[job.tenant.0 as usize]),
                };
                let left = limit - planned;
                Self::Exhausted { scope: scope.clone(), resource: *resource, needed: *needed, left, limit }
            }
            other => other.clone(),
        }
    }

    /// In words for people of a tenant: with names instead of numbers, but not those of another tenant's jobs.
    pub fn describe_to(&self, state: &State, tenant: &str) -> String {
        match self {
            Self::Behind { job, position } if state.job(*job).is_some_and(|ahead| ahead.spec.tenant != tenant) => {
                format!("number {position} in line, behind another tenant's job {job}")
            }
            other => other.describe(state),
        }
    }

    /// In words, with names instead of numbers.
    pub fn describe(&self, state: &State) -> String {
        let types = &state.resources;
        let amount =
            |resource: ResourceId, value: i64| format!("{} {}", types.format(resource, value), types.name(resource));
        let until = |at: Time| Span((at - state.now).0.max(0));
        let named = |server: Option<ServerId>| {
            server.map_or_else(|| "no server matches its labels".into(), |server| state.server_name(server).to_owned())
        };
        match self {
            Self::NotConsidered => match state.mode {
                Mode::Active => "waits for the next decision",
                Mode::Shadow => "waits for the next decision, which is only reported",
                Mode::Paused => "waits until scheduling goes on",
            }
            .into(),
            Self::NeverFits { role, resource, needed, largest, server: Some(server) } => format!(
                "a {role} needs {} on one server; the largest has {} ({})",
                amount(*resource, *needed),
                types.format(*resource, *largest),
                state.server_name(*server)
            ),
            Self::NeverFits { role, .. } => format!("no server matches the labels that a {role} asks for"),
            Self::NoRoom { shape, role, resource, needed, largest, server } if largest < needed => format!(
                "{shape} has no room: a {role} needs {} on one server; the largest free is {} ({})",
                amount(*resource, *needed),
                types.format(*resource, *largest),
                named(*server)
            ),
            Self::NoRoom { shape, role, resource, needed, largest, server } => format!(
                "{shape} has no room: one {role} ({}) would fit {} ({} free), but not all of them at once",
                amount(*resource, *needed),
                named(*server),
                types.format(*resource, *largest)
            ),
            Self::Exhausted { scope, resource, needed, left, limit } => {
                let whose = match scope {
                    Scope::Cluster => "the cluster".into(),
                    Scope::Queue(name) => format!("queue {name}"),
                    Scope::Tenant(name) => format!("tenant {name}"),
                };
                let (needs, limit_text) = (amount(*resource, *needed), types.format(*resource, *limit));
                match scope {
                    Scope::Cluster if needed > limit => {
                        format!(
                            "needs {needs}; the servers it may use have {limit_text} in all: as the cluster is now it can't run"
                        )
                    }
                    _ if needed > limit => {
                        format!("needs {needs}; {whose} may have {limit_text} in all: as limits are now it can't run")
                    }
                    _ => format!("needs {needs}; {whose} has {} left of {limit_text}", types.format(*resource, *left)),
                }
            }
            Self::Behind { job, position } => {
                format!("number {position} in line, behind {}", state.job_name(*job))
            }
            Self::Releasing { server, resource, missing } => format!(
                "planned; waits until {} more is released on {}",
                amount(*resource, *missing),
                state.server_name(*server)
            ),
            Self::Refused { cause, retry_at } => {
                let wait = *retry_at - state.now;
                format!("the manager refused it ({cause}); asked again in {}", Span(wait.0.max(0)))
            }
            Self::ServerLost { server } => format!("{} is gone; waits for another place", state.server_name(*server)),
            Self::Evicted { server, resource, missing } => format!(
                "{} lacks {} since other work came or capacity went",
                state.server_name(*server),
                amount(*resource, *missing)
            ),
            Self::Outweighed { worth, cost, threshold } => {
                format!("it would be worth {worth} and cost others {cost}: the difference must be above {threshold}")
            }
            Self::Held => "held by a person; resume it to go on".into(),
            Self::TimeLimit { limit } => format!("ran for its time limit of {limit}"),
            Self::Cancelled => "cancelled by a person".into(),
            Self::Finished => "its training is over".into(),
            Self::Unsupported { what } => format!("the engine in charge can't run it: {what}"),
            Self::Scheduled { next_start } => format!("scheduled; it goes on in {}", until(*next_start)),
            Self::PricedOut(priced) => {
                let PricedOut { payoff, utility, cost, role, resource, amount: taken, price, idle, .. } = priced;
                let retry = priced.retry_at.map_or_else(String::new, |at| format!("; tried again in {}", until(at)));
                format!(
                    "worth {utility} if it ends in {}, but that costs {cost} (payoff {payoff}), mostly for {}: what a {role} \
                     takes of it costs {price} a slot, {idle} where nothing is booked{retry}",
                    until(priced.end),
                    amount(*resource, *taken),
                )
            }
            Self::Unfinishable { until: end, needed, free } => format!(
                "until the horizon in {} there is room for {free} of the {needed} chunks that it has left",
                until(*end)
            ),
            Self::Overloaded { server, resource, used } => format!(
                "servers with room for it carry too much already: {used} of {} are in use on {}",
                types.name(*resource),
                state.server_name(*server)
            ),
            Self::HeldBack { waiting, server, score } => format!(
                "held back by the engine's policy: waiting scores {waiting}, its best place, on {}, {score}",
                state.server_name(*server)
            ),
            Self::AccuracyReached { accuracy, wanted } => format!("its accuracy is {accuracy}; {wanted} was asked for"),
            Self::NothingToGain { accuracy, predicted, probability } => format!(
                "its accuracy is {accuracy}; trained to the end it would be about {predicted}, with a probability of \
                 {probability} hardly more than now"
            ),
            Self::OutOfReach { wanted, predicted, probability } => format!(
                "its accuracy would be about {predicted} in the end, with a probability of {probability} less than the \
                 {wanted} that was asked for"
            ),
            Self::Engine(reason) => reason.text.to_string(),
        }
    }
}

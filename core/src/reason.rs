//! Reasons why a job doesn't run, or has less than planned. They are typed, with numbers that users can act on.

use std::{fmt, sync::Arc};

use serde::{Deserialize, Serialize};

use crate::{
    ids::{JobId, ResourceId, ServerId},
    shape::{Role, Shape},
    time::{Span, Time},
    topology::Level,
};

/// The owner of a limit.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub enum Scope {
    /// The capacity of the whole cluster.
    Cluster,
    /// A queue's limit.
    Queue(Arc<str>),
    /// A tenant's limit.
    Tenant(Arc<str>),
}

/// Why a job doesn't run, or has less than planned.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Reason {
    /// No decision was made about the job since it arrived, was resumed, or its wait ended.
    NotConsidered,
    /// No server could hold even one slot of this role, even if it were empty.
    NeverFits {
        /// Worker or parameter server.
        role: Role,
        /// The resource that is short.
        resource: ResourceId,
        /// Amount that one slot needs.
        needed: i64,
        /// Largest amount of any matching server.
        largest: i64,
        /// That server. `None` if no server matches the labels.
        server: Option<ServerId>,
    },
    /// No set of servers has room for the shape now.
    NoRoom {
        /// The shape.
        shape: Shape,
        /// Worker or parameter server.
        role: Role,
        /// The resource that is short for one slot of that role.
        resource: ResourceId,
        /// Amount that one slot needs.
        needed: i64,
        /// Largest free amount of any one matching server.
        largest: i64,
        /// That server.
        server: Option<ServerId>,
    },
    /// Even the smallest shape exceeds a total.
    Exhausted {
        /// The owner of the total.
        scope: Scope,
        /// The resource.
        resource: ResourceId,
        /// Amount that the job's smallest shape needs.
        needed: i64,
        /// Amount that is left.
        left: i64,
        /// The total.
        limit: i64,
    },
    /// Other jobs go first.
    Behind {
        /// The first waiting job in the line.
        job: JobId,
        /// Place behind that job, from 1.
        position: u32,
    },
    /// The job is planned, but its room is still in use.
    Releasing {
        /// A server whose room is in use.
        server: ServerId,
        /// The resource.
        resource: ResourceId,
        /// The missing amount.
        missing: i64,
    },
    /// The manager refused the job's plan.
    Refused {
        /// The manager's explanation.
        cause: Arc<str>,
        /// Time of the next attempt.
        retry_at: Time,
    },
    /// A server of the job is gone.
    ServerLost {
        /// The server.
        server: ServerId,
    },
    /// A server has less room than planned: other work came, or capacity went.
    Evicted {
        /// The server.
        server: ServerId,
        /// The resource that is short.
        resource: ResourceId,
        /// The missing amount.
        missing: i64,
    },
    /// The job's worth by its end doesn't exceed what running it costs others.
    Outweighed {
        /// The job's utility.
        worth: Worth,
        /// The loss of others.
        cost: Worth,
        /// The difference must exceed this.
        threshold: Worth,
    },
    /// A user paused the job.
    Held,
    /// The job ran for as long as its job file allows.
    TimeLimit {
        /// The time limit.
        limit: Span,
    },
    /// A user cancelled the job.
    Cancelled,
    /// The job's training is complete.
    Finished,
    /// The current engine can't run such a job.
    Unsupported {
        /// The reason why it can't run the job.
        what: Arc<str>,
    },
    /// The job has a booked schedule, with nothing in the current time slot.
    Scheduled {
        /// Time at which it starts or continues.
        next_start: Time,
    },
    /// Even the best schedule of the job costs as much as it is worth.
    PricedOut(PricedOut),
    /// The job's work doesn't fit in what is free until the horizon.
    Unfinishable {
        /// End of the horizon.
        until: Time,
        /// Number of chunks left to train.
        needed: u64,
        /// Number of chunks that fit.
        free: u64,
    },
    /// The servers with room for the job already carry as much as they should, or would with the job.
    Overloaded {
        /// The server that the job had to leave, or else one with the lowest load.
        server: ServerId,
        /// The overloaded resource.
        resource: ResourceId,
        /// Its use.
        used: Share,
    },
    /// The job has the accuracy that suffices.
    AccuracyReached {
        /// The reached accuracy.
        accuracy: Share,
        /// The requested accuracy.
        wanted: Share,
    },
    /// Further training would hardly improve the accuracy.
    NothingToGain {
        /// The best accuracy so far.
        accuracy: Share,
        /// The most probable final accuracy.
        predicted: Share,
        /// The probability that it is hardly better.
        probability: Share,
    },
    /// The engine's policy scores waiting above every place with room.
    HeldBack {
        /// Score of waiting.
        waiting: Worth,
        /// The server of the best place.
        server: ServerId,
        /// Score of the best place.
        score: Worth,
    },
    /// The job would end below the requested accuracy.
    OutOfReach {
        /// The requested accuracy.
        wanted: Share,
        /// The most probable final accuracy.
        predicted: Share,
        /// The probability that the final accuracy is lower than requested.
        probability: Share,
    },
    /// A reason specific to the engine.
    Engine(EngineReason),
    /// No domain of the level that the job requires could hold its smallest shape, even if it were empty.
    NoDomain {
        /// The required level.
        level: Level,
        /// The resource that is short, or by which domains are compared.
        resource: ResourceId,
        /// Amount that the job's smallest shape needs.
        needed: i64,
        /// Largest amount of any domain, on servers with the job's labels.
        largest: i64,
        /// The name of that domain. Empty if there is none.
        domain: Arc<str>,
    },
}

/// A reason specific to one engine.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct EngineReason {
    /// The kind, in snake case such as `more_service`. A decision names a job again only if the kind changes.
    pub kind: Arc<str>,
    /// The reason in words, with the numbers of the decision.
    pub text: Arc<str>,
}

/// A fraction, in millionths.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Share(pub i64);

impl Share {
    /// The nearest value.
    pub fn of(part: f64) -> Self {
        Self(libm::round(part * 1e6) as i64)
    }
}

impl std::fmt::Display for Share {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{:.1} %", self.0 as f64 / 1e4)
    }
}

/// An amount of utility, in millionths. Reasons are compared and hashed, so they contain no floats.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Worth(pub i64);

impl Worth {
    /// The nearest value.
    pub fn of(utility: f64) -> Self {
        Self(libm::round(utility * 1e6) as i64)
    }
}

impl std::fmt::Display for Worth {
    /// Smaller values have more decimals.
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

/// Why a job is priced out: its best schedule at the prices of its arrival.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PricedOut {
    /// Worth − cost, at most 0.
    pub payoff: Worth,
    /// The worth.
    pub utility: Worth,
    /// The cost of the schedule's resources.
    pub cost: Worth,
    /// Time at which it would end.
    pub end: Time,
    /// The role of the largest part of the cost.
    pub role: Role,
    /// The resource of the largest part of the cost.
    pub resource: ResourceId,
    /// Amount of the resource that one slot of the role takes.
    pub amount: i64,
    /// Cost of this amount in a time slot, on average over the schedule.
    pub price: Worth,
    /// The same in a time slot without bookings.
    pub idle: Worth,
    /// By how much the payoff of the best schedule may exceed this one: 0, unless the search was too long and counted
    /// work coarsely.
    pub missed: Worth,
    /// Time of the next attempt. `None`: there is no automatic one.
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
    NoDomain,
}

/// Its name, as in explanations: `no_room`.
impl fmt::Display for ReasonKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.serialize(f)
    }
}

impl Reason {
    /// Whether a job with this reason waits for room that other jobs have: not for its own slots, its manager, its
    /// owner, or a limit of its tenant or queue. A job that is larger than the cluster waits for no other.
    pub fn waits_for_room(&self) -> bool {
        match self {
            Self::Exhausted { scope: Scope::Cluster, needed, limit, .. } => needed <= limit,
            Self::NoRoom { .. } | Self::Behind { .. } | Self::Overloaded { .. } | Self::Engine(_) => true,
            _ => false,
        }
    }

    /// Whether a job with this reason is stopped because further training isn't worthwhile (MLF-C).
    pub fn is_early_stop(&self) -> bool {
        matches!(self, Self::AccuracyReached { .. } | Self::NothingToGain { .. } | Self::OutOfReach { .. })
    }

    /// A reason specific to an engine, with its kind in snake case.
    pub fn of_engine(kind: &str, text: impl Into<Arc<str>>) -> Self {
        Self::Engine(EngineReason { kind: kind.into(), text: text.into() })
    }

    /// Whether both are the same apart from their numbers.
    pub fn same_kind(&self, other: &Self) -> bool {
        match (self, other) {
            (Self::Engine(mine), Self::Engine(theirs)) => mine.kind == theirs.kind,
            _ => self.kind() == other.kind(),
        }
    }

    /// The kind. A decision names a job again only if the kind changes.
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
            Self::NoDomain { .. } => ReasonKind::NoDomain,
        }
    }

    /// The server in the reason.
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
}

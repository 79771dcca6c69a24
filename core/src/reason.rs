//! Why a job doesn't run, or has less than planned: typed, with the numbers a person can act on.

use std::sync::Arc;

use serde::{Deserialize, Serialize};

use crate::{
    ids::{JobId, ResourceId, ServerId},
    shape::{Role, Shape},
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
}

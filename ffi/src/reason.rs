//! Reasons why a job doesn't run: kind, numbers and text.

use trainmaster_core::{Reason, ResourceId, ServerId, State, reason::ReasonKind};

use crate::{borrow::grows, owned::Keep, text::trainmaster_string};

/// Kind of a reason why a job doesn't run, or has less than planned.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum trainmaster_reason_kind {
    /// For a finding without a reason.
    None = 0,
    /// There was no decision about the job yet.
    NotConsidered = 1,
    /// No server could hold one slot of the job. `server` has the most `resource`: `available` of the `needed` amount.
    NeverFits = 2,
    /// There is no room now. A slot needs `needed` of `resource`; the most free room is `available` on `server`.
    NoRoom = 3,
    /// A total of the cluster, a queue or a tenant is used up: `needed` of `resource`, and `available` are left of
    /// `limit`.
    Exhausted = 4,
    /// Other jobs go first: it is at `position` in line, behind `job`.
    Behind = 5,
    /// It is planned, but `needed` more of `resource` must be released on `server` first.
    Releasing = 6,
    /// The manager refused it. The next attempt is at `until`.
    Refused = 7,
    /// `server` left.
    ServerLost = 8,
    /// `server` lacks `needed` of `resource` because of new foreign use.
    Evicted = 9,
    /// Its utility is `worth`, and it costs others `cost`. The difference must exceed `threshold`.
    Outweighed = 10,
    /// A user holds it.
    Held = 11,
    /// It reached its maximum run time, `limit` milliseconds.
    TimeLimit = 12,
    /// A user cancelled it.
    Cancelled = 13,
    /// Its training is complete.
    Finished = 14,
    /// The engine in charge can't run such jobs.
    Unsupported = 15,
    /// It continues at `until`.
    Scheduled = 16,
    /// Its best schedule has utility `worth` and costs `cost`, mostly for `resource`. The next attempt is at `until`.
    PricedOut = 17,
    /// Until `until` there is room for `available` of the `needed` remaining chunks.
    Unfinishable = 18,
    /// `server` is overloaded, with `available` millionths of its `resource` in use, and there is no room elsewhere.
    Overloaded = 19,
    /// It has the required accuracy: `available`, with `needed` required, in millionths.
    AccuracyReached = 20,
    /// Its accuracy is `available`, and its predicted final accuracy is hardly more: `limit`, in millionths.
    NothingToGain = 21,
    /// Its predicted final accuracy is `limit`, and `needed` is required, in millionths.
    OutOfReach = 22,
    /// The engine's policy scores waiting, `worth`, above its best place on `server`, `cost`.
    HeldBack = 23,
    /// A reason of the engine, in `text`.
    Engine = 24,
    /// No domain of the topology that the job requires could hold it: its smallest shape needs `needed` of `resource`,
    /// and the largest domain has `available`.
    NoDomain = 25,
}

/// A reason. Its kind determines the other fields. Unused fields are 0 or empty.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct trainmaster_reason {
    /// Set by the library: size of the struct in its version. Fields of your header beyond it don't exist.
    pub size: u32,
    /// One of TRAINMASTER_REASON_KIND_*.
    pub kind: u32,
    /// Text with the numbers.
    pub text: trainmaster_string,
    /// Name of a resource. Amounts are in its units (see struct trainmaster_amount).
    pub resource: trainmaster_string,
    /// Name of a server.
    pub server: trainmaster_string,
    /// The needed or missing amount.
    pub needed: i64,
    /// The available amount.
    pub available: i64,
    /// The total limit.
    pub limit: i64,
    /// Number of another job.
    pub job: u64,
    /// Time in milliseconds, as in events, or TRAINMASTER_NEVER.
    pub until: i64,
    /// In millionths of a unit of utility.
    pub worth: i64,
    /// In millionths of a unit of utility.
    pub cost: i64,
    /// In millionths of a unit of utility.
    pub threshold: i64,
    /// From 1.
    pub position: u32,
    /// Reserved: 0.
    pub reserved: u32,
}

grows!(trainmaster_reason: 128);

pub(crate) fn kind(kind: ReasonKind) -> u32 {
    use trainmaster_reason_kind as C;
    (match kind {
        ReasonKind::NotConsidered => C::NotConsidered,
        ReasonKind::NeverFits => C::NeverFits,
        ReasonKind::NoRoom => C::NoRoom,
        ReasonKind::Exhausted => C::Exhausted,
        ReasonKind::Behind => C::Behind,
        ReasonKind::Releasing => C::Releasing,
        ReasonKind::Refused => C::Refused,
        ReasonKind::ServerLost => C::ServerLost,
        ReasonKind::Evicted => C::Evicted,
        ReasonKind::Outweighed => C::Outweighed,
        ReasonKind::Held => C::Held,
        ReasonKind::TimeLimit => C::TimeLimit,
        ReasonKind::Cancelled => C::Cancelled,
        ReasonKind::Finished => C::Finished,
        ReasonKind::Unsupported => C::Unsupported,
        ReasonKind::Scheduled => C::Scheduled,
        ReasonKind::PricedOut => C::PricedOut,
        ReasonKind::Unfinishable => C::Unfinishable,
        ReasonKind::Overloaded => C::Overloaded,
        ReasonKind::AccuracyReached => C::AccuracyReached,
        ReasonKind::NothingToGain => C::NothingToGain,
        ReasonKind::OutOfReach => C::OutOfReach,
        ReasonKind::HeldBack => C::HeldBack,
        ReasonKind::Engine => C::Engine,
        ReasonKind::NoDomain => C::NoDomain,
    }) as u32
}

/// Converts a reason for C, with the numbers of a state.
pub(crate) fn view(state: &State, reason: &Reason, keep: &mut Keep) -> trainmaster_reason {
    let mut view = trainmaster_reason {
        size: size_of::<trainmaster_reason>() as u32,
        kind: kind(reason.kind()),
        text: keep.text(reason.describe(state)),
        resource: trainmaster_string::EMPTY,
        server: trainmaster_string::EMPTY,
        needed: 0,
        available: 0,
        limit: 0,
        job: 0,
        until: 0,
        worth: 0,
        cost: 0,
        threshold: 0,
        position: 0,
        reserved: 0,
    };
    let mut named = |resource: Option<ResourceId>, server: Option<ServerId>| {
        let resource = resource.map(|id| keep.text(state.resources.name(id).to_owned()));
        let server = server.map(|id| keep.text(state.server_name(id).to_owned()));
        (view.resource, view.server) =
            (resource.unwrap_or(trainmaster_string::EMPTY), server.unwrap_or(trainmaster_string::EMPTY));
    };
    match reason {
        Reason::NeverFits { resource, needed, largest, server, .. }
        | Reason::NoRoom { resource, needed, largest, server, .. } => {
            named(Some(*resource), *server);
            (view.needed, view.available) = (*needed, *largest);
        }
        Reason::NoDomain { resource, needed, largest, .. } => {
            named(Some(*resource), None);
            (view.needed, view.available) = (*needed, *largest);
        }
        Reason::Exhausted { resource, needed, left, limit, .. } => {
            named(Some(*resource), None);
            (view.needed, view.available, view.limit) = (*needed, *left, *limit);
        }
        Reason::Behind { job, position } => (view.job, view.position) = (job.0, *position),
        Reason::Releasing { server, resource, missing } | Reason::Evicted { server, resource, missing } => {
            named(Some(*resource), Some(*server));
            view.needed = *missing;
        }
        Reason::Refused { retry_at, .. } => view.until = retry_at.0,
        Reason::ServerLost { server } => named(None, Some(*server)),
        Reason::Outweighed { worth, cost, threshold } => {
            (view.worth, view.cost, view.threshold) = (worth.0, cost.0, threshold.0);
        }
        Reason::TimeLimit { limit } => view.limit = limit.0,
        Reason::Scheduled { next_start } => view.until = next_start.0,
        Reason::PricedOut(priced) => {
            named(Some(priced.resource), None);
            (view.worth, view.cost) = (priced.utility.0, priced.cost.0);
            view.until = priced.retry_at.map_or(crate::event::TRAINMASTER_NEVER, |at| at.0);
        }
        Reason::Unfinishable { until, needed, free } => {
            (view.needed, view.available) = (chunks(*needed), chunks(*free));
            view.until = until.0;
        }
        Reason::Overloaded { server, resource, used } => {
            named(Some(*resource), Some(*server));
            view.available = used.0;
        }
        Reason::HeldBack { waiting, server, score } => {
            named(None, Some(*server));
            (view.worth, view.cost) = (waiting.0, score.0);
        }
        Reason::AccuracyReached { accuracy, wanted } => (view.available, view.needed) = (accuracy.0, wanted.0),
        Reason::NothingToGain { accuracy, predicted, .. } => (view.available, view.limit) = (accuracy.0, predicted.0),
        Reason::OutOfReach { wanted, predicted, .. } => (view.needed, view.limit) = (wanted.0, predicted.0),
        Reason::NotConsidered | Reason::Held | Reason::Cancelled | Reason::Finished | Reason::Unsupported { .. } => {}
        Reason::Engine(_) => {}
    }
    view
}

fn chunks(count: u64) -> i64 {
    i64::try_from(count).unwrap_or(i64::MAX)
}

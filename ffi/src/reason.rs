//! Why a job doesn't run: by kind, with numbers, and in words.

use trainmaster_core::{Reason, ResourceId, ServerId, State, reason::ReasonKind};

use crate::{borrow::grows, owned::Keep, text::trainmaster_string};

/// Why a job doesn't run, or has less than planned.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum trainmaster_reason_kind {
    /// A finding that is no reason.
    None = 0,
    /// No decision was made about it yet.
    NotConsidered = 1,
    /// No server could hold even one slot of it: `server` has the most `resource`, `available`, of the `needed`.
    NeverFits = 2,
    /// No room for it now: a slot needs `needed` of `resource`; the most that is free is `available` on `server`.
    NoRoom = 3,
    /// A total is used up, of the cluster, a queue or a tenant: `needed` of `resource`, `available` are left of `limit`.
    Exhausted = 4,
    /// Others go first: it is number `position` in line, behind `job`.
    Behind = 5,
    /// Planned, but `needed` more of `resource` has to be released on `server` first.
    Releasing = 6,
    /// The manager refused it; it is asked again at `until`.
    Refused = 7,
    /// `server` is gone.
    ServerLost = 8,
    /// `server` lacks `needed` of `resource` since other work came.
    Evicted = 9,
    /// It is worth `worth`, and costs others `cost`; the difference has to be above `threshold`.
    Outweighed = 10,
    /// A person holds it.
    Held = 11,
    /// It ran for as long as it may: `limit` milliseconds.
    TimeLimit = 12,
    /// A person cancelled it.
    Cancelled = 13,
    /// Its training is over.
    Finished = 14,
    /// The engine in charge doesn't take such jobs.
    Unsupported = 15,
    /// It goes on at `until`.
    Scheduled = 16,
    /// Its best schedule is worth `worth` and costs `cost`, mostly for `resource`; it is tried again at `until`.
    PricedOut = 17,
    /// Until `until` there is room for `available` of the `needed` chunks that it has left.
    Unfinishable = 18,
    /// `server` carries too much, `available` millionths of its `resource`, and there is no room elsewhere.
    Overloaded = 19,
    /// Its accuracy, `available` in millionths, is the `needed` one.
    AccuracyReached = 20,
    /// Its accuracy is `available`, in millionths, and would hardly be more in the end: `limit`.
    NothingToGain = 21,
    /// Its accuracy would be `limit` in the end, in millionths, and `needed` is asked for.
    OutOfReach = 22,
    /// The engine's policy scores waiting, `worth`, above its best place, on `server`: `cost`.
    HeldBack = 23,
    /// A reason of the engine's own: `text` has it.
    Engine = 24,
}

/// A reason. Its kind says which of the other fields it has; those it hasn't are 0 or empty.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct trainmaster_reason {
    /// Set by the library: as much of the struct is there. What your header has beyond it isn't.
    pub size: u32,
    /// One of TRAINMASTER_REASON_KIND_*.
    pub kind: u32,
    /// In words for people, with the numbers.
    pub text: trainmaster_string,
    /// A resource's name; amounts are in its units (see struct trainmaster_amount).
    pub resource: trainmaster_string,
    /// A server's name.
    pub server: trainmaster_string,
    /// What is needed, or missing.
    pub needed: i64,
    /// What there is.
    pub available: i64,
    /// What there may be in all.
    pub limit: i64,
    /// Another job.
    pub job: u64,
    /// In milliseconds, as events are stamped; TRAINMASTER_NEVER where there is no such time.
    pub until: i64,
    /// In millionths of a unit of utility.
    pub worth: i64,
    /// Likewise.
    pub cost: i64,
    /// Likewise.
    pub threshold: i64,
    /// From 1.
    pub position: u32,
    /// 0.
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
    }) as u32
}

/// A reason for C, as of a state.
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
            view.until = priced.retry_at.map_or(crate::status::TRAINMASTER_NEVER, |at| at.0);
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

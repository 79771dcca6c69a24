//! Reasons in words, with current numbers.

use std::{cmp::Reverse, sync::Arc};

use crate::{
    ids::{ResourceId, ServerId},
    job::Job,
    reason::{PricedOut, Reason, Scope, Worth},
    server::Server,
    settings::Mode,
    state::{Account, State},
    time::{Span, Time},
};

impl Reason {
    /// The reason with current numbers, as far as the plan determines them. A verdict keeps the numbers of its
    /// decision. O(servers).
    pub fn refreshed(&self, state: &State, job: &Job) -> Self {
        match self {
            Self::NoRoom { shape, role, resource, needed, .. } => {
                let free = |server: &Arc<Server>| server.usable()[*resource] - server.planned.amounts[*resource];
                let servers = state.present_servers().filter(|server| server.admits(job) && server.hosts.takes(*role));
                let best = servers.map(|server| (free(server), Reverse(server.id))).max();
                let (largest, server) = best.map_or((0, None), |(free, id)| (free.max(0), Some(id.0)));
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

    /// The reason in words for users of a tenant: with names instead of numbers, except for jobs of other tenants.
    pub fn describe_to(&self, state: &State, tenant: &str) -> String {
        match self {
            Self::Behind { job, position } if state.job(*job).is_some_and(|ahead| ahead.spec.tenant != tenant) => {
                format!("number {position} in line, behind another tenant's job {job}")
            }
            other => other.describe(state),
        }
    }

    /// The reason in words, with names instead of numbers.
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
            Self::NoDomain { level, domain, .. } if domain.is_empty() => {
                format!("all slots must be in one {level}, but no server with the job's labels has a label {level}")
            }
            Self::NoDomain { level, resource, needed, largest, domain } => format!(
                "all slots must be in one {level}, and the smallest shape needs {}; the largest {level} has {} \
                 ({domain})",
                amount(*resource, *needed),
                types.format(*resource, *largest)
            ),
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
                            "needs {needs}; the servers it may use have {limit_text} in all: as the cluster is now it \
                             can't run"
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
                let missed = match priced.missed {
                    none if none == Worth::default() => String::new(),
                    most => format!("; its work was counted coarsely: the best schedule may earn up to {most} more"),
                };
                let retry = priced.retry_at.map_or_else(String::new, |at| format!("; tried again in {}", until(at)));
                format!(
                    "worth {utility} if it ends in {}, but that costs {cost} (payoff {payoff}), mostly for {}: what a \
                     {role} takes of it costs {price} a slot, {idle} where nothing is booked{missed}{retry}",
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

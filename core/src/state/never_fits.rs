//! Check whether a job could run on the present cluster if it were alone.

use std::collections::BTreeSet;

use super::State;
use crate::{
    ids::{ResourceId, ServerId},
    job::{Demand, Job, JobSpec},
    reason::{Reason, Scope},
    resources::{Amounts, CPU},
    server::{Server, is_of_servers},
    shape::Role,
    text::shown,
    topology::Domain,
};

/// Maximum number of values of a label in a text, and of bytes of each.
const MOST_SHOWN: usize = 8;
const LONGEST: usize = 64;

impl State {
    /// Why a job can't run on the present cluster, even alone and in its smallest shape. Either no server could hold
    /// one of its workers or parameter servers, or their total exceeds the capacity of the servers that would take
    /// them, or the limit of its queue or tenant, or no domain of the required level could hold them. `None` if it
    /// could run, or if there are no servers yet. O(servers) for a job that can't run, and that for each GPU type that
    /// it may have. For others: as many servers as its smallest shape needs.
    pub fn never_fits(&self, job: &Job) -> Option<Reason> {
        self.hopeless(&job.spec, &job.worker, &job.server).filter(|_| !self.fits_with_other_type(job))
    }

    /// The same for a job that isn't submitted yet.
    pub(super) fn hopeless(&self, spec: &JobSpec, worker: &Demand, server: &Demand) -> Option<Reason> {
        let all = || self.present_servers().map(|server| &**server);
        all().next()?;
        let reason = self.hopeless_on(all, spec, worker, server);
        reason.or_else(|| self.fits_no_domain(spec, worker, server))
    }

    /// If servers lack a job's labels: the label that no server has, and the values that there are. O(labels of the job
    /// · servers).
    pub(crate) fn missing_label(&self, reason: &Reason, spec: &JobSpec) -> Option<String> {
        let Reason::NeverFits { server: None, .. } = reason else { return None };
        let has =
            |key: &String, value: &String| self.present_servers().any(|server| server.labels.get(key) == Some(value));
        let asked = || spec.labels.iter().filter(|(key, _)| is_of_servers(key));
        let Some((key, value)) = asked().find(|(key, value)| !has(key, value)) else {
            if self.present_servers().any(|server| server.matches(&spec.labels)) {
                // It takes no slots of the role.
                return None;
            }
            let all: Vec<_> =
                asked().take(MOST_SHOWN).map(|(key, value)| format!("{key} = {}", shown(value, LONGEST))).collect();
            return Some(format!("no server has all of {}", all.join(", ")));
        };
        let values: BTreeSet<_> = self.present_servers().filter_map(|server| server.labels.get(key)).collect();
        let listed: Vec<_> = values.iter().take(MOST_SHOWN).map(|value| shown(value, LONGEST)).collect();
        let more = if values.len() > listed.len() { " and others" } else { "" };
        Some(match listed[..] {
            [] => {
                let keys: BTreeSet<_> = self.present_servers().flat_map(|server| server.labels.keys()).collect();
                let listed: Vec<_> = keys.iter().take(MOST_SHOWN).map(|key| shown(key, LONGEST)).collect();
                let there = match listed.len() {
                    0 => String::new(),
                    all => format!(
                        "; there are {}{}",
                        listed.join(", "),
                        if keys.len() > all { " and others" } else { "" }
                    ),
                };
                format!("no server has a label {}{there}", shown(key, LONGEST))
            }
            _ => format!(
                "no server has {} = {}; there are {}{more}",
                shown(key, LONGEST),
                shown(value, LONGEST),
                listed.join(", ")
            ),
        })
    }

    /// Whether a job could run alone on the servers of a domain.
    pub(super) fn fits_in(&self, spec: &JobSpec, worker: &Demand, server: &Demand, domain: &Domain) -> bool {
        let servers = || domain.servers.iter().map(|id| &**self.server(*id)).filter(|server| server.present);
        servers().next().is_some() && self.hopeless_on(servers, spec, worker, server).is_none()
    }

    /// Why a job couldn't run on these servers.
    fn hopeless_on<'a, I: Iterator<Item = &'a Server>>(
        &self,
        servers: impl Fn() -> I,
        spec: &JobSpec,
        worker: &Demand,
        server: &Demand,
    ) -> Option<Reason> {
        let servers = || servers().filter(|server| server.matches(&spec.labels));
        let least = spec.bounds().least();
        let mut both = Amounts::default();
        for (role, demand) in [(Role::Worker, worker), (Role::Server, server)] {
            let count = least.count(role);
            if count == 0 {
                continue;
            }
            let takes = || servers().filter(|server| server.hosts.takes(role));
            let total = demand.amounts.times(count.into());
            both += &total;
            let reason = held_by_none(takes(), role, &demand.amounts).or_else(|| beyond_all(takes(), &total));
            if reason.is_some() {
                return reason;
            }
        }
        beyond_all(servers(), &both).or_else(|| self.beyond_limits(spec, &both))
    }
}

/// Whether no server could hold one slot of a role, even if it were empty.
fn held_by_none<'a>(servers: impl Iterator<Item = &'a Server>, role: Role, demand: &Amounts) -> Option<Reason> {
    let mut best: Option<(ResourceId, i64, ServerId)> = None;
    for server in servers {
        let resource = demand.first_excess(&server.capacity)?;
        let has = server.capacity[resource];
        if best.is_none_or(|(_, most, _)| has > most) {
            best = Some((resource, has, server.id));
        }
    }
    let (resource, largest, server) = match best {
        Some((resource, largest, server)) => (resource, largest, Some(server)),
        None => (CPU, 0, None),
    };
    Some(Reason::NeverFits { role, resource, needed: demand[resource], largest, server })
}

/// Whether the need exceeds the total of these servers.
fn beyond_all<'a>(servers: impl Iterator<Item = &'a Server>, needed: &Amounts) -> Option<Reason> {
    let mut all = Amounts::default();
    for server in servers {
        all += &server.capacity;
        // The first few servers are enough for nearly all jobs.
        needed.first_excess(&all)?;
    }
    let resource = needed.first_excess(&all)?;
    let (needed, limit) = (needed[resource], all[resource]);
    Some(Reason::Exhausted { scope: Scope::Cluster, resource, needed, left: limit, limit })
}

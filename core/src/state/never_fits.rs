//! Whether a job could ever run on the cluster as it is, were it alone.

use super::State;
use crate::{
    ids::{ResourceId, ServerId},
    job::{Demand, Job, JobSpec},
    reason::{Reason, Scope},
    resources::{Amounts, CPU},
    server::Server,
    shape::Role,
};

impl State {
    /// Why this job can't run on the cluster as it is, not even alone in its smallest shape: no server could hold one
    /// of its workers or parameter servers, or they are more in all than the servers that would take them have, or than
    /// its queue or tenant may be given. `None` if it could, or if there are no servers yet. O(servers) for a job that
    /// can't; for others as many servers as its smallest shape needs.
    pub fn never_fits(&self, job: &Job) -> Option<Reason> {
        self.hopeless(&job.spec, &job.worker, &job.server)
    }

    /// The same of a job that isn't there yet.
    pub(super) fn hopeless(&self, spec: &JobSpec, worker: &Demand, server: &Demand) -> Option<Reason> {
        self.present_servers().next()?;
        let least = spec.bounds().least();
        let mut both = Amounts::default();
        for (role, demand) in [(Role::Worker, worker), (Role::Server, server)] {
            let count = least.count(role);
            if count == 0 {
                continue;
            }
            let takes = |server: &Server| server.hosts.takes(role);
            let total = demand.amounts.times(count.into());
            both += &total;
            let reason =
                self.held_by_none(spec, role, &demand.amounts).or_else(|| self.beyond_all(spec, &total, takes));
            if reason.is_some() {
                return reason;
            }
        }
        self.beyond_all(spec, &both, |_| true).or_else(|| self.beyond_limits(spec, &both))
    }

    fn matching<'a>(
        &'a self,
        spec: &'a JobSpec,
        takes: impl Fn(&Server) -> bool + 'a,
    ) -> impl Iterator<Item = &'a Server> + 'a {
        let servers = self.present_servers().map(|server| &**server);
        servers.filter(move |server| server.matches(&spec.labels) && takes(server))
    }

    /// No server could hold one of a role, were it empty.
    fn held_by_none(&self, spec: &JobSpec, role: Role, demand: &Amounts) -> Option<Reason> {
        let mut best: Option<(ResourceId, i64, ServerId)> = None;
        for server in self.matching(spec, |server| server.hosts.takes(role)) {
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

    /// It is more than these servers have in all.
    fn beyond_all(&self, spec: &JobSpec, needed: &Amounts, takes: impl Fn(&Server) -> bool) -> Option<Reason> {
        let mut all = Amounts::default();
        for server in self.matching(spec, takes) {
            all += &server.capacity;
            // The first few have enough for nearly every job.
            needed.first_excess(&all)?;
        }
        let resource = needed.first_excess(&all)?;
        let (needed, limit) = (needed[resource], all[resource]);
        Some(Reason::Exhausted { scope: Scope::Cluster, resource, needed, left: limit, limit })
    }
}

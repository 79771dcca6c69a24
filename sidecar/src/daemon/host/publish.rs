//! Who is told what: managers their plans, training programs their assignments.

use std::collections::{BTreeMap, BTreeSet};

use trainmaster_core::{Issue, Job, JobId, Mode, ServerSpec, State, Verdict};
use trainmaster_feed::{JobAssignment, Standing};
use trainmaster_proto::{JobFacts, external_to_wire, job_plan, slots_to_wire, v1, work_to_wire};

use super::{journal::Effect, owner::Owner};
use crate::daemon::session::Outbox;

/// An attached manager.
pub(super) struct Session {
    pub(super) stream: u64,
    pub(super) outbox: Outbox,
    /// Jobs it was told to run.
    pub(super) told: BTreeSet<u64>,
}

/// The stream on which a manager speaks.
#[derive(Debug)]
pub(super) struct OpenStream {
    pub(super) id: u64,
    /// It may take servers over from a manager that is away: an administrator's, or an adapter's inside the daemon.
    pub(super) trusted: bool,
    /// Whoever may submit may say which of its jobs a submission is.
    pub(super) takes_submissions: bool,
    /// What it has brought since its snapshot began.
    pub(super) brought: Brought,
}

/// What a manager that is known by a token of its own has brought: no more than its share, so that there is room for
/// the others.
#[derive(Debug, Default)]
pub(super) struct Brought {
    servers: BTreeSet<String>,
    resources: BTreeSet<String>,
    slots: BTreeMap<JobId, usize>,
    all_slots: usize,
}

/// Of 100,000 servers.
const SERVERS: usize = 32_768;
/// Of 256 names.
const RESOURCES: usize = 64;
/// Slots of jobs that it sees, twice what the largest clusters run.
const SLOTS: usize = 250_000;

impl Brought {
    /// Counts a server.
    ///
    /// # Errors
    /// There is more of something than its share.
    pub(super) fn server(&mut self, spec: &ServerSpec) -> Result<(), String> {
        let is_new = !self.servers.contains(&spec.name);
        if is_new && self.servers.len() >= SERVERS {
            return Err(format!("{SERVERS} servers are the most that one manager may have"));
        }
        self.resources(spec.capacity.keys().chain(&spec.devices))?;
        if is_new {
            self.servers.insert(spec.name.clone());
        }
        Ok(())
    }

    /// Counts names of resources.
    ///
    /// # Errors
    /// As [`Self::server`].
    pub(super) fn resources<'a>(&mut self, names: impl Iterator<Item = &'a String>) -> Result<(), String> {
        let new: BTreeSet<&String> = names.filter(|name| !self.resources.contains(*name)).collect();
        if self.resources.len() + new.len() > RESOURCES {
            return Err(format!("{RESOURCES} resources are the most that one manager may name"));
        }
        let new: Vec<String> = new.into_iter().cloned().collect();
        self.resources.extend(new);
        Ok(())
    }

    pub(super) fn without(&mut self, server: &str) {
        self.servers.remove(server);
    }

    /// Counts the slots of a job.
    ///
    /// # Errors
    /// As [`Self::server`].
    pub(super) fn slots(&mut self, job: JobId, slots: usize) -> Result<(), String> {
        let others = self.all_slots - self.slots.get(&job).copied().unwrap_or_default();
        if others + slots > SLOTS {
            return Err(format!("{SLOTS} slots are the most that one manager may see"));
        }
        self.all_slots = others + slots;
        self.slots.insert(job, slots);
        Ok(())
    }

    /// It has nothing of a job any more, whoever runs that.
    pub(super) fn gives_up(&mut self, job: JobId) {
        self.all_slots -= self.slots.remove(&job).unwrap_or_default();
    }
}

/// A manager whose snapshot was taken, and who waits for its first plan.
pub(super) struct Attaching {
    pub(super) manager: String,
    pub(super) stream: u64,
    pub(super) outbox: Outbox,
}

/// What is to be told once it is on disk.
pub(super) struct News {
    term: u64,
    decision: u64,
    plans: Vec<v1::JobPlan>,
    assignments: Vec<(JobId, JobAssignment)>,
    attached: Vec<Attaching>,
    /// Managers that get everything, and everything.
    full: Vec<String>,
    all: Vec<v1::JobPlan>,
}

impl Owner {
    /// Gathers what changed since the last call.
    pub(super) fn publish(&mut self) {
        let issues = self.scheduler.take_issues();
        let over = std::mem::take(&mut self.over);
        let catches_up = self.withheld && self.journal.error().is_none();
        let state = self.scheduler.state();
        // Whoever wants everything waits for the disk, unless everything is to be given back.
        let waits = self.journal.error().is_some() && state.mode == Mode::Active;
        let wanted = !self.wants_full.is_empty() && !self.full_waits && !waits;
        if issues.is_empty() && over.is_empty() && !wanted && !catches_up {
            return;
        }
        let changed = issues.iter().filter_map(|issue| state.job(issue.job));
        let told = |job: &std::sync::Arc<Job>| (job.id, self.assignment(job));
        let mut assignments: Vec<_> =
            if catches_up { state.jobs.values().map(told).collect() } else { changed.map(told).collect() };
        let ended = over.iter().filter_map(|plan| self.ended.get(JobId(plan.job)));
        assignments.extend(ended.map(|ended| (ended.id(), self.last_assignment(ended))));
        let mut plans: Vec<_> = issues.iter().map(|issue| self.plan(issue)).collect();
        // Later entries of a job win: those that ended have the better words.
        plans.extend(over);
        let all = if wanted { self.full_plan() } else { Vec::new() };
        let (term, decision) = (state.term.0, state.decision.0);
        if catches_up {
            self.withheld = false;
        }
        let (full, attached) = match wanted {
            true => (std::mem::take(&mut self.wants_full).into_iter().collect(), std::mem::take(&mut self.attaching)),
            false => Default::default(),
        };
        self.full_waits |= wanted;
        let news = News { term, decision, plans, assignments, attached, full, all };
        self.journal.then(Effect::Publish(news));
    }

    fn full_plan(&self) -> Vec<v1::JobPlan> {
        self.scheduler.all_issues().iter().map(|issue| self.plan(issue)).collect()
    }

    fn plan(&self, issue: &Issue) -> v1::JobPlan {
        let state = self.scheduler.state();
        let spec = state.job(issue.job).map(|job| &*job.spec);
        let ended = self.ended.get(issue.job);
        let name = spec.map(|spec| spec.name.as_str()).or(ended.map(|ended| ended.status.name.as_str()));
        let tenant = spec.map(|spec| spec.tenant.as_str()).or(ended.map(|ended| ended.status.tenant.as_str()));
        let token = self.secrets.get(&issue.job).map(String::as_str).unwrap_or_default();
        let active = state.job(issue.job).and_then(|job| job.external.as_ref()).map(external_to_wire);
        let facts = JobFacts {
            name: name.unwrap_or_default(),
            tenant: tenant.unwrap_or_default(),
            spec,
            external: active.or_else(|| ended.and_then(|ended| ended.status.external.clone())),
            ended: ended.map(|ended| ended.status.state.as_str()).unwrap_or_default(),
            token,
            grace: self.options.grace,
        };
        job_plan(state, issue, facts)
    }

    /// What an active job's programs are to do.
    fn assignment(&self, job: &Job) -> JobAssignment {
        let state = self.scheduler.state();
        let given = match state.effective(job) {
            Verdict::Run(allocation) => Some(allocation),
            // Handed back: what runs goes on.
            Verdict::Release(_) if state.mode != Mode::Active => {
                job.seen.allocation.clone().or_else(|| job.issued.allocation.clone())
            }
            _ => None,
        };
        JobAssignment {
            name: job.spec.name.clone(),
            tenant: job.spec.tenant.clone(),
            cluster: job.external.as_ref().map_or_else(String::new, |external| external.cluster.clone()),
            token_hash: job.token_hash,
            incarnation: job.issued.incarnation,
            revision: job.issued.revision,
            standing: if given.is_some() { Standing::Run } else { Standing::Stop },
            slots: given.as_ref().map(|allocation| slots_to_wire(state, allocation)).unwrap_or_default(),
            work: given.as_ref().map(|allocation| work_to_wire(allocation)).unwrap_or_default(),
            grace: self.options.grace,
            accepted: job.learnt.reported.clone(),
        }
    }

    /// At the start: the feed knows nothing yet.
    pub(super) fn tell_feed_everything(&mut self) {
        for ended in self.ended.iter() {
            self.feed.set(ended.id(), self.last_assignment(ended));
        }
        for job in self.scheduler.state().jobs.values() {
            self.feed.set(job.id, self.assignment(job));
        }
    }

    /// It is on disk: everybody hears of it.
    pub(super) fn deliver(&mut self, news: News) {
        let News { term, decision, plans, assignments, attached, full, all } = news;
        self.full_waits &= full.is_empty();
        for (job, assignment) in assignments {
            self.feed.set(job, assignment);
        }
        for plan in plans.iter().chain(&all) {
            match plan.ended.is_empty() {
                true => _ = self.numbers.insert(plan.job, (plan.incarnation, plan.revision)),
                false => _ = self.numbers.remove(&plan.job),
            }
        }
        let state = self.scheduler.state();
        // Who is known by a token of its own may be given nothing that runs elsewhere, even if nobody else is there.
        let alone = self.sessions.len() + attached.len() == 1;
        let streams = &self.streams;
        let several = |manager: &str| !alone || streams.get(manager).is_none_or(|open| !open.trusted);
        for (manager, session) in &mut self.sessions {
            let mine = plans.iter().filter_map(|plan| session.part(manager, state, several(manager), plan));
            let mine: Vec<_> = mine.collect();
            if !mine.is_empty() {
                session.outbox.put(false, term, decision, mine);
            }
        }
        for Attaching { manager, stream, outbox } in attached {
            // While its attachment was being written it may have gone, or been replaced.
            if self.streams.get(&manager).map(|open| open.id) != Some(stream) {
                outbox.close(tonic::Status::aborted("this stream is no longer the manager's"));
                continue;
            }
            self.sessions.insert(manager, Session { stream, outbox, told: BTreeSet::new() });
        }
        for manager in full {
            let Some(session) = self.sessions.get_mut(&manager) else { continue };
            session.told.clear();
            let mine: Vec<_> =
                all.iter().filter_map(|plan| session.part(&manager, state, several(&manager), plan)).collect();
            session.outbox.put(true, term, decision, mine);
        }
        self.metrics.managers.set(self.sessions.len() as i64);
    }
}

impl Owner {
    /// It is not on disk: what gives nothing is told, under the numbers that are known already, and the rest once it is
    /// there. A manager that has just come gets its first plan where that gives nothing at all.
    pub(super) fn deliver_what_takes(&mut self, mut news: News) {
        self.withheld = true;
        self.full_waits &= news.full.is_empty();
        let gives = |plan: &v1::JobPlan| plan.action() == v1::Action::Run;
        news.plans.retain(|plan| !gives(plan));
        for plan in news.plans.iter_mut().chain(&mut news.all) {
            (plan.incarnation, plan.revision) = self.numbers.get(&plan.job).copied().unwrap_or_default();
        }
        news.assignments.retain(|(_, assignment)| assignment.standing != Standing::Run);
        if news.all.iter().any(gives) {
            news.all.clear();
            self.wants_full.extend(news.full.drain(..));
            self.attaching.append(&mut news.attached);
        }
        self.deliver(news);
    }
}

/// A plan for a manager that doesn't run the job: without what programs are started with.
fn without_commands(plan: &v1::JobPlan) -> v1::JobPlan {
    v1::JobPlan {
        token: String::new(),
        worker_command: String::new(),
        server_command: String::new(),
        environment: Default::default(),
        ..plan.clone()
    }
}

impl Session {
    /// What of a job's plan concerns this manager: a job runs where its servers are.
    fn part(&mut self, manager: &str, state: &State, several: bool, plan: &v1::JobPlan) -> Option<v1::JobPlan> {
        if plan.action() != v1::Action::Run {
            let told = self.told.contains(&plan.job);
            if plan.action() == v1::Action::Stop {
                self.told.remove(&plan.job);
            }
            let from = plan.external.as_ref().map(|external| &*external.cluster);
            return match from {
                _ if told || !several || from == Some(manager) => Some(plan.clone()),
                // Another manager's job is nothing to this one.
                Some(_) => None,
                None => Some(without_commands(plan)),
            };
        }
        let here = |slot: &v1::Slot| {
            state.find_server(&slot.server).and_then(|server| state.manager_of(server.id)) == Some(manager)
        };
        if !several || plan.slots.iter().any(here) {
            self.told.insert(plan.job);
            return Some(plan.clone());
        }
        // It moved to another manager's servers.
        self.told.remove(&plan.job).then(|| v1::JobPlan {
            action: v1::Action::Wait.into(),
            slots: Vec::new(),
            reason: "it runs on servers of another manager".into(),
            ..without_commands(plan)
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_manager_brings_no_more_than_its_share() {
        let mut brought = Brought::default();
        let server = |name: String, resource: &str| ServerSpec {
            name,
            capacity: [("cpu".to_owned(), 1000), (resource.to_owned(), 1)].into(),
            ..ServerSpec::default()
        };
        for at in 0..RESOURCES - 1 {
            brought.server(&server("one".into(), &format!("r{at}"))).unwrap();
        }
        assert!(brought.server(&server("one".into(), "one-more")).unwrap_err().contains("64 resources"));
        assert!(brought.resources([&"one-more".to_owned()].into_iter()).is_err());
        for at in 1..SERVERS {
            brought.server(&server(format!("s{at}"), "r0")).unwrap();
        }
        assert!(brought.server(&server("one-more".into(), "r0")).unwrap_err().contains("32768 servers"));
        brought.server(&server("one".into(), "r0")).unwrap();
        brought.without("one");
        brought.server(&server("one-more".into(), "r0")).unwrap();
        brought.slots(JobId(1), SLOTS).unwrap();
        assert!(brought.slots(JobId(2), 1).unwrap_err().contains("250000 slots"));
        brought.gives_up(JobId(1));
        brought.slots(JobId(2), SLOTS).unwrap();
    }
}

//! Messages to others: plans for managers, assignments for training programs.

use std::collections::BTreeSet;

use trainmaster_core::{Issue, Job, JobId, Mode, State, Verdict};
use trainmaster_feed::{JobAssignment, Standing};
use trainmaster_host::assignment;
use trainmaster_proto::{JobFacts, external_to_wire, job_plan, v1};

use super::{
    journal::Effect,
    owner::Owner,
    streams::{Attaching, News, Session},
};

impl Owner {
    /// Collects the changes since the last call.
    pub(super) fn publish(&mut self) {
        let issues = self.scheduler.take_issues();
        let over = std::mem::take(&mut self.over);
        let catches_up = self.withheld && self.journal.error().is_none();
        let state = self.scheduler.state();
        // A full plan waits for the disk, unless every job is released.
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
        // A later entry of a job replaces an earlier one, because ended jobs have the better text.
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

    /// The assignment of an active job's programs.
    fn assignment(&self, job: &Job) -> JobAssignment {
        let state = self.scheduler.state();
        let given = match state.effective(job) {
            Verdict::Run(allocation) => Some(allocation),
            // A released job keeps its running slots.
            Verdict::Release(_) if state.mode != Mode::Active => {
                job.seen.allocation.clone().or_else(|| job.issued.allocation.clone())
            }
            _ => None,
        };
        assignment(state, job, given.as_deref(), self.options.grace)
    }

    /// Fills the feed at the start.
    pub(super) fn tell_feed_everything(&mut self) {
        for ended in self.ended.iter() {
            self.feed.set(ended.id(), self.last_assignment(ended));
        }
        for job in self.scheduler.state().jobs.values() {
            self.feed.set(job.id, self.assignment(job));
        }
    }

    /// Sends messages whose records are on disk.
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
        // A manager with its own token gets no job of another cluster, even if it is the only manager.
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
            // The stream may have ended or been replaced during the write.
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
    /// Handles messages whose records aren't on disk. Messages that only take resources away are sent with the numbers
    /// that are already known, and the others once they are on disk. A new manager gets its first plan if that gives no
    /// resources.
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

/// A job's plan for a manager that doesn't run it, without the data for starting programs.
fn without_commands(plan: &v1::JobPlan) -> v1::JobPlan {
    v1::JobPlan {
        token: String::new(),
        worker_command: String::new(),
        server_command: String::new(),
        worker_demand: Default::default(),
        server_demand: Default::default(),
        environment: Default::default(),
        ..plan.clone()
    }
}

impl Session {
    /// The part of a job's plan for this manager: its own servers.
    fn part(&mut self, manager: &str, state: &State, several: bool, plan: &v1::JobPlan) -> Option<v1::JobPlan> {
        if plan.action() != v1::Action::Run {
            let told = self.told.contains(&plan.job);
            if plan.action() == v1::Action::Stop {
                self.told.remove(&plan.job);
            }
            let from = plan.external.as_ref().map(|external| &*external.cluster);
            return match from {
                _ if told || !several || from == Some(manager) => Some(plan.clone()),
                // A job of another manager isn't part of the plan.
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
        // The job moved to servers of another manager.
        self.told.remove(&plan.job).then(|| v1::JobPlan {
            action: v1::Action::Wait.into(),
            slots: Vec::new(),
            reason: "it runs on servers of another manager".into(),
            ..without_commands(plan)
        })
    }
}

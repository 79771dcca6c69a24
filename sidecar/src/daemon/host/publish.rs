//! Who is told what: managers their plans, training programs their assignments.

use std::collections::BTreeSet;

use trainmaster_core::{Issue, Job, JobId, Mode, Verdict};
use trainmaster_feed::{JobAssignment, Standing};
use trainmaster_proto::{JobFacts, external_to_wire, job_plan, slots_to_wire, v1, work_to_wire};

use super::{journal::Effect, owner::Owner};
use crate::daemon::session::Outbox;

/// An attached manager.
pub(super) struct Session {
    pub(super) stream: u64,
    pub(super) outbox: Outbox,
    /// Jobs it was told to run.
    told: BTreeSet<u64>,
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
        if issues.is_empty() && over.is_empty() && self.wants_full.is_empty() {
            return;
        }
        let state = self.scheduler.state();
        let mut assignments: Vec<_> =
            issues.iter().filter_map(|issue| state.job(issue.job)).map(|job| (job.id, self.assignment(job))).collect();
        let ended = over.iter().filter_map(|plan| self.ended.get(JobId(plan.job)));
        assignments.extend(ended.map(|ended| (ended.id(), self.last_assignment(ended))));
        let mut plans: Vec<_> = issues.iter().map(|issue| self.plan(issue)).collect();
        // Later entries of a job win: those that ended have the better words.
        plans.extend(over);
        let full: Vec<String> = std::mem::take(&mut self.wants_full).into_iter().collect();
        let all = if full.is_empty() { Vec::new() } else { self.full_plan() };
        let news = News {
            term: state.term.0,
            decision: state.decision.0,
            plans,
            assignments,
            attached: std::mem::take(&mut self.attaching),
            full,
            all,
        };
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
        let token = self.secrets.get(&issue.job).map(String::as_str).unwrap_or_default();
        let active = state.job(issue.job).and_then(|job| job.external.as_ref()).map(external_to_wire);
        let facts = JobFacts {
            name: name.unwrap_or_default(),
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
            Verdict::Release(_) if state.mode != Mode::Active => job.observed.clone().or_else(|| job.issued.clone()),
            _ => None,
        };
        JobAssignment {
            name: job.spec.name.clone(),
            token_hash: job.token_hash,
            incarnation: job.incarnation,
            revision: job.revision,
            standing: if given.is_some() { Standing::Run } else { Standing::Stop },
            slots: given.as_ref().map(|allocation| slots_to_wire(state, allocation)).unwrap_or_default(),
            work: given.as_ref().map(|allocation| work_to_wire(allocation)).unwrap_or_default(),
            grace: self.options.grace,
            accepted: job.reported.clone(),
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
        for (job, assignment) in assignments {
            self.feed.set(job, assignment);
        }
        let homes = &self.homes;
        let several = self.sessions.len() + attached.len() > 1;
        for (manager, session) in &mut self.sessions {
            let mine = plans.iter().filter_map(|plan| session.part(manager, homes, several, plan));
            let mine: Vec<_> = mine.collect();
            if !mine.is_empty() {
                session.outbox.put(false, term, decision, mine);
            }
        }
        for Attaching { manager, stream, outbox } in attached {
            // While its attachment was being written it may have gone, or been replaced.
            if self.streams.get(&manager) != Some(&stream) {
                outbox.close(tonic::Status::aborted("this stream is no longer the manager's"));
                continue;
            }
            self.sessions.insert(manager, Session { stream, outbox, told: BTreeSet::new() });
        }
        for manager in full {
            let Some(session) = self.sessions.get_mut(&manager) else { continue };
            session.told.clear();
            let mine: Vec<_> = all.iter().filter_map(|plan| session.part(&manager, homes, several, plan)).collect();
            session.outbox.put(true, term, decision, mine);
        }
        self.metrics.managers.set(self.sessions.len() as i64);
    }
}

impl Session {
    /// What of a job's plan concerns this manager: a job runs where its servers are.
    fn part(
        &mut self,
        manager: &str,
        homes: &std::collections::HashMap<String, String>,
        several: bool,
        plan: &v1::JobPlan,
    ) -> Option<v1::JobPlan> {
        if plan.action() != v1::Action::Run {
            if plan.action() == v1::Action::Stop {
                self.told.remove(&plan.job);
            }
            return Some(plan.clone());
        }
        let here = |slot: &v1::Slot| homes.get(&slot.server).is_some_and(|home| home == manager);
        if !several || plan.slots.iter().any(here) {
            self.told.insert(plan.job);
            return Some(plan.clone());
        }
        // It moved to another manager's servers.
        self.told.remove(&plan.job).then(|| v1::JobPlan {
            action: v1::Action::Wait.into(),
            slots: Vec::new(),
            token: String::new(),
            reason: "it runs on servers of another manager".into(),
            ..plan.clone()
        })
    }
}

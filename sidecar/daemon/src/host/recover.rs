//! Recovery of the scheduler from the store.

use std::{collections::HashMap, path::Path};

use trainmaster_core::{
    Event, Policy, Scheduler, Settings, Time, engines,
    journal::{JournalError, Record},
};
use trainmaster_host::{Clock, begin};

use super::Opened;
use crate::{
    ServeError,
    ended::EndedJobs,
    store::{Beside, Loaded, StoreError, Write, disk::Disk, faults::Faults},
};

impl Opened {
    /// Opens a state folder. It replays the journal or begins a new one, in a new term.
    ///
    /// # Errors
    /// The settings are invalid, or the store is unusable. Acknowledged data is never dropped.
    pub(crate) fn open(
        folder: &Path,
        settings: Settings,
        policies: Vec<Policy>,
        ended_jobs: usize,
        history: u64,
        faults: Faults,
    ) -> Result<Self, ServeError> {
        // Settings are checked before any file is changed.
        let fresh = Scheduler::new(settings.clone()).map_err(ServeError::Settings)?;
        let (disk, mut loaded) = Disk::open(folder, history, faults)?;
        let mut scheduler = match loaded.records.is_empty() {
            true => fresh,
            false => restore(disk.path(), &loaded)?,
        };
        let mut clock = Clock::after(scheduler.state().now);
        scheduler.start_journal();
        let now = clock.now();
        if *scheduler.state().settings != settings && !loaded.records.is_empty() {
            tracing::info!(engine = settings.engine, "the settings changed since the last run");
        }
        let term = begin(&mut scheduler, now, loaded.term, &settings)
            .map_err(|error| ServeError::Config(error.to_string()))?;
        follow(&mut scheduler, now, &policies);
        let (ended, forgotten) = EndedJobs::new(ended_jobs, std::mem::take(&mut loaded.ended));
        let active = |job: &trainmaster_core::JobId| scheduler.state().job(*job).is_some();
        let secrets: HashMap<_, _> = loaded.secrets.into_iter().filter(|(job, _)| active(job)).collect();
        let beside = Beside { term: Some(term), forgotten, ..Beside::default() };
        let first = Write { records: scheduler.drain_journal(), beside };
        Ok(Self { scheduler, disk, secrets, ended, first, clock })
    }
}

/// Sets these policies, if the engine or the fallback engine uses policies.
fn follow(scheduler: &mut Scheduler, now: Time, policies: &[Policy]) {
    let settings = &scheduler.state().settings;
    let learns = |name: &String| engines::find(name).is_ok_and(|entry| entry.has("policy"));
    if ![&settings.engine, &settings.fallback].into_iter().any(learns) {
        return;
    }
    for entry in engines::REGISTRY.iter().filter(|entry| entry.inputs.is_some()) {
        let policy = policies.iter().find(|policy| policy.engine() == entry.name);
        if scheduler.state().policies.get(entry.name).map(|known| known.hash()) == policy.map(Policy::hash) {
            continue;
        }
        let (engine, id) = (entry.name.to_owned(), policy.map_or_else(|| "none".into(), Policy::id));
        match scheduler.apply(now, Event::PolicySet { engine, policy: policy.cloned().map(Box::new) }) {
            Ok(()) => tracing::info!(engine = entry.name, policy = id, "the engine follows this policy from now on"),
            Err(error) => tracing::warn!(engine = entry.name, %error, "the engine decides as before"),
        }
    }
}

/// A record and its number.
type Numbered<'a> = (u64, &'a [u8]);

fn restore(path: &Path, loaded: &Loaded) -> Result<Scheduler, ServeError> {
    let records: Vec<Numbered<'_>> = (loaded.first..).zip(loaded.records.iter().map(Vec::as_slice)).collect();
    let find = |number: Option<u64>| records.iter().position(|(at, _)| Some(*at) == number);
    let Some(last) = find(loaded.snapshot) else {
        return Err(corrupt(path, "the journal".into(), "it has no snapshot to start from".into()));
    };
    let (number, frame) = records[last];
    let Err(problem) = Record::decode(frame) else { return replay(path, loaded, &records[last..]) };
    // The records since the previous snapshot have the same content.
    let Some(previous) = find(loaded.previous) else {
        return Err(corrupt(path, format!("journal record {number}"), problem));
    };
    tracing::error!(record = number, problem, "the last snapshot is unreadable; replaying from the one before it");
    let kept: Vec<Numbered<'_>> = records[previous..].iter().copied().filter(|(at, _)| *at != number).collect();
    replay(path, loaded, &kept)
}

fn replay(path: &Path, loaded: &Loaded, records: &[Numbered<'_>]) -> Result<Scheduler, ServeError> {
    tracing::info!(records = records.len(), "replaying the journal");
    let frames = records.iter().map(|(_, frame)| *frame);
    Scheduler::restore(frames).map_err(|error| explain(path, loaded, records, &error))
}

fn explain(path: &Path, loaded: &Loaded, records: &[Numbered<'_>], error: &JournalError) -> ServeError {
    let number = |at: usize| records[at].0;
    match error {
        JournalError::NoSnapshot => corrupt(path, "the journal".into(), error.to_string()),
        JournalError::Unreadable { at, problem } => {
            corrupt(path, format!("journal record {}", number(*at)), problem.clone())
        }
        JournalError::Settings { at, problem } => ServeError::Replay(format!(
            "journal record {} of {}: {problem}. This program no longer has what it needs; start version {} once and \
             stop it in good order, or change the setting there first",
            number(*at),
            path.display(),
            loaded.version
        )),
        JournalError::Diverged { at, ticket } => ServeError::Replay(format!(
            "journal record {} of {}: the decision of {ticket} comes out differently in this version ({}); it was \
             written by version {}. Start that version once and stop it in good order: it then leaves a snapshot that \
             any version reads",
            number(*at),
            path.display(),
            env!("CARGO_PKG_VERSION"),
            loaded.version
        )),
    }
}

fn corrupt(path: &Path, what: String, problem: String) -> ServeError {
    ServeError::Store(StoreError::Corrupt { path: path.to_owned(), what, problem })
}

#[cfg(test)]
mod tests {
    use trainmaster_core::JobSpec;

    use super::*;
    use trainmaster_policy::Choice;

    #[test]
    fn engines_follow_what_is_configured_now() {
        let policies = Choice::Shipped.load().policies;
        let of = |engine: &str| Scheduler::new(Settings { engine: engine.into(), ..Settings::default() }).unwrap();
        let mut scheduler = of("mlfs");
        follow(&mut scheduler, Time(0), &policies);
        assert!(!policies.is_empty());
        for policy in &policies {
            assert_eq!(scheduler.state().policies[policy.engine()].hash(), policy.hash());
        }
        follow(&mut scheduler, Time(0), &[]);
        assert!(scheduler.state().policies.is_empty());
        // An engine without a policy gets no event about policies.
        let mut other = of("optimus");
        follow(&mut other, Time(0), &policies);
        assert!(other.state().policies.is_empty());
    }

    /// A snapshot, a job, a snapshot, a job.
    fn loaded() -> Loaded {
        let mut scheduler = Scheduler::new(Settings { engine: "fifo".into(), ..Settings::default() }).unwrap();
        scheduler.start_journal();
        for (at, name) in ["a", "b"].into_iter().enumerate() {
            let spec = Box::new(JobSpec::minimal(name));
            let event = Event::JobSubmitted { spec, external: None, token_hash: None };
            scheduler.apply(Time(at as i64), event).unwrap();
            if at == 0 {
                assert!(scheduler.snapshot());
            }
        }
        let records = scheduler.drain_journal();
        Loaded { first: 7, records, previous: Some(7), snapshot: Some(9), version: "0.0.9".into(), ..Loaded::default() }
    }

    fn restored(loaded: &Loaded) -> Result<usize, String> {
        let path = Path::new("journal.redb");
        restore(path, loaded).map(|scheduler| scheduler.state().jobs.len()).map_err(|error| error.to_string())
    }

    fn damage(loaded: &mut Loaded, at: usize) {
        let record = &mut loaded.records[at];
        let middle = record.len() / 2;
        record[middle] ^= 1;
    }

    #[test]
    fn a_damaged_last_snapshot_is_made_up_for() {
        let mut loaded = loaded();
        assert_eq!(restored(&loaded), Ok(2));
        damage(&mut loaded, 2);
        assert_eq!(restored(&loaded), Ok(2));
        loaded.previous = None;
        let error = restored(&loaded).unwrap_err();
        assert!(error.starts_with("journal.redb: journal record 9 is unreadable: its checksum is wrong."), "{error}");
    }

    #[test]
    fn a_damaged_event_is_named_and_nothing_is_dropped() {
        let mut loaded = loaded();
        damage(&mut loaded, 3);
        let error = restored(&loaded).unwrap_err();
        assert!(error.contains("journal record 10 is unreadable") && error.contains("from a backup"), "{error}");
        loaded.records[3].truncate(5);
        assert!(restored(&loaded).unwrap_err().contains("record 10 is unreadable: it is shorter"));
    }

    #[test]
    fn a_journal_without_its_snapshot_is_refused() {
        let mut loaded = loaded();
        loaded.snapshot = None;
        assert!(restored(&loaded).unwrap_err().contains("no snapshot to start from"));
    }
}

//! Engines for tests of the code around engines. They are in no registry, and need the feature `testing`.

use std::{collections::BTreeMap, sync::Arc};

use crate::{
    decision::{Allocation, DeviceShare, Slot, Verdict},
    engine::{Engine, EngineError, Round, Triggers},
    ids::ServerId,
    reason::Reason,
    shape::Role,
    time::Span,
};

type Decide = dyn Fn(&mut Round<'_>, usize) -> Result<(), EngineError> + Send + Sync;

/// An engine whose decisions a test scripts.
///
/// ```
/// use std::sync::Arc;
/// use trainmaster_core::{Scheduler, Settings, testing::Scripted};
///
/// let engine = Arc::new(Scripted::panicking());
/// let scheduler = Scheduler::with_engine(Settings::default(), engine).unwrap();
/// ```
pub struct Scripted {
    triggers: Triggers,
    decide: Box<Decide>,
}

impl Scripted {
    /// An engine that runs at arrivals and departures and calls `decide` with the round and the number of earlier
    /// decisions.
    pub fn new(decide: impl Fn(&mut Round<'_>, usize) -> Result<(), EngineError> + Send + Sync + 'static) -> Self {
        Self { triggers: Triggers { interval: None, arrival: true, departure: true }, decide: Box::new(decide) }
    }

    /// In the n-th decision, the workers of the j-th job, in the order of numbers, get the servers `script[n][j]`. A
    /// job without servers waits. The last line of the script applies to all further decisions. Each worker gets one
    /// device, on servers that list devices.
    pub fn places(script: Vec<Vec<Vec<u32>>>) -> Self {
        Self::new(move |round, decision| {
            let mut used: BTreeMap<u32, u16> = BTreeMap::new();
            let line = &script[decision.min(script.len() - 1)];
            for (job, servers) in round.state.jobs.values().zip(line) {
                let slots = servers.iter().enumerate().map(|(index, at)| {
                    let server = ServerId(*at);
                    let lists_devices = !round.state.server(server).devices.is_empty();
                    let device = used.entry(*at).or_default();
                    let share = lists_devices.then_some(DeviceShare { device: *device, milli: 1000 });
                    *device += 1;
                    Slot { role: Role::Worker, index: index as u32, server, devices: share.into_iter().collect() }
                });
                let allocation = Allocation::new(slots.collect());
                let verdict = match allocation.shape().is_empty() {
                    true => Verdict::Wait(Reason::NotConsidered),
                    false => Verdict::Run(Arc::new(allocation)),
                };
                round.proposal.changes.push((job.id, verdict));
            }
            Ok(())
        })
    }

    /// An engine that panics at each decision.
    pub fn panicking() -> Self {
        Self::new(|_, _| panic!("on purpose, in the engine"))
    }

    /// The same engine, which runs at intervals as well.
    pub fn every(mut self, interval: Span) -> Self {
        self.triggers.interval = Some(interval);
        self
    }
}

impl Engine for Scripted {
    /// Number of successful decisions.
    type Memo = u32;
    type Index = ();

    fn triggers(&self) -> Triggers {
        self.triggers
    }

    fn decide(&self, round: &mut Round<'_>, decisions: &mut u32) -> Result<(), EngineError> {
        (self.decide)(round, *decisions as usize)?;
        *decisions += 1;
        Ok(())
    }
}

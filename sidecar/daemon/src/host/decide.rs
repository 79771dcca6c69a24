//! Decisions: their tickets on other threads, and their effects.

use trainmaster_core::{Decision, Time, Verdict, settings::Mode};
use trainmaster_host::{Made, Ran};

use super::{
    journal::Effect,
    owner::{Internal, Owner},
};

impl Owner {
    /// Whether new tickets must wait: a snapshot is due and waits for open tickets, or the journal can't be written.
    pub(super) fn holds_decisions(&self) -> bool {
        self.journal.wants_snapshot() || self.journal.error().is_some()
    }

    /// Opens due tickets and abandons late ones.
    pub(super) fn decide(&mut self, now: Time) {
        let held = self.holds_decisions();
        for run in self.tickets.open(&mut self.scheduler, now, held) {
            let internal = self.internal.clone();
            self.threads.spawn_blocking(move || drop(internal.send(Internal::Ran(run.run()))));
        }
    }

    pub(super) fn returned(&mut self, ran: Ran) {
        let (now, can_write) = (self.clock.now(), self.journal.error().is_none());
        let made = self.tickets.returned(&mut self.scheduler, now, ran, can_write);
        let Some(Made { decision, .. }) = made else { return };
        self.note_stops(&decision);
        self.measure_shadow(&decision);
        self.journal.then(Effect::Settled(decision.id, self.scheduler.digest()));
    }

    fn note_stops(&mut self, decision: &Decision) {
        let stops = decision.changes.iter().filter(|(_, verdict)| matches!(verdict, Verdict::Stop(_)));
        self.stopping.extend(stops.map(|(job, _)| *job));
    }

    /// Shadow mode enacts nothing. It logs the changes that active mode would make.
    fn measure_shadow(&self, decision: &Decision) {
        let state = self.scheduler.state();
        if state.mode != Mode::Shadow {
            self.metrics.shadow.set(0);
            return;
        }
        let differs = state.jobs.values().filter(|job| job.verdict.allocation() != job.seen.allocation.as_ref());
        let count = differs.count();
        self.metrics.shadow.set(count as i64);
        tracing::info!(decision = decision.id.0, differences = count, "shadow mode: nothing is enacted");
    }
}

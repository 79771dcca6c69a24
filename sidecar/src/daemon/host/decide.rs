//! When to decide, and on which thread.

use std::time::{Duration, Instant};

use trainmaster_core::{
    Decision, Source, Ticket, Time, Verdict,
    scheduler::{FitTicket, Outcome, Why},
    settings::Mode,
};

use super::{
    deciding::{LONGEST_WAIT, Open, Returned, STRAYS},
    journal::Effect,
    owner::{Internal, Owner},
};

/// Between two decisions at least so long: what comes in meanwhile is decided together.
const GAP: Duration = Duration::from_millis(20);
/// A round of fits that takes longer is given up.
const FITS_LIMIT: Duration = Duration::from_secs(60);
impl Owner {
    /// Opens, runs and gives up tickets as their time comes.
    pub(super) fn decide(&mut self, now: Time) {
        let instant = Instant::now();
        self.give_up_late(now, instant);
        // A snapshot is due: no new ticket until those that are open are through. And nothing new is decided while
        // nothing can be written down.
        if self.journal.wants_snapshot() || self.journal.error().is_some() {
            return;
        }
        let due = self.deciding.may_begin(instant) && self.scheduler.due().is_some_and(|at| at <= now);
        self.deciding.due_since = due.then(|| self.deciding.due_since.unwrap_or(instant));
        self.begin_fits(now, instant);
        let ready = self.deciding.due_since.is_some_and(|since| {
            // However fast reports come in: one round of fits, and not longer than this.
            self.deciding.fits.is_none() || instant >= since + self.options.fits_wait
        });
        if ready {
            self.deciding.due_since = None;
            let ticket = self.scheduler.prepare(now);
            let limit = instant + self.options.decision_limit;
            self.deciding.engine = Some(Open { id: ticket.id(), begun: instant, limit });
            self.run_engine(ticket);
        }
    }

    fn give_up_late(&mut self, now: Time, instant: Instant) {
        let is_late = |open: &mut Open| open.limit <= instant;
        if let Some(open) = self.deciding.engine.take_if(is_late) {
            tracing::error!(limit = ?self.options.decision_limit, "the engine takes too long; the last plan stands");
            self.metrics.late.with_label_values(&["decision"]).inc();
            self.scheduler.abandon(now, open.id, Why::Late);
            self.deciding.strays += 1;
            self.deciding.back_off();
        }
        if let Some(open) = self.deciding.fits.take_if(is_late) {
            self.metrics.late.with_label_values(&["fits"]).inc();
            self.scheduler.abandon(now, open.id, Why::Late);
            self.deciding.strays += 1;
            self.deciding.news = true;
        }
    }

    fn begin_fits(&mut self, now: Time, instant: Instant) {
        let deciding = &mut self.deciding;
        let time = match deciding.due_since {
            Some(since) => since == instant,
            None => instant >= deciding.next_fits,
        };
        let wanted = deciding.news && deciding.fits.is_none() && time;
        if !wanted || deciding.strays >= STRAYS {
            return;
        }
        deciding.news = false;
        deciding.next_fits = instant + self.options.fits_every;
        if let Some(ticket) = self.scheduler.prepare_fits(now) {
            deciding.fits = Some(Open { id: ticket.id(), begun: instant, limit: instant + FITS_LIMIT });
            deciding.leaves_news = self.scheduler.has_news();
            self.run_fits(ticket);
        }
    }

    fn run_engine(&self, ticket: Ticket) {
        let (internal, budget) = (self.internal.clone(), self.options.budget);
        self.threads.spawn_blocking(move || {
            let outcome = ticket.run(budget);
            let _ = internal.send(Internal::Returned(Returned::Decided(outcome)));
        });
    }

    fn run_fits(&self, ticket: FitTicket) {
        let internal = self.internal.clone();
        self.threads.spawn_blocking(move || {
            let id = ticket.id();
            let outcome = ticket.run();
            let _ = internal.send(Internal::Returned(Returned::Fitted(outcome, id)));
        });
    }

    pub(super) fn returned(&mut self, returned: Returned) {
        let now = self.clock.now();
        match returned {
            Returned::Decided(outcome) => match self.deciding.engine.take_if(|open| open.id == outcome.ticket()) {
                Some(open) => self.commit(now, open, outcome),
                None => self.deciding.strays = self.deciding.strays.saturating_sub(1),
            },
            Returned::Fitted(outcome, id) => match self.deciding.fits.take_if(|open| open.id == id) {
                Some(open) => {
                    self.metrics.fit_seconds.observe(open.begun.elapsed().as_secs_f64());
                    if self.scheduler.commit_fits(now, outcome).is_ok() {
                        self.measure_fits();
                    }
                    if std::mem::take(&mut self.deciding.leaves_news) {
                        // One ticket doesn't cover all: the others come as soon as half of the time is left to
                        // everything else.
                        self.deciding.news = true;
                        self.deciding.next_fits = Instant::now() + open.begun.elapsed();
                    }
                }
                None => self.deciding.strays = self.deciding.strays.saturating_sub(1),
            },
        }
    }

    fn commit(&mut self, now: Time, open: Open, outcome: Outcome) {
        if self.journal.error().is_some() {
            self.scheduler.abandon(now, open.id, Why::Lost);
            return;
        }
        if let Some(error) = outcome.error() {
            tracing::error!(%error, "the engine could not decide; the last plan stands");
        }
        let Ok(decision) = self.scheduler.commit(now, outcome) else {
            // Only this task opens tickets, one at a time.
            tracing::error!("an open ticket was superseded");
            return;
        };
        self.metrics.decision_seconds.observe(open.begun.elapsed().as_secs_f64());
        self.metrics.decided(decision.source);
        if decision.source == Source::Kept {
            self.deciding.back_off();
        } else {
            self.deciding.failures = 0;
            self.deciding.not_before = Some(Instant::now() + GAP);
        }
        self.note_stops(&decision);
        self.measure_shadow(&decision);
        self.journal.then(Effect::Settled(decision.id, self.scheduler.digest()));
    }

    fn note_stops(&mut self, decision: &Decision) {
        let stops = decision.changes.iter().filter(|(_, verdict)| matches!(verdict, Verdict::Stop(_)));
        self.stopping.extend(stops.map(|(job, _)| *job));
    }

    /// In shadow mode nothing is enacted: what would have been done otherwise is reported.
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

    fn measure_fits(&self) {
        for job in self.scheduler.state().jobs.values() {
            if job.learnt.fits.loss.is_none() && job.learnt.losses.last_epoch().is_some_and(|epoch| epoch > 5) {
                self.metrics.fits_failed.inc();
            }
            let (Some(fit), Some(speed)) = (&job.learnt.fits.speed, job.learnt.progress.speed) else { continue };
            let Some(shape) = job.seen.allocation.as_ref().map(|seen| seen.shape()).filter(|_| speed > 0.0) else {
                continue;
            };
            let error = (fit.speed(shape.servers, shape.workers) - speed).abs() / speed;
            self.metrics.fit_error.observe(error);
        }
    }

    /// When this has to be looked at again by itself.
    pub(super) fn next_decision(&mut self, instant: Instant) -> Option<Instant> {
        let now = self.clock.now();
        let deciding = &self.deciding;
        let limits = deciding.engine.iter().chain(&deciding.fits).map(|open| open.limit);
        let fits = (deciding.news && deciding.fits.is_none() && deciding.strays < STRAYS).then_some(deciding.next_fits);
        let due = self.scheduler.due().filter(|_| deciding.engine.is_none() && deciding.strays < STRAYS).map(|at| {
            let wait = u64::try_from(at.0.saturating_sub(now.0)).unwrap_or(0);
            let at = instant.checked_add(Duration::from_millis(wait)).unwrap_or(instant + LONGEST_WAIT);
            let since = deciding.due_since.unwrap_or(instant);
            let fits = deciding.fits.as_ref().map(|_| since + self.options.fits_wait);
            [deciding.not_before, fits].into_iter().flatten().fold(at, Instant::max)
        });
        // While a snapshot is due, only what is open can bring it nearer; while the disk can't be written, nothing.
        let held = self.journal.wants_snapshot() || self.journal.error().is_some();
        limits.chain(fits.filter(|_| !held)).chain(due.filter(|_| !held)).min()
    }

    /// The host ends: what is open has no one to finish it.
    pub(super) fn give_up_tickets(&mut self) {
        let now = self.clock.now();
        for open in [self.deciding.engine.take(), self.deciding.fits.take()].into_iter().flatten() {
            self.scheduler.abandon(now, open.id, Why::Lost);
        }
    }
}

//! The schedule of decisions and fits, and the tickets of both.

use std::time::{Duration, Instant};

use tracing::{Span, field::Empty};
use trainmaster_core::{
    Budget, Decision, Mode, Scheduler, Source, Ticket, TicketId, Time,
    event::Event,
    scheduler::{FitOutcome, FitTicket, Outcome, Why},
};

use crate::{TicketMetrics, changes::Changes};

/// First and longest delay after an engine that failed or was late.
const FIRST_WAIT: Duration = Duration::from_millis(100);
const LONGEST_WAIT: Duration = Duration::from_secs(60);
/// Minimum time between two decisions. Events in between are decided together.
const GAP: Duration = Duration::from_millis(20);
/// Time after which a round of fits is abandoned.
const FITS_LIMIT: Duration = Duration::from_secs(60);
/// Maximum number of abandoned engines and fits that still run. No others start until one of them ends.
const STRAYS: usize = 4;

/// Limits of tickets.
#[derive(Clone, Copy, Debug)]
pub struct TicketLimits {
    /// Time until an engine's ticket is abandoned.
    pub decision: Duration,
    /// Maximum steps of an engine. A step is about one examined candidate.
    pub budget: Budget,
    /// Maximum wait of a due decision for a round of fits.
    pub fits_wait: Duration,
    /// Time between rounds of fits while reports come in.
    pub fits_every: Duration,
}

impl Default for TicketLimits {
    fn default() -> Self {
        Self {
            decision: Duration::from_secs(2),
            budget: Budget::steps(100_000_000),
            fits_wait: Duration::from_millis(500),
            fits_every: Duration::from_secs(2),
        }
    }
}

/// A ticket to run, on any thread.
pub enum Run {
    /// The ticket of an engine, and the span of its decision.
    Engine(Box<Ticket>, Budget, Span),
    /// The ticket of a round of fits.
    Fits(FitTicket),
}

impl Run {
    /// Runs the ticket. This takes long.
    pub fn run(self) -> Ran {
        match self {
            Self::Engine(ticket, budget, decision) => {
                let _span = tracing::debug_span!(parent: &decision, "run").entered();
                Ran(Outcomes::Decided(ticket.run(budget)))
            }
            Self::Fits(ticket) => {
                let _span = tracing::debug_span!("fits", ticket = ticket.id().0).entered();
                let id = ticket.id();
                Ran(Outcomes::Fitted(ticket.run(), id))
            }
        }
    }
}

/// A finished ticket, for [`Tickets::returned`].
pub struct Ran(Outcomes);

enum Outcomes {
    Decided(Outcome),
    Fitted(FitOutcome, TicketId),
}

/// A committed decision.
#[derive(Debug)]
pub struct Made {
    /// The decision.
    pub decision: Decision,
    /// Time from the opening of its ticket to its commit.
    pub took: Duration,
}

#[derive(Debug)]
struct Open {
    id: TicketId,
    begun: Instant,
    limit: Instant,
    span: Span,
}

/// The open tickets and the times of the next ones. At most one engine and one round of fits are open. A due decision
/// waits for the fits of earlier reports.
#[derive(Debug)]
pub struct Tickets {
    limits: TicketLimits,
    metrics: TicketMetrics,
    engine: Option<Open>,
    fits: Option<Open>,
    /// Abandoned tickets that still run.
    strays: usize,
    not_before: Option<Instant>,
    failures: u32,
    /// Whether there may be data without a fit.
    news: bool,
    /// Whether the open round covers only some of the jobs with new data.
    leaves_news: bool,
    next_fits: Instant,
    /// The time since which a due decision waits for fits.
    due_since: Option<Instant>,
    changes: Option<Changes>,
}

impl Tickets {
    /// Whether no ticket is open.
    pub fn new(limits: TicketLimits, metrics: TicketMetrics) -> Self {
        Self {
            limits,
            metrics,
            engine: None,
            fits: None,
            strays: 0,
            not_before: None,
            failures: 0,
            news: true,
            leaves_news: false,
            next_fits: Instant::now(),
            due_since: None,
            changes: None,
        }
    }

    /// Sets the limits of later tickets.
    pub fn limit(&mut self, limits: TicketLimits) {
        self.limits = limits;
    }

    /// Notes an event that is about to be applied.
    pub fn hear(&mut self, event: &Event) {
        self.news |= matches!(event, Event::Reported { .. } | Event::JobSubmitted { .. });
    }

    /// Abandons late tickets and opens due ones, unless they are `held`: a due snapshot waits until no ticket is open,
    /// or the journal can't be written. The host runs the tickets and [returns](Self::returned) them.
    pub fn open(&mut self, scheduler: &mut Scheduler, now: Time, held: bool) -> Vec<Run> {
        let instant = Instant::now();
        self.give_up_late(scheduler, now, instant);
        if held {
            return Vec::new();
        }
        let may_begin = self.engine.is_none() && self.strays < STRAYS && self.not_before.is_none_or(|at| at <= instant);
        let due = may_begin && scheduler.due().is_some_and(|at| at <= now);
        self.due_since = due.then(|| self.due_since.unwrap_or(instant));
        let mut runs: Vec<Run> = self.open_fits(scheduler, now, instant).into_iter().collect();
        let ready = self.due_since.is_some_and(|since| {
            // A decision waits for one round of fits and for a bounded time, at any rate of reports.
            self.fits.is_none() || instant >= since + self.limits.fits_wait
        });
        if ready {
            self.due_since = None;
            let ticket = scheduler.prepare(now);
            let span = tracing::debug_span!(
                "decision",
                engine = scheduler.engine_name(),
                jobs = scheduler.state().jobs.len(),
                decision = Empty,
                changes = Empty
            );
            let limit = instant + self.limits.decision;
            self.engine = Some(Open { id: ticket.id(), begun: instant, limit, span: span.clone() });
            runs.push(Run::Engine(Box::new(ticket), self.limits.budget, span));
        }
        runs
    }

    fn give_up_late(&mut self, scheduler: &mut Scheduler, now: Time, instant: Instant) {
        let is_late = |open: &mut Open| open.limit <= instant;
        if let Some(open) = self.engine.take_if(is_late) {
            tracing::error!(limit = ?self.limits.decision, "the engine takes too long; the last plan stands");
            self.metrics.late.with_label_values(&["decision"]).inc();
            scheduler.abandon(now, open.id, Why::Late);
            self.strays += 1;
            self.back_off();
        }
        if let Some(open) = self.fits.take_if(is_late) {
            self.metrics.late.with_label_values(&["fits"]).inc();
            scheduler.abandon(now, open.id, Why::Late);
            self.strays += 1;
            self.news = true;
        }
    }

    fn open_fits(&mut self, scheduler: &mut Scheduler, now: Time, instant: Instant) -> Option<Run> {
        let time = match self.due_since {
            Some(since) => since == instant,
            None => instant >= self.next_fits,
        };
        let wanted = self.news && self.fits.is_none() && time;
        if !wanted || self.strays >= STRAYS {
            return None;
        }
        self.news = false;
        self.next_fits = instant + self.limits.fits_every;
        let ticket = scheduler.prepare_fits(now)?;
        self.fits = Some(Open { id: ticket.id(), begun: instant, limit: instant + FITS_LIMIT, span: Span::none() });
        self.leaves_news = scheduler.has_news();
        Some(Run::Fits(ticket))
    }

    /// Commits a finished ticket, unless it was abandoned, or is a decision while the journal can't be written. Returns
    /// the committed decision.
    pub fn returned(&mut self, scheduler: &mut Scheduler, now: Time, ran: Ran, can_write: bool) -> Option<Made> {
        match ran.0 {
            Outcomes::Decided(outcome) => match self.engine.take_if(|open| open.id == outcome.ticket()) {
                Some(open) => return self.commit(scheduler, now, &open, outcome, can_write),
                None => self.strays = self.strays.saturating_sub(1),
            },
            Outcomes::Fitted(outcome, id) => match self.fits.take_if(|open| open.id == id) {
                Some(open) => {
                    self.metrics.fit_seconds.observe(open.begun.elapsed().as_secs_f64());
                    if scheduler.commit_fits(now, outcome).is_ok() {
                        self.metrics.fitted(scheduler.state());
                    }
                    if std::mem::take(&mut self.leaves_news) {
                        // One ticket doesn't cover all jobs. The next one follows after as long a pause, so half of the
                        // time remains for other work.
                        self.news = true;
                        self.next_fits = Instant::now() + open.begun.elapsed();
                    }
                }
                None => self.strays = self.strays.saturating_sub(1),
            },
        }
        None
    }

    fn commit(
        &mut self,
        scheduler: &mut Scheduler,
        now: Time,
        open: &Open,
        outcome: Outcome,
        can_write: bool,
    ) -> Option<Made> {
        if !can_write {
            scheduler.abandon(now, open.id, Why::Lost);
            return None;
        }
        let failure = outcome.error().map(ToString::to_string);
        // At the first decision, the plan is the recovered one.
        let changes = self.changes.get_or_insert_with(|| Changes::of(scheduler.state()));
        let (engine, was_fallback) = (scheduler.engine_name().to_owned(), scheduler.is_fallback());
        let mode = scheduler.state().mode;
        let committed = tracing::debug_span!(parent: &open.span, "commit").in_scope(|| scheduler.commit(now, outcome));
        let Ok(decision) = committed else {
            // Only the host opens tickets, one at a time.
            tracing::error!("an open ticket was superseded");
            return None;
        };
        if let Some(error) = failure {
            let next = match scheduler.state().mode {
                Mode::Paused if mode != Mode::Paused => {
                    "the fallback fails as well: paused, all jobs are their manager's again"
                }
                _ if scheduler.is_fallback() && !was_fallback => "the fallback engine decides from now on",
                _ => "the last plan stands",
            };
            tracing::error!(error, engine, "the engine could not decide; {next}");
        }
        open.span.record("decision", decision.id.0).record("changes", decision.changes.len());
        changes.log(scheduler.state(), &engine, &decision);
        let took = open.begun.elapsed();
        self.metrics.decision_seconds.observe(took.as_secs_f64());
        self.metrics.decided(decision.source);
        if decision.source == Source::Kept {
            self.back_off();
        } else {
            self.failures = 0;
            self.not_before = Some(Instant::now() + GAP);
        }
        Some(Made { decision, took })
    }

    fn back_off(&mut self) {
        let wait = FIRST_WAIT.saturating_mul(1 << self.failures.min(16)).min(LONGEST_WAIT);
        self.failures += 1;
        self.not_before = Some(Instant::now() + wait);
    }

    /// The time of the next call of [`open`](Self::open) without an event.
    pub fn wake(&self, scheduler: &Scheduler, now: Time, held: bool) -> Option<Instant> {
        let instant = Instant::now();
        let limits = self.engine.iter().chain(&self.fits).map(|open| open.limit);
        let fits = (self.news && self.fits.is_none() && self.strays < STRAYS).then_some(self.next_fits);
        let due = scheduler.due().filter(|_| self.engine.is_none() && self.strays < STRAYS).map(|at| {
            let wait = u64::try_from(at.0.saturating_sub(now.0)).unwrap_or(0);
            let at = instant.checked_add(Duration::from_millis(wait)).unwrap_or(instant + LONGEST_WAIT);
            let since = self.due_since.unwrap_or(instant);
            let fits = self.fits.as_ref().map(|_| since + self.limits.fits_wait);
            [self.not_before, fits].into_iter().flatten().fold(at, Instant::max)
        });
        // While a due snapshot waits, only open tickets matter. While the disk can't be written, nothing does.
        limits.chain(fits.filter(|_| !held)).chain(due.filter(|_| !held)).min()
    }

    /// Abandons all tickets at the end of the host.
    pub fn give_up(&mut self, scheduler: &mut Scheduler, now: Time) {
        for open in [self.engine.take(), self.fits.take()].into_iter().flatten() {
            scheduler.abandon(now, open.id, Why::Lost);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use prometheus::Registry;
    use trainmaster_core::{JobSpec, ServerSpec, Settings};

    use super::*;

    struct Host {
        scheduler: Scheduler,
        tickets: Tickets,
    }

    impl Host {
        fn new(decision: Duration) -> Self {
            let settings = Settings { engine: "fifo".into(), ..Settings::default() };
            let limits = TicketLimits {
                decision,
                budget: Budget::steps(100_000),
                fits_wait: Duration::from_secs(60),
                fits_every: Duration::from_secs(60),
            };
            let metrics = TicketMetrics::register(&Registry::new()).unwrap();
            let mut host =
                Self { scheduler: Scheduler::new(settings).unwrap(), tickets: Tickets::new(limits, metrics) };
            let capacity = [("cpu".to_owned(), 16_000)].into();
            let devices = vec!["gpu".into(); 2];
            let server = ServerSpec { name: "a".into(), capacity, devices, ..ServerSpec::default() };
            host.apply(Event::ServerSet { manager: "m".into(), server });
            let spec = Box::new(JobSpec::minimal("job"));
            host.apply(Event::JobSubmitted { spec, external: None, token_hash: None });
            host
        }

        fn apply(&mut self, event: Event) {
            self.tickets.hear(&event);
            self.scheduler.apply(Time(1), event).unwrap();
        }

        fn open(&mut self) -> Vec<Run> {
            self.tickets.open(&mut self.scheduler, Time(1_000_000), false)
        }

        /// Runs all due tickets and returns the decisions.
        fn settle(&mut self) -> Vec<Decision> {
            let mut made = Vec::new();
            loop {
                let runs = self.open();
                if runs.is_empty() {
                    return made;
                }
                for run in runs {
                    let ran = run.run();
                    let decided = self.tickets.returned(&mut self.scheduler, Time(1_000_000), ran, true);
                    made.extend(decided.map(|made| made.decision));
                }
            }
        }
    }

    #[test]
    fn what_is_due_is_decided_once() {
        let mut host = Host::new(Duration::from_secs(60));
        assert!(host.tickets.open(&mut host.scheduler, Time(1_000_000), true).is_empty(), "it is held");
        assert_eq!(host.settle().len(), 1);
        assert!(host.open().is_empty());
    }

    #[test]
    fn one_ticket_of_a_kind_is_open_at_a_time() {
        let mut host = Host::new(Duration::from_secs(60));
        let runs = host.open();
        assert!(!runs.is_empty());
        assert!(host.open().is_empty());
        host.tickets.give_up(&mut host.scheduler, Time(1_000_000));
        assert!(!host.open().is_empty(), "what was given up is decided again");
    }

    #[test]
    fn what_can_t_be_written_is_not_committed() {
        let mut host = Host::new(Duration::from_secs(60));
        let before = host.scheduler.state().decision;
        for run in host.open() {
            let made = host.tickets.returned(&mut host.scheduler, Time(1_000_000), run.run(), false);
            assert!(made.is_none());
        }
        assert_eq!(host.scheduler.state().decision, before);
    }

    #[test]
    fn a_late_engine_is_given_up_and_those_that_still_run_are_few() {
        let mut host = Host::new(Duration::ZERO);
        let mut running = Vec::new();
        for _ in 0..2 * STRAYS {
            host.tickets.not_before = None;
            running.extend(host.open());
        }
        assert_eq!(running.len(), STRAYS);
        let ran = running.pop().unwrap().run();
        let made = host.tickets.returned(&mut host.scheduler, Time(1_000_000), ran, true);
        assert!(made.is_none(), "it comes too late");
        host.tickets.not_before = None;
        assert_eq!(host.open().len(), 1);
    }

    #[test]
    fn a_failing_engine_waits_longer_each_time() {
        let mut host = Host::new(Duration::from_secs(60));
        host.scheduler.replace_engine(Arc::new(trainmaster_core::testing::Scripted::panicking()));
        let mut waits = Vec::new();
        for _ in 0..3 {
            host.tickets.not_before = None;
            let made = host.settle();
            assert_eq!(made[0].source, Source::Kept);
            let wait = host.tickets.not_before.unwrap().saturating_duration_since(Instant::now());
            waits.push(wait);
            assert!(host.open().is_empty());
        }
        assert!(waits[0] <= FIRST_WAIT && waits[1] > waits[0] && waits[2] > waits[1], "{waits:?}");
    }
}

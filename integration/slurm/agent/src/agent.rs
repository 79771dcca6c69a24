//! One round after another: what Slurm shows goes in, orders come out.

use std::{
    collections::BTreeMap,
    fs, io,
    path::PathBuf,
    time::{Duration, Instant},
};

use serde_json::{Value, json};
use trainmaster_adapters::slurm::{
    Translator,
    order::{Answer, Order},
    seen::Observation,
};
use trainmaster_core::{
    Budget, End, Event, EventError, JobId, Mode, Role, Scheduler, Shape, Source, Span, Term, Verdict,
};
use trainmaster_feed::{JobAssignment, Standing, Unavailable};
use trainmaster_proto::{Progress, slots_to_wire, work_to_wire};

use crate::{
    clock::Clock,
    config::{Config, Watched},
    control::{Command, Explained, JobStatus, Status, answer},
    feed::{Answers, Request, Services, start},
    journal::Journal,
};

/// First and longest wait after an engine that failed.
const FIRST_WAIT: Duration = Duration::from_millis(100);
const LONGEST_WAIT: Duration = Duration::from_secs(60);
/// Between rounds of fits that no decision asks for.
const FITS_EVERY: Duration = Duration::from_secs(5);
/// What one look at Slurm can bring up: jobs, then their numbers, then what is said of them.
const PASSES: usize = 8;

/// Where the agent finds and keeps things.
#[derive(Clone, Debug)]
pub struct Folders {
    /// `trainmaster.toml`.
    pub config: PathBuf,
    /// Slurm's StateSaveLocation.
    pub state: PathBuf,
}

impl Folders {
    fn own(&self) -> PathBuf {
        self.state.join("trainmaster")
    }

    /// Where submissions and reports wake the plugin's thread.
    pub(crate) fn wake(&self) -> PathBuf {
        self.state.join("trainmaster.socket")
    }
}

/// An answer that waits until the journal is on disk.
type Late = Box<dyn FnOnce(Result<(), &str>) + Send>;

/// The scheduler and everything around it.
pub struct Agent {
    watched: Watched,
    /// Keeps the mode that the configuration last said.
    file_mode: PathBuf,
    config: Config,
    scheduler: Scheduler,
    translator: Translator,
    journal: Journal,
    clock: Clock,
    services: Services,
    /// What training programs were told.
    told: BTreeMap<JobId, JobAssignment>,
    late: Vec<Late>,
    /// Why nothing is acknowledged, if so.
    problem: Option<String>,
    not_before: Option<Instant>,
    failures: u32,
    next_fits: Instant,
    /// When the orders of this round were handed out.
    ordered: Instant,
    figures: Figures,
    #[cfg(feature = "fault-injection")]
    faults: crate::fault::Faults,
}

/// What is counted.
#[derive(Clone, Copy, Debug, Default)]
struct Figures {
    decisions: u64,
    decision: Duration,
    slowest_decision: Duration,
    load: Duration,
    orders: u64,
    refusals: u64,
    /// That Slurm took for all orders.
    carrying_out: Duration,
}

impl Agent {
    /// Goes on where the journal ends, or begins.
    ///
    /// # Errors
    /// The configuration can't be used, the feed's port is taken, or the state folder can't be written.
    pub fn open(folders: &Folders) -> io::Result<Self> {
        let mut watched = Watched::new(&folders.config);
        let config = watched.changed().expect("nothing was read yet").map_err(io::Error::other)?;
        let own = folders.own();
        fs::create_dir_all(&own)?;
        let fresh = Scheduler::new(config.settings.clone()).map_err(io::Error::other)?;
        let restored = Journal::restore(&own)?;
        let known = restored.is_some();
        let mut scheduler = restored.unwrap_or(fresh);
        let mut clock = Clock::after(scheduler.state().now);
        let mut journal = Journal::begin(&own, &mut scheduler);
        let now = clock.now();
        let term = Term(scheduler.state().term.0 + 1);
        scheduler.apply(now, Event::TermBegan(term)).map_err(io::Error::other)?;
        if *scheduler.state().settings != config.settings {
            scheduler.apply(now, Event::Configured(Box::new(config.settings.clone()))).map_err(io::Error::other)?;
        }
        // What people set since counts, unless the file was changed while slurmctld was down.
        let file_mode = own.join("mode");
        let name = format!("{:?}", config.mode);
        if !known || fs::read_to_string(&file_mode).is_ok_and(|before| before != name) {
            scheduler.apply(now, Event::ModeSet(config.mode)).map_err(io::Error::other)?;
        }
        fs::write(&file_mode, &name)?;
        journal.write(&mut scheduler)?;
        let address = config.slurm.feed.as_deref();
        let services = start(&config.feed, address, &own.join("control"), &folders.wake())?;
        let jobs = scheduler.state().jobs.len();
        tracing::info!(engine = config.settings.engine, jobs, mode = ?scheduler.state().mode, "ready");
        Ok(Self {
            watched,
            file_mode,
            translator: Translator::new(config.slurm.clone()),
            config,
            scheduler,
            journal,
            clock,
            services,
            told: BTreeMap::new(),
            late: Vec::new(),
            problem: None,
            not_before: None,
            failures: 0,
            next_fits: Instant::now(),
            ordered: Instant::now(),
            figures: Figures::default(),
            #[cfg(feature = "fault-injection")]
            faults: Default::default(),
        })
    }

    /// The scheduler, to look at.
    pub fn scheduler(&self) -> &Scheduler {
        &self.scheduler
    }

    /// Pauses: every job is Slurm's again, as it was submitted.
    pub fn pause(&mut self) {
        self.set_mode(Mode::Paused);
    }

    /// How long the plugin's thread may sleep, if nobody wakes it.
    pub fn wait(&mut self) -> Duration {
        let now = self.clock.now();
        let due = self.scheduler.due().map(|at| Duration::from_millis(at.0.saturating_sub(now.0).max(0) as u64));
        let backed_off = self.not_before.map(|at| at.saturating_duration_since(Instant::now()));
        let due = due.map(|due| due.max(backed_off.unwrap_or_default()));
        due.unwrap_or(self.config.poll).min(self.config.poll).max(Duration::from_millis(10))
    }

    /// One round: what Slurm shows becomes events, reports and requests are taken, what is due is decided. Each order
    /// is to be carried out and [`answered`](Self::answered), then [`finish`](Self::finish) is called. `loading` is
    /// what asking Slurm took.
    pub fn round(&mut self, seen: &Observation, loading: Duration) -> Vec<Order> {
        self.figures.load = loading;
        self.reload();
        for _ in 0..PASSES {
            let events = self.translator.observe(self.scheduler.state(), seen);
            if events.is_empty() {
                break;
            }
            events.into_iter().for_each(|event| self.take(event));
        }
        self.requests();
        #[cfg(feature = "fault-injection")]
        self.faults.in_round();
        // While nothing can be written down, nothing new is decided.
        if self.problem.is_none() {
            self.decide();
        }
        drop(self.scheduler.take_issues());
        // Slurm is told only what is on disk. Where nothing can be written held jobs stay held, and the kill switch
        // works.
        self.flush();
        let mut orders = self.translator.orders(self.scheduler.state());
        if self.problem.is_some() {
            orders.retain(Order::gives_nothing);
        }
        self.figures.orders += orders.len() as u64;
        #[cfg(feature = "fault-injection")]
        self.faults.before_orders(!orders.is_empty());
        self.ordered = Instant::now();
        orders
    }

    /// What Slurm answered to an order of this round.
    pub fn answered(&mut self, order: &Order, answer: Answer) {
        if let Err(error) = &answer
            && !error.is_gone()
        {
            self.figures.refusals += 1;
            tracing::info!(job = order.id, %error, action = ?order.action, "Slurm refuses");
        }
        for event in self.translator.answered(order, answer) {
            self.take(event);
        }
    }

    /// The round is over: what came of the orders is written, and training programs hear of it.
    pub fn finish(&mut self) {
        self.figures.carrying_out += self.ordered.elapsed();
        self.flush();
        self.tell();
    }

    fn reload(&mut self) {
        match self.watched.changed() {
            None => {}
            Some(Err(error)) => tracing::error!(%error, "the configuration can't be used; the last one stands"),
            Some(Ok(config)) => {
                if config.settings != self.config.settings
                    && let Err(error) = self.apply_own(Event::Configured(Box::new(config.settings.clone())))
                {
                    tracing::error!(%error, "the configuration can't be used; the last one stands");
                    return;
                }
                if config.feed != self.config.feed {
                    tracing::warn!("feed: a change takes effect when slurmctld is restarted");
                }
                if config.slurm != self.config.slurm {
                    self.translator = Translator::new(config.slurm.clone());
                }
                if config.mode != self.config.mode {
                    self.set_mode(config.mode);
                    let _ = fs::write(&self.file_mode, format!("{:?}", config.mode));
                }
                tracing::info!("the configuration was read anew");
                self.config = config;
            }
        }
    }

    fn apply_own(&mut self, event: Event) -> Result<(), EventError> {
        let now = self.clock.now();
        self.scheduler.apply(now, event)
    }

    fn set_mode(&mut self, mode: Mode) {
        if let Err(error) = self.apply_own(Event::ModeSet(mode)) {
            tracing::error!(%error, ?mode, "the mode can't be set");
        }
    }

    /// An event from Slurm.
    fn take(&mut self, event: Event) {
        let now = self.clock.now();
        match self.scheduler.apply(now, event.clone()) {
            Ok(()) => {}
            // Slurm may still speak of what is over here.
            Err(EventError::UnknownJob(_) | EventError::LateRefusal { .. }) => {}
            Err(error) if matches!(event, Event::JobSubmitted { .. }) => {
                tracing::info!(%error, "a job can't be taken");
                self.translator.not_taken(&event, error.to_string());
            }
            Err(error) => tracing::warn!(%error, "an observation can't be accepted"),
        }
    }

    fn requests(&mut self) {
        while let Ok(request) = self.services.requests.try_recv() {
            match request {
                Request::Report { job, incarnation, slot, progress, reply } => {
                    let answers = self.report(job, incarnation, slot, progress);
                    self.late.push(Box::new(move |written| {
                        let _ = reply.send(written.map(|()| answers).map_err(|error| Unavailable(error.to_owned())));
                    }));
                }
                // What people order holds also while it can't be written down; then they hear what a restart would
                // forget.
                Request::Control { command, reply } => {
                    let changes = matches!(command, Command::Mode { .. });
                    let mut answer = self.control(command);
                    self.late.push(Box::new(move |written| {
                        if let (true, Err(problem)) = (changes, written) {
                            answer["not_written"] = problem.into();
                        }
                        let _ = reply.send(answer);
                    }));
                }
            }
        }
    }

    fn report(
        &mut self,
        job: JobId,
        incarnation: trainmaster_core::Incarnation,
        slot: (Role, u32),
        progress: Vec<Progress>,
    ) -> Answers {
        let now = self.clock.now();
        let mut answers = Answers::with_capacity(progress.len());
        for Progress { report, finished, .. } in progress {
            let taken = self.scheduler.apply(now, Event::Reported { job, incarnation, slot, report });
            answers.push(match taken {
                Ok(()) => Ok(()),
                Err(EventError::Report { problem, .. }) => Err(problem.to_owned()),
                Err(error) => Err(error.to_string()),
            });
            if finished && answers.last().is_some_and(Result::is_ok) {
                self.take(Event::JobEnded { job, end: End::Completed });
            }
        }
        answers
    }

    fn decide(&mut self) {
        let instant = Instant::now();
        let now = self.clock.now();
        let due = self.scheduler.due().is_some_and(|at| at <= now) && self.not_before.is_none_or(|at| at <= instant);
        if due || self.next_fits <= instant {
            self.next_fits = instant + FITS_EVERY;
            if let Some(ticket) = self.scheduler.prepare_fits(now) {
                let outcome = ticket.run();
                // Only this thread opens tickets, one at a time.
                let _ = self.scheduler.commit_fits(now, outcome);
                if self.scheduler.has_news() {
                    // One ticket doesn't cover all: half of the time is left to everything else.
                    self.next_fits = Instant::now() + instant.elapsed();
                }
            }
        }
        if !due {
            return;
        }
        #[cfg(feature = "fault-injection")]
        self.faults.before_decision(&mut self.scheduler);
        let engine = self.scheduler.engine_name().to_owned();
        let begun = Instant::now();
        let outcome = self.scheduler.prepare(now).run(Budget::steps(self.config.budget));
        let failure = outcome.error().map(ToString::to_string);
        let was_fallback = self.scheduler.is_fallback();
        let Ok(decision) = self.scheduler.commit(now, outcome) else { return };
        if let Some(error) = failure {
            let next = match self.scheduler.state().mode {
                Mode::Paused => "the fallback fails as well: paused, all jobs go back to Slurm as they were submitted",
                _ if self.scheduler.is_fallback() && !was_fallback => "the fallback engine decides from now on",
                _ => "the last plan stands",
            };
            tracing::error!(error, engine, "the engine could not decide; {next}");
        }
        self.figures.decisions += 1;
        self.figures.decision = begun.elapsed();
        self.figures.slowest_decision = self.figures.slowest_decision.max(self.figures.decision);
        if decision.source == Source::Kept {
            let wait = FIRST_WAIT.saturating_mul(1 << self.failures.min(16)).min(LONGEST_WAIT);
            self.failures += 1;
            self.not_before = Some(Instant::now() + wait);
        } else {
            (self.failures, self.not_before) = (0, None);
        }
        self.note_shadow(&decision.changes);
    }

    /// In shadow mode nothing is done: what would have been is said.
    fn note_shadow(&self, changes: &[(JobId, Verdict)]) {
        let state = self.scheduler.state();
        if state.mode != Mode::Shadow {
            return;
        }
        for (id, verdict) in changes {
            let planned = verdict.allocation().map_or(Shape::default(), |allocation| allocation.shape());
            let observed = state.job(*id).and_then(|job| job.seen.allocation.as_ref());
            let observed = observed.map_or(Shape::default(), |allocation| allocation.shape());
            if planned != observed {
                let name = state.job_name(*id);
                tracing::info!("shadow: {name} would have {planned}; Slurm gives it {observed}");
            }
        }
    }

    fn flush(&mut self) {
        let written = self.journal.write(&mut self.scheduler).map_err(|error| format!("the journal: {error}"));
        if let Err(problem) = &written
            && self.problem.is_none()
        {
            tracing::error!(problem, "nothing is acknowledged until the disk can be written again");
        }
        for late in self.late.drain(..) {
            late(written.as_ref().copied().map_err(String::as_str));
        }
        self.problem = written.err();
    }

    /// Programs follow what Slurm was made to give them: until a restart is through, what runs is told nothing of it.
    /// Slurm stops it with SIGTERM.
    fn tell(&mut self) {
        let state = self.scheduler.state();
        for job in state.jobs.values() {
            let given = self.translator.given(job.id);
            let follows = |given: &(u32, u32)| *given == (job.issued.incarnation.0, job.issued.revision.0);
            let issued = job.issued.allocation.as_ref().filter(|_| given.as_ref().is_some_and(follows));
            let known = self.told.get(&job.id);
            let (incarnation, revision, slots) = match (issued, known) {
                (Some(slots), _) => (job.issued.incarnation, job.issued.revision, Some(slots)),
                (None, Some(_)) => continue,
                // Since before a restart of slurmctld.
                (None, None) => (job.seen.incarnation, job.issued.revision, job.seen.allocation.as_ref()),
            };
            let assignment = JobAssignment {
                cluster: job.external.as_ref().map_or_else(String::new, |external| external.cluster.clone()),
                name: job.spec.name.clone(),
                tenant: job.spec.tenant.clone(),
                token_hash: job.token_hash,
                incarnation,
                revision,
                standing: if slots.is_some() { Standing::Run } else { Standing::Stop },
                slots: slots.map(|allocation| slots_to_wire(state, allocation)).unwrap_or_default(),
                work: slots.map(|allocation| work_to_wire(allocation)).unwrap_or_default(),
                grace: Span::seconds(self.config.slurm.grace),
                accepted: job.learnt.reported.clone(),
            };
            let same = known.is_some_and(|known| {
                (known.incarnation, known.revision, known.standing, &known.slots)
                    == (assignment.incarnation, assignment.revision, assignment.standing, &assignment.slots)
            });
            if !same {
                self.services.feed.set(job.id, assignment.clone());
                self.told.insert(job.id, assignment);
            }
        }
        let over: Vec<JobId> = self.told.keys().filter(|id| state.job(**id).is_none()).copied().collect();
        for id in over {
            let Some(assignment) = self.told.remove(&id) else { continue };
            self.services.feed.set(id, JobAssignment { standing: Standing::Over, ..assignment });
        }
    }

    fn control(&mut self, command: Command) -> Value {
        match command {
            Command::Mode { mode } => {
                tracing::info!(?mode, "the mode is set");
                self.set_mode(mode);
                answer(&self.status())
            }
            Command::Status {} => answer(&self.status()),
            #[cfg(feature = "fault-injection")]
            Command::Fault { fault } => {
                self.faults.order(fault);
                answer(&self.status())
            }
            Command::Explain { job } => {
                let state = self.scheduler.state();
                let by_number = job.parse().ok().and_then(|native| self.translator.job(native));
                let found = by_number.or_else(|| state.find_job(&job).map(|job| job.id));
                let now = self.clock.now();
                match found.and_then(|id| self.scheduler.explain(now, id)) {
                    Some(explanation) => {
                        answer(&Explained { id: self.translator.native(explanation.job), explanation })
                    }
                    None => {
                        let problem = format!("job {job:?} is not one of Trainmaster's active jobs");
                        json!({ "error": problem })
                    }
                }
            }
        }
    }

    fn status(&self) -> Status<'_> {
        let state = self.scheduler.state();
        let ms = |time: Duration| time.as_secs_f64() * 1000.0;
        let jobs = state.jobs.values().map(|job| JobStatus {
            id: self.translator.native(job.id),
            name: job.spec.name.clone(),
            planned: job.shape().to_string(),
            observed: job.seen.allocation.as_ref().map_or(Shape::default(), |seen| seen.shape()).to_string(),
            incarnation: job.issued.incarnation.0,
            epoch: f64::from(job.learnt.progress.epoch),
            reason: state.effective(job).reason().map(|reason| reason.describe(state)),
        });
        Status {
            mode: state.mode,
            engine: &state.settings.engine,
            fallback: self.scheduler.is_fallback().then(|| self.scheduler.engine_name()),
            servers: state.present_servers().count(),
            decisions: self.figures.decisions,
            decision_ms: ms(self.figures.decision),
            slowest_decision_ms: ms(self.figures.slowest_decision),
            load_ms: ms(self.figures.load),
            orders: self.figures.orders,
            order_ms: ms(self.figures.carrying_out) / self.figures.orders.max(1) as f64,
            refusals: self.figures.refusals,
            problem: self.problem.as_deref(),
            jobs: jobs.collect(),
        }
    }
}

impl std::fmt::Debug for Agent {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Agent").field("config", &self.config).field("figures", &self.figures).finish_non_exhaustive()
    }
}

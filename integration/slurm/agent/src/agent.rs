//! The agent. In each round, it turns an observation of Slurm into calls.

use std::{
    collections::BTreeMap,
    fs, io,
    path::PathBuf,
    time::{Duration, Instant},
};

use prometheus::{IntCounter, Registry, TextEncoder};
use serde_json::{Value, json};
use trainmaster_adapters::slurm::{
    Translator,
    call::{CallResult, SlurmCall},
    plan_of,
    seen::Observation,
};
use trainmaster_core::{Budget, End, Event, EventError, JobId, Mode, Role, Scheduler, Shape, Span, Term, Verdict};
use trainmaster_feed::{JobAssignment, Standing, Unavailable};
use trainmaster_host::{
    Answers, Census, Clock, Journal, JournalLimits, JournalMetrics, LateReply, Made, TicketLimits, TicketMetrics,
    Tickets, assignment, begin, build_info, has_names,
};
use trainmaster_net::Adder;
use trainmaster_proto::{Explained, Progress, job_state};

use crate::{
    config::{Config, Watched},
    control::{Answer, Command, JobStatus, Status, answer},
    feed::{Request, Services, start},
    journal::{JournalFile, restore},
};

/// Engines and fits run on the plugin's own thread, so they can't be abandoned.
const UNLIMITED: Duration = Duration::from_secs(365 * 24 * 3600);
/// Interval between rounds of fits without a decision.
const FITS_EVERY: Duration = Duration::from_secs(5);

/// The agent's paths.
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

    /// The socket by which submissions and reports wake the plugin's thread.
    pub(crate) fn wake(&self) -> PathBuf {
        self.state.join("trainmaster.socket")
    }
}

/// The scheduler, and the components that run it.
pub struct Agent {
    watched: Watched,
    /// The file with the mode from the configuration that was last read.
    file_mode: PathBuf,
    config: Config,
    scheduler: Scheduler,
    translator: Translator,
    journal: Journal<JournalFile, LateReply>,
    tickets: Tickets,
    clock: Clock,
    services: Services,
    /// The last assignments of training programs.
    told: BTreeMap<JobId, JobAssignment>,
    /// When the translator got the last full plan.
    planned: Option<Instant>,
    /// When this round's calls were returned.
    called: Instant,
    figures: Figures,
    registry: Registry,
    census: Census,
    refusals: IntCounter,
    #[cfg(feature = "fault-injection")]
    faults: crate::fault::Faults,
}

/// Statistics.
#[derive(Clone, Copy, Debug, Default)]
struct Figures {
    decisions: u64,
    decision: Duration,
    slowest_decision: Duration,
    load: Duration,
    orders: u64,
    /// Slurm's total time for all orders.
    carrying_out: Duration,
}

impl Agent {
    /// Restores the state from the journal, or starts without one.
    ///
    /// # Errors
    /// The configuration can't be used, the feed's port is in use, or the state folder can't be written.
    pub fn open(folders: &Folders) -> io::Result<Self> {
        let mut watched = Watched::new(&folders.config);
        let config = watched.changed().expect("nothing was read yet").map_err(io::Error::other)?;
        let own = folders.own();
        fs::create_dir_all(&own)?;
        let fresh = Scheduler::new(config.settings.clone()).map_err(io::Error::other)?;
        let restored = restore(&own)?;
        let known = restored.is_some();
        let mut scheduler = restored.unwrap_or(fresh);
        let mut clock = Clock::after(scheduler.state().now);
        scheduler.start_journal();
        let now = clock.now();
        begin(&mut scheduler, now, Term::default(), &config.settings).map_err(io::Error::other)?;
        // A mode that was set by a command stays, unless the file was changed while slurmctld was down.
        let file_mode = own.join("mode");
        let name = format!("{:?}", config.mode);
        if !known || fs::read_to_string(&file_mode).is_ok_and(|before| before != name) {
            scheduler.apply(now, Event::ModeSet(config.mode)).map_err(io::Error::other)?;
        }
        fs::write(&file_mode, &name)?;
        let registry = Registry::new();
        build_info(&registry).map_err(io::Error::other)?;
        let census = Census::register(&registry).map_err(io::Error::other)?;
        let refusals = Adder(&registry).counter("refusals_total", "Issued changes that a manager refused");
        let refusals = refusals.map_err(io::Error::other)?;
        let metrics = JournalMetrics::register(&registry).map_err(io::Error::other)?;
        let mut journal = Journal::new(JournalFile::new(&own), JournalLimits::default(), metrics, &[]);
        journal.add(scheduler.drain_journal());
        journal.step();
        if let Some(problem) = journal.error() {
            return Err(io::Error::other(format!("{}: {problem}", own.display())));
        }
        let metrics = TicketMetrics::register(&registry).map_err(io::Error::other)?;
        let address = config.slurm.feed.as_deref();
        let services = start(&config.feed, address, &own.join("control"), &folders.wake(), &registry)?;
        let jobs = scheduler.state().jobs.len();
        tracing::info!(engine = config.settings.engine, jobs, mode = ?scheduler.state().mode, "ready");
        let tickets = Tickets::new(ticket_limits(&config), metrics);
        Ok(Self {
            watched,
            file_mode,
            translator: Translator::new(config.slurm.clone()),
            config,
            scheduler,
            journal,
            tickets,
            clock,
            services,
            told: BTreeMap::new(),
            planned: None,
            called: Instant::now(),
            figures: Figures::default(),
            registry,
            census,
            refusals,
            #[cfg(feature = "fault-injection")]
            faults: Default::default(),
        })
    }

    /// The scheduler, for inspection.
    pub fn scheduler(&self) -> &Scheduler {
        &self.scheduler
    }

    /// Pauses. All jobs are handed back to Slurm, as they were submitted.
    pub fn pause(&mut self) {
        self.set_mode(Mode::Paused);
    }

    /// Maximum sleep of the plugin's thread, unless it is woken.
    pub fn wait(&mut self) -> Duration {
        let now = self.clock.now();
        let held = self.journal.error().is_some();
        let due = self.tickets.wake(&self.scheduler, now, held);
        let wait = due.map_or(self.config.poll, |at| at.saturating_duration_since(Instant::now()));
        wait.min(self.config.poll).max(Duration::from_millis(10))
    }

    /// Runs one round: converts the observation to events, handles reports and requests, and makes the decisions that
    /// are due. The caller makes each call, reports the result to [`answered`](Self::answered), and then calls
    /// [`finish`](Self::finish). `loading` is the time for loading Slurm's data.
    pub fn round(&mut self, seen: &Observation, loading: Duration) -> Vec<SlurmCall> {
        self.figures.load = loading;
        self.reload();
        self.plan();
        if self.observe(seen) {
            // The plan has the new jobs' numbers, so their states can be reported before anything is decided.
            self.plan();
            self.observe(seen);
        }
        self.requests();
        #[cfg(feature = "fault-injection")]
        self.faults.in_round();
        self.decide();
        self.plan();
        // Slurm gets only calls whose cause is on disk. If nothing can be written, held jobs stay held, and the off
        // switch still works.
        self.flush();
        let (feed, writes) = (&self.services.feed, self.journal.error().is_none());
        let has_left = |job, incarnation, slot| feed.has_left(job, incarnation, slot);
        let mut calls = self.translator.calls(self.scheduler.state().mode, writes, has_left);
        if !writes {
            calls.retain(SlurmCall::gives_nothing);
        }
        self.figures.orders += calls.len() as u64;
        #[cfg(feature = "fault-injection")]
        self.faults.before_calls(!calls.is_empty());
        self.called = Instant::now();
        calls
    }

    /// Passes the translator what changed in the plan, and sometimes the full plan: its reasons then have current
    /// numbers, before a hold repeats them.
    fn plan(&mut self) {
        let renewal = Duration::from_secs(self.config.slurm.lease.unsigned_abs() / 4);
        let full = self.planned.is_none_or(|at| at.elapsed() > renewal);
        if full {
            self.planned = Some(Instant::now());
        }
        if let Some(plan) = plan_of(&mut self.scheduler, full) {
            self.translator.plan(plan);
        }
    }

    /// Applies the changes in an observation. Returns whether jobs were submitted.
    fn observe(&mut self, seen: &Observation) -> bool {
        let events = self.translator.observe(seen);
        let submits = events.iter().any(|event| matches!(event, Event::JobSubmitted { .. }));
        events.into_iter().for_each(|event| self.take(event));
        submits
    }

    /// Handles Slurm's answer to a call of this round.
    pub fn answered(&mut self, call: &SlurmCall, answer: CallResult) {
        if let Err(error) = &answer
            && !error.is_gone()
        {
            self.refusals.inc();
            tracing::info!(job = call.id, %error, action = ?call.action, "Slurm refuses");
        }
        for event in self.translator.answered(call, answer) {
            self.take(event);
        }
    }

    /// Ends the round: writes the results of the calls, and informs training programs.
    pub fn finish(&mut self) {
        self.figures.carrying_out += self.called.elapsed();
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
                    self.planned = None;
                }
                if config.mode != self.config.mode {
                    self.set_mode(config.mode);
                    let _ = fs::write(&self.file_mode, format!("{:?}", config.mode));
                }
                tracing::info!("the configuration was read anew");
                self.config = config;
                self.tickets.limit(ticket_limits(&self.config));
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

    /// Applies an event from Slurm.
    fn take(&mut self, event: Event) {
        let now = self.clock.now();
        self.tickets.hear(&event);
        match self.scheduler.apply(now, event.clone()) {
            Ok(()) => {}
            // Slurm can still report jobs that have ended here.
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
                    self.journal.then(Box::new(move |written| {
                        let _ = reply.send(written.map(|()| answers).map_err(|error| Unavailable(error.to_owned())));
                    }));
                }
                // A user's command takes effect even if it can't be written. Then the answer says that a restart would
                // forget it.
                Request::Control { command, reply } => {
                    let changes = matches!(command, Command::Mode { .. });
                    let mut answer = self.control(command);
                    self.journal.then(Box::new(move |written| {
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
        for progress in progress {
            // A job with a fixed batch has no use for it.
            let chooses = self.scheduler.state().job(job).is_some_and(|job| job.batching().is_some());
            if let Some(event) = progress.batch_event(job, incarnation, slot).filter(|_| chooses) {
                let _ = self.scheduler.apply(now, event);
            }
            let Progress { report, finished, .. } = progress;
            let event = Event::Reported { job, incarnation, slot, report };
            self.tickets.hear(&event);
            answers.push(trainmaster_host::answer(self.scheduler.apply(now, event)));
            if finished && answers.last().is_some_and(Result::is_ok) {
                self.take(Event::JobEnded { job, end: End::Completed });
            }
        }
        answers
    }

    /// Runs fits and makes the due decision, at most one, because orders wait for it. If nothing can be written,
    /// nothing new is decided.
    fn decide(&mut self) {
        #[cfg(feature = "fault-injection")]
        self.faults.before_decision(&mut self.scheduler);
        let can_write = self.journal.error().is_none();
        loop {
            let now = self.clock.now();
            let runs = self.tickets.open(&mut self.scheduler, now, !can_write);
            if runs.is_empty() {
                return;
            }
            for run in runs {
                let ran = run.run();
                let now = self.clock.now();
                if let Some(made) = self.tickets.returned(&mut self.scheduler, now, ran, can_write) {
                    return self.note(&made);
                }
            }
        }
    }

    fn note(&mut self, made: &Made) {
        self.figures.decisions += 1;
        self.figures.decision = made.took;
        self.figures.slowest_decision = self.figures.slowest_decision.max(made.took);
        self.note_shadow(&made.decision.changes);
    }

    /// In shadow mode nothing is carried out. Logs the difference between plan and observation.
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

    /// Writes the journal, and answers the requests that wait for it.
    fn flush(&mut self) {
        // Each round makes an attempt with a new file. A snapshot replaces all waiting records.
        self.journal.retry_now();
        if self.journal.error().is_some() || self.journal.wants_snapshot() {
            self.scheduler.snapshot();
        }
        self.journal.add(self.scheduler.drain_journal());
        if let Some((late, written)) = self.journal.step() {
            late.into_iter().for_each(|reply| reply(written.as_ref().copied().map_err(|problem| &**problem)));
        }
    }

    /// Sends the assignments that Slurm has carried out, or for which processes have to leave first. Until a restart is
    /// complete, running programs get no new assignment: Slurm stops them with SIGTERM. Before the first observation,
    /// nothing is sent: the journal may describe an earlier incarnation, and programs of the current one would leave.
    fn tell(&mut self) {
        if !self.translator.is_synced() {
            return;
        }
        let state = self.scheduler.state();
        for job in state.jobs.values() {
            let given = self.translator.given(job.id);
            let follows = |given: &(u32, u32)| *given == (job.issued.incarnation.0, job.issued.revision.0);
            let issued = job.issued.allocation.as_ref().filter(|_| given.as_ref().is_some_and(follows));
            let known = self.told.get(&job.id);
            let grace = Span::seconds(self.config.slurm.grace);
            let assignment = match (issued, known) {
                (Some(slots), _) => assignment(state, job, Some(slots), grace),
                (None, Some(_)) => continue,
                // The job has been running since before a restart of slurmctld.
                (None, None) => JobAssignment {
                    incarnation: job.seen.incarnation,
                    // The choice is for the issued slots.
                    batch: None,
                    ..assignment(state, job, job.seen.allocation.as_deref(), grace)
                },
            };
            let same = known.is_some_and(|known| {
                (known.incarnation, known.revision, known.standing, known.batch, &known.slots)
                    == (
                        assignment.incarnation,
                        assignment.revision,
                        assignment.standing,
                        assignment.batch,
                        &assignment.slots,
                    )
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
        self.services.feed.open();
    }

    fn control(&mut self, command: Command) -> Value {
        match command {
            Command::Mode { mode } => {
                tracing::info!(?mode, "the mode is set");
                self.set_mode(mode);
                answer(&self.status())
            }
            Command::Status {} => answer(&self.status()),
            Command::Metrics { names } => {
                let now = self.clock.now();
                self.census.sample(self.scheduler.state(), job_state, self.scheduler.engine_name(), now);
                let mut families = self.registry.gather();
                families.retain(|family| names || !family.get_metric().iter().any(has_names));
                match TextEncoder::new().encode_to_string(&families) {
                    Ok(metrics) => json!({ "metrics": metrics }),
                    Err(error) => json!({ "error": error.to_string() }),
                }
            }
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
                        let job = state.job(explanation.job).expect("it is explained");
                        let explained = Explained { state: job_state(&state.effective(job), job), explanation };
                        answer(&Answer { id: self.translator.native(job.id), explained })
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
            refusals: self.refusals.get(),
            problem: self.journal.error().map(|problem| &**problem),
            jobs: jobs.collect(),
        }
    }
}

fn ticket_limits(config: &Config) -> TicketLimits {
    TicketLimits {
        decision: UNLIMITED,
        budget: Budget::steps(config.budget),
        fits_wait: UNLIMITED,
        fits_every: FITS_EVERY,
    }
}

impl std::fmt::Debug for Agent {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Agent").field("config", &self.config).field("figures", &self.figures).finish_non_exhaustive()
    }
}

#[cfg(test)]
#[allow(dead_code)] // its other users are the adapter's tests
#[path = "../../../../adapters/tests/slurm/fake.rs"]
mod fake;

#[cfg(test)]
mod tests {
    use super::{fake::Slurm, *};

    fn round(agent: &mut Agent, slurm: &mut Slurm) {
        for call in agent.round(&slurm.observation(), Duration::ZERO) {
            let answer = slurm.order(&call);
            agent.answered(&call, answer);
        }
        agent.finish();
        slurm.tick();
    }

    #[test]
    fn programs_that_start_while_the_agent_restarts_are_told_nothing_before_their_job_is_observed() {
        let folder = tempfile::tempdir().unwrap();
        let config = folder.path().join("trainmaster.toml");
        fs::write(&config, "[feed]\nlisten = \"127.0.0.1:0\"\n").unwrap();
        let folders = Folders { config, state: folder.path().to_owned() };
        let mut slurm = Slurm::new(1, 4);
        slurm.frozen = true;
        let id = slurm.sbatch("train.sh", "trainmaster;mode=allreduce;worker.gpu=1;worker.max=4", 0, 200);
        let mut agent = Agent::open(&folders).unwrap();
        for _ in 0..5 {
            round(&mut agent, &mut slurm);
        }
        let job = agent.translator.job(id).unwrap();
        let issued = agent.told[&job].clone();
        assert!(!issued.slots.is_empty(), "{issued:?}");
        drop(agent);

        slurm.frozen = false;
        slurm.tick();
        let mut agent = Agent::open(&folders).unwrap();
        agent.pause();
        // After a panic, the plugin finishes a round in which this agent observed nothing.
        agent.finish();
        assert!(agent.told.is_empty(), "its programs would leave: {:?}", agent.told);
        let answer = |agent: &Agent| agent.services.feed.caller(Some("unknown")).unwrap_err().code();
        assert_eq!(answer(&agent), tonic::Code::Unavailable, "they try again");
        for _ in 0..3 {
            round(&mut agent, &mut slurm);
        }
        assert_eq!(agent.told[&job].slots, issued.slots);
        assert_eq!(answer(&agent), tonic::Code::Unauthenticated, "it is open");
    }
}

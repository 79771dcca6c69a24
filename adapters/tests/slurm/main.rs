//! The translation between a real core and a simulated Slurm.
#![cfg(feature = "slurm")]

mod corpus;
mod fake;
mod shrink;

use std::{
    cell::RefCell,
    collections::{BTreeMap, BTreeSet},
};

use fake::{DRAIN, IDLE, NO_RESPOND, Slurm};
use proptest::prelude::*;
use trainmaster_adapters::slurm::{
    Config, Translator,
    call::{Action, Purpose, SlurmCall, SlurmError},
    comment::{Given, Part, Tag},
    plan_of,
    seen::JobPhase,
    shape_rules,
};
use trainmaster_core::{
    Enactment, Event, EventError, Incarnation, JobId, Mode, Role, Scheduler, Settings, Shape, Span, Time, Verdict,
    settings::Stability,
};

/// Workers that survive a change of their number.
const RING: &str =
    "trainmaster;mode=allreduce;elastic=in_place;worker.gpu=1;worker.cpu=2;worker.memory=1GiB;worker.max=8";
const SERVERS: &str = "trainmaster;mode=sync;worker.gpu=1;worker.cpu=4;worker.max=4;server.cpu=2;server.max=4";

struct World {
    slurm: Slurm,
    scheduler: Scheduler,
    translator: Translator,
    config: Config,
    /// Whether the translator has the plan.
    attached: bool,
    /// Whether decisions can be written.
    writes: bool,
    /// Seconds after which a process that was told to leave has left.
    leaves_after: i64,
    /// When each of them was first asked for.
    told: RefCell<BTreeMap<Process, i64>>,
}

/// A process of an incarnation: role and index.
type Process = (JobId, Incarnation, (Role, u32));

fn settings(engine: &str) -> Settings {
    let stability = Stability { enabled: false, ..Stability::default() };
    Settings {
        engine: engine.into(),
        shape: shape_rules(),
        stability,
        refusal_backoff: Span::seconds(1),
        ..Settings::default()
    }
}

impl World {
    fn new(nodes: u32, gpus: u32, engine: &str) -> Self {
        let feed = Some("http://localhost:7071".into());
        let config = Config { lease: 100, patience: 5, grace: 3, feed, ..Config::default() };
        let scheduler = Scheduler::new(settings(engine)).unwrap();
        Self {
            slurm: Slurm::new(nodes, gpus),
            scheduler,
            translator: Translator::new(config.clone()),
            config,
            attached: false,
            writes: true,
            leaves_after: 0,
            told: RefCell::default(),
        }
    }

    fn calls(&mut self) -> Vec<SlurmCall> {
        let (now, told) = (self.slurm.now, &self.told);
        let has_left = |job, incarnation, slot| {
            now - *told.borrow_mut().entry((job, incarnation, slot)).or_insert(now) >= self.leaves_after
        };
        self.translator.calls(self.scheduler.state().mode, self.writes, has_left)
    }

    fn sbatch(&mut self, comment: &str) -> u32 {
        self.slurm.sbatch("train.sh", comment, 0, self.config.lease)
    }

    fn sbatch_het(&mut self, comment: &str, servers: u32) -> u32 {
        self.slurm.sbatch_het("train.sh", comment, servers, self.config.lease)
    }

    /// A new translator gets the full plan.
    fn restart(&mut self) {
        self.translator = Translator::new(self.config.clone());
        self.attached = false;
    }

    /// Passes the translator what changed in the plan.
    fn plan(&mut self) {
        let full = !std::mem::replace(&mut self.attached, true);
        if let Some(plan) = plan_of(&mut self.scheduler, full) {
            self.translator.plan(plan);
        }
    }

    fn apply(&mut self, event: Event) {
        let at = Time(self.slurm.now * 1000);
        match self.scheduler.apply(at, event.clone()) {
            Ok(()) => {}
            Err(error @ (EventError::NeverFits(_) | EventError::Unsupported { .. })) => {
                self.translator.not_taken(&event, error.to_string());
            }
            // Slurm can still report jobs that have ended in the core. A refused plan may no longer be the current one.
            Err(EventError::UnknownJob(_) | EventError::LateRefusal { .. }) => {}
            Err(error) => panic!("{event:?}: {error}"),
        }
    }

    /// The host's work in each second. Returns its orders.
    fn round(&mut self) -> Vec<SlurmCall> {
        self.slurm.tick();
        let seen = self.slurm.observation();
        self.plan();
        let events = self.translator.observe(&seen);
        let submits = events.iter().any(|event| matches!(event, Event::JobSubmitted { .. }));
        events.into_iter().for_each(|event| self.apply(event));
        if submits {
            self.plan();
            let events = self.translator.observe(&seen);
            events.into_iter().for_each(|event| self.apply(event));
        }
        assert_eq!(self.translator.observe(&seen), [], "an observation says ever more");
        self.scheduler.state().audit().unwrap();
        let at = Time(self.slurm.now * 1000);
        if self.scheduler.due().is_some_and(|due| due <= at) {
            self.scheduler.decide(at);
        }
        self.plan();
        let orders = self.calls();
        let mut named = BTreeMap::new();
        for order in &orders {
            assert_eq!(named.insert(order.id, ()), None, "two orders for one job");
            let job = &self.slurm.jobs[&order.id];
            let tag = Tag::read(&job.comment);
            assert!(tag.is_some() || Part::read(&job.comment).is_some(), "orders are for our own jobs");
            if let Action::Update(update) = &order.action {
                let begin = update.begin.unwrap_or(i64::MAX);
                assert!(tag.is_none_or(|tag| begin >= tag.begin), "before its owner's --begin");
                assert!(update.purpose != Purpose::Hold || begin >= self.slurm.now + self.config.lease / 2);
            }
            let answer = self.slurm.order(order);
            let events = self.translator.answered(order, answer);
            events.into_iter().for_each(|event| self.apply(event));
        }
        orders
    }

    fn rounds(&mut self, count: usize) -> Vec<SlurmCall> {
        (0..count).flat_map(|_| self.round()).collect()
    }

    fn nodes(&self, id: u32) -> Vec<String> {
        trainmaster_adapters::slurm::hostlist::expand(&self.slurm.jobs[&id].nodes).unwrap()
    }

    fn core(&self, id: u32) -> JobId {
        self.translator.job(id).expect("the core has it")
    }

    /// Checks that the core's allocation of a job and its state in Slurm are the same.
    fn agrees(&self, id: u32) -> Result<(), String> {
        let state = self.scheduler.state();
        let job = &self.slurm.jobs[&id];
        let Some(core) = self.translator.job(id).and_then(|core| state.job(core)) else { return Ok(()) };
        match state.effective(core) {
            Verdict::Run(allocation) => {
                for id in self.slurm.components(id) {
                    let job = &self.slurm.jobs[&id];
                    let is_here =
                        |role| job.component.is_none_or(|(_, offset)| (offset == 1) == (role == Role::Server));
                    let slots = allocation.slots().iter().filter(|slot| is_here(slot.role));
                    let wanted: BTreeSet<String> =
                        slots.map(|slot| state.server_name(slot.server).to_owned()).collect();
                    let nodes: BTreeSet<String> = self.nodes(id).into_iter().collect();
                    if job.phase() != JobPhase::Running
                        || nodes != wanted
                        || core.seen.allocation != core.issued.allocation
                    {
                        return Err(format!("{id} should run on {wanted:?}: {job:?}"));
                    }
                }
                Ok(())
            }
            Verdict::Wait(_) if job.phase() != JobPhase::Pending => Err(format!("{id} should wait: {job:?}")),
            _ => Ok(()),
        }
    }
}

#[test]
fn a_job_is_taken_started_and_ended() {
    let mut world = World::new(3, 4, "fifo");
    let id = world.sbatch(&format!("{RING};worker.requested=8;worker.min=8"));
    let foreign = world.slurm.sbatch("other", "mine", 0, 0);
    let orders = world.rounds(3);
    let [SlurmCall { id: first, action: Action::Update(update) }] = &orders[..] else { panic!("{orders:?}") };
    assert_eq!((*first, update.purpose, update.nodes), (id, Purpose::Start, Some((2, 2))));
    assert!(!orders[0].gives_nothing());
    assert_eq!((update.tasks, update.tasks_per_node, update.cpus_per_task), (Some(8), Some(4), Some(2)));
    assert_eq!((update.memory.raw(), update.tres_per_node.as_deref()), (4096, Some("gres:gpu:4")));
    let given = Given::read(&world.slurm.jobs[&id].admin_comment).unwrap();
    assert_eq!((given.incarnation, given.shape()), (1, Shape { workers: 8, servers: 0 }));
    world.agrees(id).unwrap();
    let job = world.core(id);
    let state = world.scheduler.state();
    assert_eq!(&*state.jobs[&job].spec.name, format!("train.sh-{id}"));
    assert_eq!(world.slurm.jobs[&foreign].phase(), JobPhase::Running);
    world.slurm.end(id, 3);
    assert_eq!(world.rounds(2), []);
    assert!(world.scheduler.state().jobs.is_empty());
}

#[test]
fn workers_and_parameter_servers_share_each_node_equally() {
    let mut world = World::new(4, 2, "fifo");
    let id = world.sbatch(&format!("{SERVERS};worker.requested=4;worker.min=4;server.requested=2;server.min=2"));
    let orders = world.rounds(3);
    let [SlurmCall { action: Action::Update(update), .. }] = &orders[..] else { panic!("{orders:?}") };
    // Two workers of 4 CPUs and a parameter server of 2 on each of two nodes are divided into tasks of 2 CPUs.
    assert_eq!((update.nodes, update.tasks_per_node, update.cpus_per_task), (Some((2, 2)), Some(5), Some(2)));
    assert_eq!((update.cpus, update.tres_per_node.as_deref()), (Some(20), Some("gres:gpu:2")));
    world.agrees(id).unwrap();
}

#[test]
fn the_components_of_a_heterogeneous_job_are_one_job() {
    let mut world = World::new(4, 2, "fifo");
    let comment = "trainmaster;worker.cpu=4;worker.requested=4;worker.min=4;worker.max=4;server.cpu=2";
    let id = world.sbatch_het(comment, 3);
    let orders = world.rounds(3);
    let [
        SlurmCall { id: first, action: Action::Update(of_servers) },
        SlurmCall { id: last, action: Action::Update(of_workers) },
    ] = &orders[..]
    else {
        panic!("{orders:?}")
    };
    assert_eq!((*first, *last), (id + 1, id), "the leader last");
    // Four workers on two nodes of two GPUs, three parameter servers on a third.
    assert_eq!((of_workers.nodes, of_workers.tasks, of_workers.cpus_per_task), (Some((2, 2)), Some(4), Some(4)));
    assert_eq!((of_servers.nodes, of_servers.tasks, of_servers.cpus_per_task), (Some((1, 1)), Some(3), Some(2)));
    assert_eq!((of_servers.tres_per_node.as_deref(), of_servers.begin), (Some(""), of_workers.begin));
    world.agrees(id).unwrap();
    let core = world.core(id);
    let job = world.scheduler.state().jobs[&core].clone();
    assert!(job.spec.separate_roles);
    assert_eq!(job.seen.allocation.as_ref().map(|seen| seen.shape()), Some(Shape { workers: 4, servers: 3 }));
    // The resources of both components aren't foreign use.
    assert!(world.scheduler.state().present_servers().all(|server| server.foreign.amounts == Default::default()));
    // A new agent finds the same state.
    world.restart();
    assert_eq!(world.rounds(5), []);
    world.agrees(id).unwrap();
    // It is requeued and held as a whole.
    world.apply(Event::JobHeld { job: core, held: true });
    let orders = world.rounds(40);
    assert!(matches!(&orders[0], SlurmCall { id: leader, action: Action::Requeue } if *leader == id), "{orders:?}");
    let holds: Vec<u32> = orders[1..].iter().map(|order| order.id).collect();
    assert_eq!(holds, [id + 1, id], "{orders:?}");
    world.apply(Event::JobHeld { job: core, held: false });
    world.rounds(20);
    world.agrees(id).unwrap();
    world.slurm.end(id, 3);
    world.rounds(3);
    assert!(world.scheduler.state().jobs.is_empty());
}

#[test]
fn one_refused_component_is_a_refusal_of_the_job() {
    let mut world = World::new(2, 2, "fifo");
    // A job in the first observation may have been stopped in that second. This one comes later.
    world.round();
    let id = world.sbatch_het("trainmaster;worker.cpu=4;worker.max=2;server.cpu=2", 1);
    world.slurm.tick();
    let seen = world.slurm.observation();
    let events = world.translator.observe(&seen);
    events.into_iter().for_each(|event| world.apply(event));
    world.scheduler.decide(Time(world.slurm.now * 1000));
    world.plan();
    let orders = world.calls();
    assert_eq!(orders.iter().map(|order| order.id).collect::<Vec<_>>(), [id + 1, id]);
    let error = SlurmError { code: 2072, text: "no".into() };
    let refused = world.translator.answered(&orders[0], Err(error));
    assert!(matches!(&refused[..], [Event::Enacted { result: Enactment::Refused { .. }, .. }]), "{refused:?}");
    assert_eq!(world.translator.answered(&orders[1], Ok(())), [], "said already");
    refused.into_iter().for_each(|event| world.apply(event));
    world.rounds(60);
    world.agrees(id).unwrap();
}

#[test]
fn a_heterogeneous_job_in_two_partitions_is_not_taken() {
    let mut world = World::new(2, 2, "fifo");
    let id = world.sbatch_het("trainmaster;worker.cpu=4;worker.max=2", 1);
    world.slurm.jobs.get_mut(&(id + 1)).unwrap().partition = "high".into();
    world.rounds(60);
    assert_eq!(world.translator.job(id), None);
    let job = &world.slurm.jobs[&id];
    assert!(job.admin_comment.contains("--partition") && job.admin_comment.contains("high"), "{job:?}");
}

#[test]
fn leases_are_renewed_at_half_life_and_never_before_the_owners_begin() {
    let mut world = World::new(1, 1, "fifo");
    let first = world.sbatch(&format!("{RING};worker.max=1"));
    let waiting = world.sbatch(&format!("{RING};worker.max=1"));
    let later = world.slurm.sbatch("l", &format!("{RING};worker.max=1"), world.slurm.now + 400, world.config.lease);
    world.rounds(3);
    world.agrees(first).unwrap();
    let orders = world.rounds(300);
    let holds: Vec<&SlurmCall> = orders.iter().filter(|order| order.id == waiting).collect();
    assert!((5..=7).contains(&holds.len()), "a renewal each 50 s: {holds:?}");
    assert!(orders.iter().all(|order| order.id == waiting), "{orders:?}");
    assert!(world.slurm.jobs[&waiting].admin_comment.contains("why="), "{:?}", world.slurm.jobs[&waiting]);
    assert_eq!(world.translator.job(later), None);
    world.rounds(120);
    assert!(world.translator.job(later).is_some(), "its time has come");
    // A job that never got an allocation starts as submitted if the agent is gone.
    world.slurm.end(first, 3);
    world.slurm.end(later, 4);
    for _ in 0..=world.config.lease {
        world.slurm.tick();
    }
    assert_eq!(world.slurm.jobs[&waiting].phase(), JobPhase::Running);
}

#[test]
fn a_new_shape_is_a_requeue_and_one_update() {
    let mut world = World::new(2, 4, "optimus");
    let ids = [0, 1, 2].map(|_| world.sbatch(&format!("{RING};worker.max=4")));
    let orders = world.rounds(400);
    let mut by_job: BTreeMap<u32, Vec<&SlurmCall>> = BTreeMap::new();
    orders.iter().for_each(|order| by_job.entry(order.id).or_default().push(order));
    for orders in by_job.values() {
        for pair in orders.windows(2) {
            let starts =
                |order: &SlurmCall| matches!(&order.action, Action::Update(update) if update.purpose == Purpose::Start);
            assert!(!(starts(pair[0]) && starts(pair[1])), "{pair:?}");
        }
    }
    for id in ids {
        world.agrees(id).unwrap();
    }
}

#[test]
fn what_slurm_refuses_or_never_starts_is_told_and_held_again() {
    let mut world = World::new(2, 2, "fifo");
    let id = world.sbatch(&format!("{RING};worker.max=1"));
    // Foreign jobs take GPUs that the core considers free.
    world.slurm.nodes[0].memory = 64_000;
    world.round();
    world.slurm.foreign.insert("node1".into(), 2);
    world.slurm.foreign.insert("node2".into(), 2);
    world.rounds(40);
    assert_eq!(world.slurm.jobs[&id].phase(), JobPhase::Pending);
    assert!(world.slurm.jobs[&id].start > world.slurm.now, "held: {:?}", world.slurm.jobs[&id]);
    world.slurm.foreign.clear();
    world.rounds(40);
    world.agrees(id).unwrap();
}

#[test]
fn a_pause_hands_jobs_back_as_they_were_submitted() {
    let mut world = World::new(1, 2, "fifo");
    let one = world.sbatch(&format!("{RING};worker.min=2;worker.max=2"));
    let two = world.sbatch(&format!("{RING};worker.min=2;worker.max=2"));
    world.rounds(3);
    world.apply(Event::ModeSet(Mode::Paused));
    let orders = world.rounds(3);
    let [SlurmCall { id, action: Action::Update(update) }] = &orders[..] else { panic!("{orders:?}") };
    assert_eq!((*id, update.purpose, update.nodes), (two, Purpose::Release, None));
    assert!(orders[0].gives_nothing(), "it goes out even where the journal can't be written");
    assert_eq!(world.slurm.jobs[&one].phase(), JobPhase::Running);
    // Backfill's estimate of the start is no reason to repeat the order.
    world.slurm.jobs.get_mut(&two).unwrap().start = world.slurm.now + 5000;
    assert_eq!(world.rounds(5), []);
    world.slurm.jobs.get_mut(&two).unwrap().start = world.slurm.now;
    world.slurm.end(one, 3);
    world.rounds(3);
    assert_eq!(world.slurm.jobs[&two].phase(), JobPhase::Running);
}

#[test]
fn a_new_agent_finds_everything_as_it_was() {
    let mut world = World::new(2, 4, "fifo");
    let ids = [4, 2, 8].map(|most| world.sbatch(&format!("{RING};worker.requested={most};worker.min={most}")));
    world.rounds(5);
    for id in ids {
        world.agrees(id).unwrap();
    }
    // The core keeps its state.
    world.restart();
    let orders = world.rounds(5);
    // Only the reason of the waiting job is reported again.
    let holds = |order: &SlurmCall| matches!(&order.action, Action::Update(update) if update.purpose == Purpose::Hold);
    assert!(orders.iter().all(holds), "{orders:?}");
    // The core starts without state. Running jobs aren't stopped before it has decided about them.
    world.restart();
    world.scheduler = Scheduler::new(settings("fifo")).unwrap();
    world.rounds(30);
    for id in ids {
        world.agrees(id).unwrap();
    }
}

#[test]
fn nodes_that_have_not_answered_yet_are_not_gone() {
    let mut world = World::new(2, 2, "fifo");
    let id = world.sbatch(SERVERS);
    world.rounds(3);
    world.agrees(id).unwrap();
    // slurmctld restarts. At first it knows its jobs, but its nodes haven't answered yet.
    world.restart();
    world.slurm.nodes.iter_mut().for_each(|node| node.state |= NO_RESPOND);
    assert_eq!(world.rounds(5), []);
    world.slurm.nodes.iter_mut().for_each(|node| node.state &= !NO_RESPOND);
    assert_eq!(world.rounds(3), []);
    world.agrees(id).unwrap();
    // Later a node doesn't answer. It is gone only when Slurm reports it as down.
    world.slurm.nodes[0].state |= NO_RESPOND;
    assert_eq!(world.rounds(3), []);
    world.agrees(id).unwrap();
    assert_eq!(world.slurm.jobs[&id].phase(), JobPhase::Running);
}

#[test]
fn loads_are_reported_where_the_site_wants_them() {
    let loads = |config: Config| {
        let (mut slurm, mut translator) = (Slurm::new(1, 0), Translator::new(config));
        let mut told = Vec::new();
        // NO_VAL, half of 16 CPUs, little more, more than there are, the largest number, and nothing again.
        for load in [None, Some(800), Some(879), Some(880), Some(1700), Some(u32::MAX), None, None] {
            slurm.nodes[0].load = load;
            for event in translator.observe(&slurm.observation()) {
                if let Event::Utilisation { used, devices, slots, .. } = event {
                    assert!(devices.is_empty() && slots.is_empty());
                    told.push(used.get("cpu").copied());
                }
            }
        }
        slurm.nodes[0].load = Some(100);
        translator.observe(&slurm.observation());
        translator.resync();
        let again = translator.observe(&slurm.observation());
        let again = again.iter().filter(|event| matches!(event, Event::Utilisation { .. })).count();
        (told, again)
    };
    assert_eq!(loads(Config::default()), (vec![], 0));
    let measured = [Some(8000), Some(8800), Some(16_000), None];
    assert_eq!(loads(Config { measure: true, ..Config::default() }), (measured.to_vec(), 1));
}

#[test]
fn a_finished_training_that_does_not_end_is_ended() {
    let mut world = World::new(1, 1, "fifo");
    let id = world.sbatch(RING);
    world.rounds(3);
    let job = world.core(id);
    world.apply(Event::JobEnded { job, end: trainmaster_core::End::Completed });
    let orders = world.rounds(6);
    assert!(matches!(&orders[..], [SlurmCall { action: Action::Cancel, .. }]), "{orders:?}");
}

#[test]
fn a_finished_training_is_not_taken_anew_by_a_new_agent() {
    let mut world = World::new(1, 1, "fifo");
    let id = world.sbatch(RING);
    world.rounds(3);
    let job = world.core(id);
    world.apply(Event::JobEnded { job, end: trainmaster_core::End::Completed });
    world.restart();
    let orders = world.rounds(6);
    assert!(matches!(&orders[..], [SlurmCall { action: Action::Cancel, .. }]), "{orders:?}");
    assert!(world.scheduler.state().jobs.is_empty(), "it was taken a second time");
}

#[test]
fn a_job_that_the_scheduler_stops_ends_in_the_core_too() {
    let mut world = World::new(1, 1, "fifo");
    let id = world.sbatch(&format!("{RING};time_limit=20s"));
    let orders = world.rounds(60);
    assert!(matches!(&orders[..], [_, SlurmCall { action: Action::Cancel, .. }]), "{orders:?}");
    assert!(matches!(world.slurm.jobs[&id].phase(), JobPhase::Over(_)));
    assert!(world.scheduler.state().jobs.is_empty(), "its end wasn't reported");
    assert_eq!(world.scheduler.state().leaving_jobs().len(), 0);
}

#[test]
fn only_in_active_mode_a_finished_training_is_ended() {
    for mode in [Mode::Shadow, Mode::Paused] {
        let mut world = World::new(1, 1, "fifo");
        let id = world.sbatch(RING);
        world.rounds(3);
        world.apply(Event::ModeSet(mode));
        let job = world.core(id);
        world.apply(Event::JobEnded { job, end: trainmaster_core::End::Completed });
        assert_eq!(world.rounds(10), [], "{mode:?}");
        assert_eq!(world.slurm.jobs[&id].phase(), JobPhase::Running);
    }
}

#[test]
fn the_documents_first_job_is_accepted_as_it_stands() {
    use trainmaster_adapters::slurm::submit::{Submission, submit};
    let text = include_str!("../../../docs/slurm.md");
    let script = text.split("```bash\n").nth(1).and_then(|rest| rest.split("```").next()).unwrap();
    assert!(script.contains("#SBATCH -N 1 -n 3 --gpus-per-node=2"), "{script}");
    let job = Submission {
        name: "job.sh".into(),
        script: Some(script.into()),
        min_nodes: Some(1),
        tasks: Some(3),
        tres_per_node: "gres:gpu:2".into(),
        ..Submission::default()
    };
    let (held, _) = submit(&job, 0, 900, [0; 32]).unwrap().unwrap();
    let told = |name: &str| held.environment.iter().find(|(known, _)| *known == name).map(|(_, value)| value.as_str());
    let shape = ["TRAINMASTER_WORKERS", "TRAINMASTER_WORKER_GPUS", "TRAINMASTER_WORKER_CPUS", "TRAINMASTER_SERVERS"];
    assert_eq!(shape.map(told), [Some("2"), Some("1"), Some("1"), Some("1")]);
}

#[test]
fn a_job_that_never_fits_waits_with_the_reason_and_is_tried_again() {
    let mut world = World::new(1, 2, "fifo");
    let id = world.sbatch("trainmaster;mode=allreduce;worker.gpu=4");
    world.rounds(60);
    let job = &world.slurm.jobs[&id];
    assert!(job.admin_comment.contains("why=") && job.admin_comment.contains("gpu"), "{job:?}");
    world.slurm.nodes[0].gres = "gpu:a100:4(S:0-1)".into();
    world.rounds(60);
    world.agrees(id).unwrap();
}

#[derive(Clone, Debug)]
enum Happening {
    Submit(usize, u32),
    End(usize, u32),
    Foreign(usize, u32),
    Fail(usize),
    Drain(usize),
    Repair(usize),
    Hold(usize, bool),
    Restart,
    Pause(bool),
    Pass(usize),
}

fn happening() -> impl Strategy<Value = Happening> {
    use Happening::*;
    prop_oneof![
        4 => (0..4_usize, 1..6_u32).prop_map(|(kind, most)| Submit(kind, most)),
        2 => (0..6_usize, 3..6_u32).prop_map(|(at, state)| End(at, state)),
        1 => (0..4_usize, 0..3_u32).prop_map(|(at, gpus)| Foreign(at, gpus)),
        1 => (0..4_usize).prop_map(Fail),
        1 => (0..4_usize).prop_map(Drain),
        2 => (0..4_usize).prop_map(Repair),
        1 => (0..6_usize, any::<bool>()).prop_map(|(at, held)| Hold(at, held)),
        1 => Just(Restart),
        1 => any::<bool>().prop_map(Pause),
        6 => (1..40_usize).prop_map(Pass),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 48, ..ProptestConfig::default() })]

    #[test]
    fn whatever_happens_slurm_and_the_core_come_to_agree(
        engine in prop::sample::select(vec!["fifo", "optimus", "dorm"]),
        happenings in prop::collection::vec(happening(), 1..25),
    ) {
        let mut world = World::new(4, 4, engine);
        let mut ids = Vec::new();
        for happening in happenings {
            match happening {
                Happening::Submit(0, most) => ids.push(world.sbatch(&format!("{RING};worker.max={most}"))),
                Happening::Submit(1, most) => ids.push(world.sbatch(&format!("{SERVERS};worker.max={most}"))),
                Happening::Submit(2, most) => {
                    let comment = format!("trainmaster;worker.cpu=4;worker.max={most};server.max=4");
                    ids.push(world.sbatch_het(&comment, most.min(4)));
                }
                Happening::Submit(_, most) => {
                    let begin = world.slurm.now + i64::from(most) * 30;
                    ids.push(world.slurm.sbatch("b", RING, begin, world.config.lease));
                }
                Happening::End(at, state) => if let Some(&id) = ids.get(at) {
                    world.slurm.end(id, state);
                },
                Happening::Foreign(at, gpus) => {
                    let name = world.slurm.nodes[at].name.clone();
                    // Foreign jobs start only where there is room, as Trainmaster's do.
                    world.slurm.foreign.insert(name.clone(), 0);
                    let seen = world.slurm.observation();
                    let used = seen.nodes[at].used_cpus.max(u32::from(seen.nodes[at].gres_used != "gpu:a100:0(IDX:0)"));
                    if used == 0 {
                        world.slurm.foreign.insert(name, gpus);
                    }
                }
                Happening::Fail(at) => world.slurm.fail(at),
                Happening::Drain(at) => world.slurm.nodes[at].state |= DRAIN,
                Happening::Repair(at) => world.slurm.nodes[at].state = IDLE,
                Happening::Hold(at, held) => for id in ids.get(at).map_or(vec![], |id| world.slurm.components(*id)) {
                    let job = world.slurm.jobs.get_mut(&id).unwrap();
                    if job.phase() == JobPhase::Pending {
                        job.priority = if held { 0 } else { 100 };
                    }
                },
                Happening::Restart => world.restart(),
                Happening::Pause(paused) => {
                    world.apply(Event::ModeSet(if paused { Mode::Paused } else { Mode::Active }));
                }
                Happening::Pass(seconds) => drop(world.rounds(seconds)),
            }
            world.round();
        }
        // From now on nothing else happens.
        world.apply(Event::ModeSet(Mode::Active));
        world.slurm.jobs.values_mut().for_each(|job| job.priority = 100);
        world.rounds(900);
        for id in &ids {
            prop_assert_eq!(world.agrees(*id), Ok(()));
        }
        let state = world.scheduler.state();
        for job in state.jobs.values() {
            let native: u32 = job.external.as_ref().unwrap().native.parse().unwrap();
            let phase = world.slurm.jobs[&native].phase();
            prop_assert!(!matches!(phase, JobPhase::Over(_)), "the core doesn't know that {} ended", native);
            let waits = job.verdict.allocation().is_none();
            prop_assert!(!waits || job.issued.allocation.is_none(), "{} waits and has issued slots", native);
        }
    }
}

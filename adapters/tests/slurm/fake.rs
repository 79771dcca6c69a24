//! A simulated Slurm. It behaves as the real one was observed to (see `integration/slurm/README.md`), and starts no job
//! that doesn't fit.

use std::collections::{BTreeMap, BTreeSet};

use trainmaster_adapters::slurm::{
    call::{Action, CallResult, Purpose, SlurmCall, SlurmError, Update},
    gres::parse_gres,
    hostlist,
    seen::{Job, JobPhase, Node, Observation, Partition},
    submit::{Submission, submit, submit_servers},
};

pub(crate) const RUNNING: u32 = 1;
pub(crate) const IDLE: u32 = 2;
pub(crate) const DOWN: u32 = 1;
pub(crate) const DRAIN: u32 = 1 << 9;
pub(crate) const NO_RESPOND: u32 = 1 << 11;
const COMPLETING: u32 = 1 << 15;
const REQUEUE: u32 = 1 << 10;

/// A job's current request.
#[derive(Clone, Debug, Default)]
struct Asks {
    nodes: u32,
    cpus_per_node: u32,
    memory: u64,
    gpus: u64,
    on: Vec<String>,
}

#[derive(Debug)]
pub(crate) struct Slurm {
    pub(crate) now: i64,
    pub(crate) nodes: Vec<Node>,
    pub(crate) jobs: BTreeMap<u32, Job>,
    asks: BTreeMap<u32, Asks>,
    /// When a job last left its nodes. The credentials of that second are revoked.
    left: BTreeMap<u32, i64>,
    /// Whether it starts no jobs.
    pub(crate) frozen: bool,
    next: u32,
    /// GPUs in foreign use on each node.
    pub(crate) foreign: BTreeMap<String, u32>,
}

impl Slurm {
    pub(crate) fn new(nodes: u32, gpus: u32) -> Self {
        let node = |at| Node {
            name: format!("node{at}"),
            state: IDLE,
            cpus: 16,
            threads: 1,
            memory: 64_000,
            gres: format!("gpu:a100:{gpus}(S:0-1)"),
            features: "ssd".into(),
            ..Node::default()
        };
        let nodes = (1..=nodes).map(node).collect();
        Self {
            now: 1000,
            nodes,
            jobs: BTreeMap::new(),
            asks: BTreeMap::new(),
            left: BTreeMap::new(),
            frozen: false,
            next: 1,
            foreign: BTreeMap::new(),
        }
    }

    pub(crate) fn sbatch(&mut self, name: &str, comment: &str, begin: i64, lease: i64) -> u32 {
        let submission = Submission {
            name: name.into(),
            comment: comment.into(),
            script: Some("#!/bin/sh\n".into()),
            begin,
            min_nodes: Some(1),
            max_nodes: Some(1),
            tasks: Some(1),
            tres_per_node: "gres:gpu:1".into(),
            ..Submission::default()
        };
        let held = submit(&submission, self.now, lease, [7; 32]).expect("a good job");
        let (comment, start) = held.map_or((comment.to_owned(), begin), |(held, _)| (held.comment, held.begin));
        self.enter(name, comment, start, 1)
    }

    /// Submits a heterogeneous job with workers and the given number of parameter servers.
    pub(crate) fn sbatch_het(&mut self, name: &str, comment: &str, servers: u32, lease: i64) -> u32 {
        let first = Submission {
            name: name.into(),
            comment: comment.into(),
            script: Some("#!/bin/sh\n".into()),
            component: Some(0),
            min_nodes: Some(1),
            max_nodes: Some(1),
            tasks: Some(1),
            tres_per_node: "gres:gpu:1".into(),
            ..Submission::default()
        };
        let (held, leader) = submit(&first, self.now, lease, [7; 32]).expect("a good job").expect("ours");
        let second = Submission {
            component: Some(1),
            tasks: Some(servers),
            script: None,
            tres_per_node: String::new(),
            ..first
        };
        let part = submit_servers(&second, &leader.expect("it is the first")).expect("a good component");
        let leader = self.enter(name, held.comment, held.begin, 1);
        let id = self.enter(name, part.comment, part.begin, 0);
        self.jobs.get_mut(&leader).unwrap().component = Some((leader, 0));
        self.jobs.get_mut(&id).unwrap().component = Some((leader, 1));
        leader
    }

    fn enter(&mut self, name: &str, comment: String, start: i64, gpus: u64) -> u32 {
        let id = self.next;
        self.next += 1;
        let job = Job {
            id,
            name: name.into(),
            user: "ann".into(),
            partition: "low".into(),
            comment,
            start,
            priority: 100,
            ..Job::default()
        };
        self.jobs.insert(id, job);
        self.asks.insert(id, Asks { nodes: 1, cpus_per_node: 1, memory: 100, gpus, on: Vec::new() });
        id
    }

    /// The components of a leader's job, or the job itself.
    pub(crate) fn components(&self, id: u32) -> Vec<u32> {
        let of = |job: &&Job| job.id == id || job.component.is_some_and(|(leader, _)| leader == id);
        self.jobs.values().filter(of).map(|job| job.id).collect()
    }

    pub(crate) fn observation(&self) -> Observation {
        let mut nodes = self.nodes.clone();
        for node in &mut nodes {
            let (gpus, cpus, memory) = self.used(&node.name);
            node.gres_used = format!("gpu:a100:{gpus}(IDX:0)");
            (node.used_cpus, node.used_memory) = (cpus, memory);
        }
        let low =
            Partition { name: "low".into(), nodes: format!("node[1-{}]", nodes.len()), up: true, ..Default::default() };
        Observation { at: self.now, nodes, partitions: vec![low], jobs: self.jobs.values().cloned().collect() }
    }

    /// GPUs, CPUs and memory in use on a node.
    fn used(&self, node: &str) -> (u64, u32, u64) {
        let foreign = self.foreign.get(node).copied().unwrap_or(0);
        let (mut gpus, mut cpus, mut memory) = (u64::from(foreign), foreign, 0);
        for (id, job) in &self.jobs {
            if hostlist::expand(&job.nodes).unwrap().iter().any(|name| name == node) {
                let asks = &self.asks[id];
                gpus += asks.gpus;
                cpus += asks.cpus_per_node;
                memory += asks.memory;
            }
        }
        (gpus, cpus, memory)
    }

    pub(crate) fn order(&mut self, order: &SlurmCall) -> CallResult {
        let gone = || SlurmError { code: SlurmError::GONE, text: "Invalid job id specified".into() };
        let components = self.components(order.id);
        let job =
            self.jobs.get_mut(&order.id).filter(|job| !matches!(job.phase(), JobPhase::Over(_))).ok_or_else(gone)?;
        match (&order.action, job.phase()) {
            (Action::Cancel, _) => self.end(order.id, 4),
            (Action::Requeue, JobPhase::Running | JobPhase::Starting) => {
                assert!(job.component.is_none_or(|(_, offset)| offset == 0), "Slurm wants the leader");
                for id in components {
                    self.jobs.get_mut(&id).unwrap().state = COMPLETING | REQUEUE;
                }
            }
            (Action::Update(update), JobPhase::Pending) => self.update(order.id, update),
            (Action::Update(update), JobPhase::Running) if update.purpose == Purpose::Shrink => {
                let keep: BTreeSet<&str> = update.req_nodes.as_deref().unwrap().split(',').collect();
                assert!(keep.contains(job.batch_host.as_str()), "Slurm kills the batch script");
                job.nodes = update.req_nodes.clone().unwrap();
                job.admin_comment = update.admin_comment.clone().unwrap();
                describe(job, &self.asks[&order.id]);
            }
            (action, phase) => {
                return Err(SlurmError { code: 2020, text: format!("{action:?} while {phase:?}") });
            }
        }
        Ok(())
    }

    fn update(&mut self, id: u32, update: &Update) {
        let job = self.jobs.get_mut(&id).unwrap();
        assert!(job.priority != 0 || update.purpose != Purpose::Start, "a held job is its owner's");
        let revoked = self.left.get(&id).is_some_and(|left| *left >= self.now && update.begin <= Some(self.now));
        assert!(!revoked, "Slurm kills a job that it starts in the second in which it stopped it");
        job.start = update.begin.unwrap_or(job.start);
        if let Some(text) = &update.admin_comment {
            job.admin_comment = text.clone();
        }
        let Some((least, most)) = update.nodes else { return };
        let (tasks, per_node) = (update.tasks.unwrap(), update.tasks_per_node.unwrap());
        let asks = self.asks.get_mut(&id).unwrap();
        asks.gpus = parse_gres(update.tres_per_node.as_deref().unwrap()).iter().map(|gres| gres.count).sum();
        asks.nodes = least;
        if update.purpose == Purpose::Start {
            let cpus = per_node * update.cpus_per_task.unwrap();
            // An inconsistent request would stay pending forever, as BadConstraints.
            assert_eq!((least, tasks), (most, least * per_node));
            assert_eq!((update.cpus, update.cpus_per_node), (Some(least * cpus), Some(cpus)));
            asks.on = update.req_nodes.as_deref().unwrap().split(',').map(str::to_owned).collect();
            assert_eq!(asks.on.len() as u32, least);
            (asks.cpus_per_node, asks.memory) = (cpus, update.memory.raw());
        } else {
            asks.on.clear();
            (asks.cpus_per_node, asks.memory) = (1, 100);
        }
    }

    /// Ends a job with a base state.
    pub(crate) fn end(&mut self, id: u32, state: u32) {
        for id in self.components(id) {
            let job = self.jobs.get_mut(&id).unwrap();
            job.state = state;
            job.nodes.clear();
            job.gres.clear();
        }
    }

    /// A node goes down, and its jobs return to the queue.
    pub(crate) fn fail(&mut self, at: usize) {
        self.nodes[at].state = DOWN;
        let name = self.nodes[at].name.clone();
        let hit = |job: &&Job| hostlist::expand(&job.nodes).unwrap().contains(&name);
        let leader = |job: &Job| job.component.map_or(job.id, |(leader, _)| leader);
        let leaders: Vec<u32> = self.jobs.values().filter(hit).map(leader).collect();
        let hit: Vec<u32> = leaders.into_iter().flat_map(|leader| self.components(leader)).collect();
        for id in hit {
            self.jobs.get_mut(&id).unwrap().state = COMPLETING | REQUEUE;
        }
    }

    /// One second passes. Leaving jobs are gone afterwards, and jobs that can start and fit are started.
    pub(crate) fn tick(&mut self) {
        self.now += 1;
        for job in self.jobs.values_mut() {
            if matches!(job.phase(), JobPhase::Leaving { requeued: true }) {
                job.state = 0;
                job.nodes.clear();
                job.gres.clear();
                self.left.insert(job.id, self.now);
                job.start = self.now + 120;
            }
        }
        let ready: Vec<u32> = self
            .jobs
            .values()
            .filter(|job| job.component.is_none_or(|(_, offset)| offset == 0))
            .map(|job| job.id)
            .collect();
        for leader in ready {
            // All components start or none, on nodes that they don't share.
            let components = self.components(leader);
            let may_start = |id: &u32| {
                let job = &self.jobs[id];
                !self.frozen && job.phase() == JobPhase::Pending && job.start <= self.now && job.priority > 0
            };
            if !components.iter().all(may_start) {
                continue;
            }
            let mut places: Vec<Vec<String>> = Vec::new();
            for id in &components {
                match self.place(*id, &places.concat()) {
                    Some(nodes) => places.push(nodes),
                    None => break,
                }
            }
            if places.len() < components.len() {
                components.iter().for_each(|id| self.jobs.get_mut(id).unwrap().reason = "Resources".into());
                continue;
            }
            for (id, nodes) in components.into_iter().zip(places) {
                let job = self.jobs.get_mut(&id).unwrap();
                job.state = RUNNING;
                job.batch_host = nodes[0].clone();
                job.nodes = nodes.join(",");
                describe(job, &self.asks[&id]);
            }
        }
    }

    fn place(&self, id: u32, taken: &[String]) -> Option<Vec<String>> {
        let asks = &self.asks[&id];
        let fits = |node: &&Node| {
            let (gpus, cpus, memory) = self.used(&node.name);
            let all: u64 = parse_gres(&node.gres).iter().map(|gres| gres.count).sum();
            node.state == IDLE
                && !taken.contains(&node.name)
                && (asks.on.is_empty() || asks.on.contains(&node.name))
                && gpus + asks.gpus <= all
                && cpus + asks.cpus_per_node <= node.cpus
                && memory + asks.memory <= node.memory
        };
        let fitting = self.nodes.iter().filter(fits).map(|node| node.name.clone());
        let nodes: Vec<String> = fitting.take(asks.nodes as usize).collect();
        (nodes.len() == asks.nodes as usize).then_some(nodes)
    }
}

fn describe(job: &mut Job, asks: &Asks) {
    let count = hostlist::expand(&job.nodes).unwrap().len();
    let (cpus, memory) = (count as u32 * asks.cpus_per_node, count as u64 * asks.memory);
    job.tres = format!("cpu={cpus},mem={memory}M,node={count},billing={cpus}");
    job.gres = vec![format!("gpu:a100:{}(IDX:0)", asks.gpus); count];
}

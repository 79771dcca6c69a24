//! The same dispatch by a plain algorithm: a sorted list for each worker, and a scan of all lists for each chunk.

use trainmaster_core::{
    Role, Scheduler, Span, Time,
    decision::{WorkItem, WorkState},
};

/// A chunk: (D · time of a chunk, order, milliseconds left, D).
type Chunk = (u64, u64, u64, u64);

/// Chunks of each worker, by rate.
pub(super) struct Queues {
    workers: Vec<Vec<Chunk>>,
    /// Milliseconds that each worker will have trained when the arrival's chunks are there.
    trained: u64,
    upload: u64,
}

impl Queues {
    /// The planned pending chunks. All were there at time zero, and each worker has trained since.
    pub(super) fn of(scheduler: &Scheduler, now: Time, upload: Span) -> Self {
        let state = scheduler.state();
        let mut workers = vec![Vec::new(); state.servers.iter().map(|server| server.devices.len()).sum()];
        let mut first = Vec::new();
        let mut sum = 0;
        for server in &state.servers {
            first.push(sum);
            sum += server.devices.len();
        }
        for job in state.jobs.values() {
            let data = job.spec.dataset.as_ref().expect("all have one");
            let each = data.batch_time.expect("all have one").0 as u64;
            let planned = job.verdict.allocation().expect("all were dispatched");
            for work in planned.work() {
                let (Some((Role::Worker, index)), WorkItem::Chunk(chunk)) = (work.slot, work.item) else { continue };
                assert_ne!(work.state, WorkState::Done);
                let slot = planned.slot(Role::Worker, index).expect("it has work");
                let worker = first[slot.server.index()] + usize::from(slot.devices[0].device);
                let order = job.id.0 << 32 | u64::from(chunk);
                workers[worker].push((u64::from(data.chunks) * each, order, each, u64::from(data.chunks)));
            }
        }
        workers.iter_mut().for_each(|chunks| chunks.sort_unstable());
        Self { workers, trained: (now + upload).0 as u64, upload: upload.0 as u64 }
    }

    /// Sends a job's chunks one by one to the worker with the smallest Q. Returns Σ min Q in seconds.
    pub(super) fn dispatch(&mut self, chunks: u32, each: Span) -> f64 {
        let (d, each) = (u64::from(chunks), each.0 as u64);
        let mut added: Vec<usize> = Vec::new();
        let mut total = 0.0;
        for _ in 0..chunks {
            let increase = |(at, queue): (usize, &Vec<Chunk>)| {
                let own = added.iter().filter(|worker| **worker == at).count() as u64;
                self.increase(queue, d, each, own)
            };
            let all = self.workers.iter().enumerate().map(increase).enumerate();
            let (worker, least) = all.min_by(|(_, a), (_, b)| a.total_cmp(b)).expect("there are workers");
            added.push(worker);
            total += least / 1000.0;
        }
        total
    }

    /// Eq. 5, with `own` chunks of the same job on their way to the worker, which arrive together with this one.
    fn increase(&self, queue: &[Chunk], d: u64, each: u64, own: u64) -> f64 {
        let mut trained = self.trained;
        let (mut ahead, mut behind) = (own * each, 0.0);
        for (inverse, _, left, of) in queue {
            let done = trained.min(*left);
            trained -= done;
            if *inverse <= d * each {
                ahead += left - done;
            } else if done < *left {
                behind += 1.0 / *of as f64;
            }
        }
        (self.upload + ahead + each) as f64 / d as f64 + each as f64 * behind
    }
}

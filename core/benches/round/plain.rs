//! The reference: the same allocation and placement without anything else, written for speed.
//!
//! It uses packed arrays of four amounts, one binary heap of gains, and servers in one sorted array in which changed
//! servers are moved. It has no index of free room, no devices, no verdicts, no guard, no delta.

use std::{cmp::Reverse, collections::BinaryHeap};

use trainmaster_core::{
    Shape, State,
    fit::SpeedCurve,
    resources::{Amounts, BANDWIDTH, CPU, GPU, MEMORY},
};

type Packed = [i64; 4];

pub(crate) struct Input {
    servers: Vec<Packed>,
    total: Packed,
    jobs: Vec<PlainJob>,
}

struct PlainJob {
    curve: SpeedCurve,
    steps: f64,
    worker: Packed,
    server: Packed,
    most: Shape,
    per_worker: f64,
    per_server: f64,
}

fn pack(amounts: &Amounts) -> Packed {
    [amounts[GPU], amounts[CPU], amounts[MEMORY], amounts[BANDWIDTH]]
}

fn share(demand: &Packed, total: &Packed) -> f64 {
    demand
        .iter()
        .zip(total)
        .map(|(need, all)| if *all > 0 { *need as f64 / *all as f64 } else { 0.0 })
        .fold(0.0, f64::max)
}

fn fits(need: &Packed, room: &Packed) -> bool {
    need.iter().zip(room).all(|(need, room)| need <= room)
}

fn weigh(w: u32, worker: &Packed, p: u32, server: &Packed) -> Packed {
    std::array::from_fn(|at| worker[at] * i64::from(w) + server[at] * i64::from(p))
}

impl Input {
    pub(crate) fn of(state: &State) -> Self {
        let total = pack(&state.usable);
        let jobs = state.jobs.values().map(|job| {
            let (worker, server) = (pack(&job.worker.amounts), pack(&job.server.amounts));
            PlainJob {
                curve: job.learnt.fits.speed.as_ref().expect("every job is profiled").curve(),
                steps: job.remaining_steps().0,
                most: job.spec.bounds().most(),
                per_worker: 1.0 / share(&worker, &total),
                per_server: 1.0 / share(&server, &total),
                worker,
                server,
            }
        });
        Self {
            servers: state.servers.iter().map(|server| pack(&server.usable())).collect(),
            total,
            jobs: jobs.collect(),
        }
    }
}

/// Returns the number of placed tasks, with a sum of the placement, so that nothing is optimised away.
pub(crate) fn round(input: &Input) -> usize {
    let shapes = allocate(input);
    place(input, &shapes)
}

fn allocate(input: &Input) -> Vec<Shape> {
    let mut left = input.total;
    let mut shapes = vec![Shape::default(); input.jobs.len()];
    let mut open = vec![(true, true); input.jobs.len()];
    let mut heap = BinaryHeap::with_capacity(input.jobs.len());
    let gain = |at: usize, shape: Shape, open: (bool, bool)| {
        let job = &input.jobs[at];
        let time = |w, p| job.steps / job.curve.speed(p, w);
        let now = time(shape.workers, shape.servers);
        let w = if open.0 && shape.workers < job.most.workers {
            (now - time(shape.workers + 1, shape.servers)) * job.per_worker
        } else {
            0.0
        };
        let p = if open.1 && shape.servers < job.most.servers {
            (now - time(shape.workers, shape.servers + 1)) * job.per_server
        } else {
            0.0
        };
        (w.max(p) > 0.0).then(|| (w.max(p).to_bits(), w >= p))
    };
    for (at, job) in input.jobs.iter().enumerate() {
        let least = weigh(1, &job.worker, 1, &job.server);
        if fits(&least, &left) {
            left = std::array::from_fn(|r| left[r] - least[r]);
            shapes[at] = Shape { workers: 1, servers: 1 };
            if let Some((bits, worker)) = gain(at, shapes[at], open[at]) {
                heap.push((bits, Reverse(at as u32), worker));
            }
        }
    }
    while let Some(mut top) = heap.peek_mut() {
        let (at, worker) = (top.1.0 as usize, top.2);
        let job = &input.jobs[at];
        let unit = if worker { &job.worker } else { &job.server };
        if fits(unit, &left) {
            left = std::array::from_fn(|r| left[r] - unit[r]);
            if worker {
                shapes[at].workers += 1;
            } else {
                shapes[at].servers += 1;
            }
        } else if worker {
            open[at].0 = false;
        } else {
            open[at].1 = false;
        }
        match gain(at, shapes[at], open[at]) {
            Some((bits, worker)) => (top.0, top.2) = (bits, worker),
            None => drop(std::collections::binary_heap::PeekMut::pop(top)),
        }
    }
    shapes
}

fn place(input: &Input, shapes: &[Shape]) -> usize {
    let mut free = input.servers.clone();
    let key = |free: &Packed| {
        let score: f64 = free
            .iter()
            .zip(&input.total)
            .map(|(free, all)| if *all > 0 { *free as f64 / *all as f64 } else { 0.0 })
            .sum();
        !score.to_bits()
    };
    let mut order: Vec<(u64, u32)> = free.iter().enumerate().map(|(at, free)| (key(free), at as u32)).collect();
    order.sort_unstable();
    let mut jobs: Vec<(f64, usize)> = shapes
        .iter()
        .enumerate()
        .filter(|(_, shape)| !shape.is_empty())
        .map(|(at, shape)| {
            let job = &input.jobs[at];
            (share(&weigh(shape.workers, &job.worker, shape.servers, &job.server), &input.total), at)
        })
        .collect();
    jobs.sort_by(|mine, theirs| mine.0.total_cmp(&theirs.0).then(mine.1.cmp(&theirs.1)));
    let mut placed = 0;
    let mut first: Vec<(usize, u32, u32, u32)> = Vec::new();
    for (_, at) in jobs {
        let (job, shape) = (&input.jobs[at], shapes[at]);
        let both = weigh(1, &job.worker, 1, &job.server);
        first.clear();
        let mut position = 0;
        'fewest: for k in 1..=shape.workers.max(shape.servers) {
            while position < order.len() && !fits(&both, &free[order[position].1 as usize]) {
                position += 1;
            }
            let Some(&(_, server)) = order.get(position) else { break };
            first.push((position, server, 0, 0));
            position += 1;
            let (w, p) = (shape.workers / k, shape.servers / k);
            let (mut more_w, mut more_p) = (shape.workers % k, shape.servers % k);
            for slot in &mut first {
                let room = &free[slot.1 as usize];
                if !fits(&weigh(w, &job.worker, p, &job.server), room) {
                    continue 'fewest;
                }
                (slot.2, slot.3) = (w, p);
                if more_w > 0 && fits(&weigh(w + 1, &job.worker, p, &job.server), room) {
                    slot.2 += 1;
                    more_w -= 1;
                }
                if more_p > 0 && fits(&weigh(slot.2, &job.worker, p + 1, &job.server), room) {
                    slot.3 += 1;
                    more_p -= 1;
                }
            }
            if more_w > 0 || more_p > 0 {
                continue;
            }
            // Changed servers move to their new positions, from the last one, so that positions stay valid.
            for &(position, server, w, p) in first.iter().rev() {
                let take = weigh(w, &job.worker, p, &job.server);
                let room = &mut free[server as usize];
                *room = std::array::from_fn(|r| room[r] - take[r]);
                let entry = (key(room), server);
                let to = position + order[position + 1..].partition_point(|other| *other < entry);
                order[position..=to].rotate_left(1);
                order[to] = entry;
                placed += (w + p) as usize;
            }
            break;
        }
    }
    placed
}

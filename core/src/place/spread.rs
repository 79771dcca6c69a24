//! Theorem 1 of Optimus: the minimum number of servers, with equal numbers of workers and of parameter servers on each.

use crate::{
    budget::{Budget, EngineError},
    ids::ServerId,
    job::Job,
    place::{assign::Count, index::FreeIndex, room::Room},
    resources::{Amounts, GPU},
    shape::Shape,
    state::State,
};

/// Spreads a shape evenly over the first k of the freest servers that can hold a worker and a parameter server, for the
/// smallest possible k. If there is none, or if the roles may not share servers, the shape is spread over two lists of
/// servers, workers first. `None` if there is no such placement now.
///
/// Each of the k servers gets ⌊w/k⌋ or ⌈w/k⌉ workers and ⌊p/k⌋ or ⌈p/k⌉ parameter servers. Theorem 1 assumes equal
/// servers. If some servers have no GPU, only two lists can place parameter servers there. Without them, the paper's
/// own cluster leaves 7 of its 13 servers idle, and a job with more parameter servers than the GPU servers have cores
/// for stays paused.
///
/// O(k²) checks for k up to max(w, p), plus the walk of the index.
///
/// # Errors
/// The budget is used up.
pub fn spread(
    state: &State,
    room: &Room,
    index: &FreeIndex,
    job: &Job,
    shape: Shape,
    budget: &mut Budget,
) -> Result<Option<Vec<Count>>, EngineError> {
    let rules = state.settings.shape.of(&job.spec);
    let both = shape.workers > 0 && shape.servers > 0;
    if rules.colocate || !both {
        let found = spread_over(state, room, index, job, shape, |_| true, budget)?;
        if found.is_some() || !both {
            return Ok(found);
        }
    }
    if rules.equal_per_server && rules.colocate {
        return Ok(None);
    }
    let workers = Shape { servers: 0, ..shape };
    let Some(mut counts) = spread_over(state, room, index, job, workers, |_| true, budget)? else { return Ok(None) };
    // The server lists must be disjoint: no server holds parameter servers beside workers of the first list.
    let taken: Vec<ServerId> = counts.iter().map(|count| count.server).collect();
    let is_free = |id: ServerId| !taken.contains(&id);
    let servers = Shape { workers: 0, ..shape };
    let mut found = None;
    if !rules.colocate && job.worker.wants_gpu() && !job.server.wants_gpu() {
        // Separate parameter servers go to servers without GPUs first, because they could take the cores that GPU
        // workers need.
        let without_gpus = |id: ServerId| is_free(id) && state.server(id).capacity[GPU] == 0;
        found = spread_over(state, room, index, job, servers, without_gpus, budget)?;
    }
    if found.is_none() {
        found = spread_over(state, room, index, job, servers, is_free, budget)?;
    }
    Ok(found.map(|others| {
        counts.extend(others);
        counts
    }))
}

/// Spreads a shape over servers that can hold one slot of each of its roles.
fn spread_over(
    state: &State,
    room: &Room,
    index: &FreeIndex,
    job: &Job,
    shape: Shape,
    allowed: impl Fn(ServerId) -> bool,
    budget: &mut Budget,
) -> Result<Option<Vec<Count>>, EngineError> {
    let Shape { workers: w, servers: p } = shape;
    let one = job.total(Shape { workers: w.min(1), servers: p.min(1) });
    let total = job.total(shape);
    let equal = state.settings.shape.equal_per_server;
    let mut candidates = index
        .freest(room, job.domain.as_deref(), &one)
        .filter(|id| room.accepts(state, *id, job) && room.holds(*id, job, &one, w.min(1), p.min(1)))
        .filter(|id| allowed(*id));
    let mut first: Vec<ServerId> = Vec::new();
    let mut together = Amounts::default();
    for k in 1..=w.max(p) {
        let Some(next) = candidates.next() else { break };
        together += room.free(next);
        first.push(next);
        budget.spend(1)?;
        if !total.fits(&together) || (equal && (w % k != 0 || p % k != 0)) {
            continue;
        }
        budget.spend(k.into())?;
        if let Some(counts) = even(room, job, shape, &first) {
            return Ok(Some(counts));
        }
    }
    Ok(None)
}

/// The additional slots that a server can hold beyond the floor counts.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Extra {
    None,
    Worker,
    Server,
    Either,
    Both,
}

/// Gives each server the floor counts, and distributes the remainders to servers with room. `None` if that isn't
/// possible.
fn even(room: &Room, job: &Job, shape: Shape, servers: &[ServerId]) -> Option<Vec<Count>> {
    let k = servers.len() as u32;
    let (w, p) = (shape.workers / k, shape.servers / k);
    let (mut more_w, mut more_p) = (shape.workers % k, shape.servers % k);
    // Needs of a server for the floor counts, and for one more slot of either role or of both.
    let need = |workers: u32, servers: u32| job.total(Shape { workers, servers });
    let floor = need(w, p);
    if !servers.iter().all(|id| room.holds(*id, job, &floor, w, p)) {
        return None;
    }
    let (with_worker, with_server, with_both) = (need(w + 1, p), need(w, p + 1), need(w + 1, p + 1));
    let mut extras = Vec::with_capacity(servers.len());
    for &id in servers {
        let worker = more_w > 0 && room.holds(id, job, &with_worker, w + 1, p);
        let server = more_p > 0 && room.holds(id, job, &with_server, w, p + 1);
        extras.push(match (worker, server) {
            (false, false) => Extra::None,
            (true, false) => Extra::Worker,
            (false, true) => Extra::Server,
            (true, true) if room.holds(id, job, &with_both, w + 1, p + 1) => Extra::Both,
            (true, true) => Extra::Either,
        });
    }
    let mut counts: Vec<Count> =
        servers.iter().map(|&server| Count { server, shape: Shape { workers: w, servers: p } }).collect();
    // The least flexible servers come first, so that servers for either role get the rest.
    for only in [Extra::Worker, Extra::Server, Extra::Both, Extra::Either] {
        for (extra, count) in extras.iter().zip(&mut counts).filter(|(extra, _)| **extra == only) {
            let worker = more_w > 0 && *extra != Extra::Server;
            if worker {
                count.shape.workers += 1;
                more_w -= 1;
            }
            let server = more_p > 0
                && (*extra == Extra::Server || *extra == Extra::Both || (*extra == Extra::Either && !worker));
            if server {
                count.shape.servers += 1;
                more_p -= 1;
            }
        }
    }
    (more_w == 0 && more_p == 0).then_some(counts)
}

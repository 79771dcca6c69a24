//! Plain algorithms for the same optimum, as references for tests and the benchmark.

use super::{Problem, Schedule};

const NEVER: u64 = u64::MAX;

/// Alg. 2 of the paper, unchanged. For each end slot t it finds the cheapest way to do D work by the end of t, with
/// every amount d of it in slot t. Results are stored, as the paper says, so the cost is T·D².
pub(super) fn recursion(problem: &Problem) -> Option<Schedule> {
    let work = problem.work as usize;
    let mut stored = vec![None; problem.slots.len() * (work + 1)];
    let mut best: Option<(i64, usize)> = None;
    for end in 0..problem.slots.len() {
        let cost = cheapest(problem, end as isize, work, &mut stored);
        let payoff = |cost: u64| problem.worth[end].saturating_sub_unsigned(cost);
        if cost != NEVER && best.is_none_or(|(most, _)| payoff(cost) > most) {
            best = Some((payoff(cost), end));
        }
    }
    let (payoff, end) = best?;
    let mut schedule = Schedule { end, work: vec![0; end + 1], cost: stored[end * (work + 1) + work]?.0, payoff };
    let mut left = work;
    for slot in (0..=end).rev() {
        let (_, done) = stored[slot * (work + 1) + left]?;
        schedule.work[slot] = done as u64;
        left -= done;
    }
    Some(schedule)
}

fn cheapest(problem: &Problem, slot: isize, work: usize, stored: &mut [Option<(u64, usize)>]) -> u64 {
    if slot < 0 {
        return if work == 0 { 0 } else { NEVER };
    }
    let at = slot as usize * (problem.work as usize + 1) + work;
    if let Some((cost, _)) = stored[at] {
        return cost;
    }
    let curve = &problem.curves[problem.slots[slot as usize] as usize];
    let mut best = (NEVER, 0);
    for done in 0..=work {
        let Some(choice) = curve.choice_for(done as u64) else { break };
        let cost = choice.cost.saturating_add(cheapest(problem, slot - 1, work - done, stored));
        if cost < best.0 {
            best = (cost, done);
        }
    }
    stored[at] = Some(best);
    best.0
}

/// One pass over the slots: the cost of any amount of work by the end of each slot, from the costs by the end of the
/// previous slot and the at most N choices of this one. The cost is T·D·N, and no end slot or amount is tried twice.
pub(super) fn one_pass(problem: &Problem) -> Option<(i64, usize)> {
    let work = problem.work as usize;
    let mut costs = vec![NEVER; work + 1];
    costs[0] = 0;
    let mut best: Option<(i64, usize)> = None;
    let mut next = costs.clone();
    for (end, curve) in problem.slots.iter().enumerate() {
        next.copy_from_slice(&costs);
        for choice in &problem.curves[*curve as usize].choices()[1..] {
            let done = (choice.work as usize).min(work);
            for (to, from) in next[done..].iter_mut().zip(&costs) {
                *to = (*to).min(from.saturating_add(choice.cost));
            }
            for to in &mut next[1..done.max(1)] {
                *to = (*to).min(choice.cost);
            }
        }
        std::mem::swap(&mut costs, &mut next);
        let payoff = problem.worth[end].saturating_sub_unsigned(costs[work]);
        if costs[work] != NEVER && best.is_none_or(|(most, _)| payoff > most) {
            best = Some((payoff, end));
        }
    }
    best
}

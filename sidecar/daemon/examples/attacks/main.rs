//! Measures what one job, tenant or unauthenticated caller can do to others at worst. `make attacks` runs it.
//!
//! ```sh
//! attacks PROGRAM [OLDER_PROGRAM]
//! ```
//!
//! Each attack has its own daemon. A manager, a training job and an operator call the daemon all the time. Their waits
//! are measured before and during the attack, and so is the daemon's memory. The attacker is a process that prepares
//! its messages before. It has the lowest priority on the last CPU, as if it ran on another machine. The first attack
//! only computes, as a baseline of effects that the daemon doesn't cause. A single run isn't sufficient for a p99, so
//! each attack runs `ROUNDS=5` times, and the older program's once. `ONLY=labels` selects the attacks with this word in
//! their name. The output is a table of the medians in Markdown.

#[allow(dead_code)] // shared with the tests, which use all of it
#[path = "../../tests/service/support.rs"]
mod support;

mod attacker;
mod kinds;
mod measure;

use std::{collections::BTreeMap, env, path::PathBuf};

use anyhow::{Context, Result, ensure};
use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};

use self::{
    attacker::attacker,
    kinds::ATTACKS,
    measure::{Felt, attack},
};

/// A row of the table: the medians over all rounds, and the minimum and maximum of the ratio.
fn row(times: &[Felt]) -> String {
    let sorted = |column: usize| {
        let mut numbers: Vec<f64> = times.iter().map(|felt| felt[column]).collect();
        numbers.sort_by(f64::total_cmp);
        numbers
    };
    let median = |column| sorted(column)[times.len() / 2];
    let ratios = sorted(4);
    let range = match ratios[..] {
        [least, .., most] => format!(" ({least:.1} to {most:.1})"),
        _ => String::new(),
    };
    let [memory, journal, before, during, ratio, longest, done, refused] = std::array::from_fn(median);
    format!(
        "{memory:.0} | {journal:.1} | {before:.1} | {during:.1} | {ratio:.1}{range} | {longest:.0} | {done:.0} | \
         {refused:.0} |"
    )
}

/// Restricts this process to the last of its CPUs.
fn run_on_last_cpu() -> Result<()> {
    let may = sched_getaffinity(None)?;
    let last = (0..CpuSet::MAX_CPU).rfind(|&cpu| may.is_set(cpu)).context("no CPU")?;
    let mut set = CpuSet::new();
    set.set(last);
    Ok(sched_setaffinity(None, &set)?)
}

fn main() -> Result<()> {
    if let [flag, number] = &env::args().skip(1).collect::<Vec<_>>()[..]
        && flag == "--attacker"
    {
        run_on_last_cpu()?;
        return tokio::runtime::Runtime::new()?.block_on(attacker(number.parse()?));
    }
    let programs: Vec<PathBuf> = env::args_os().skip(1).map(PathBuf::from).collect();
    ensure!((1..=2).contains(&programs.len()), "attacks PROGRAM [OLDER_PROGRAM]");
    let rounds: usize = env::var("ROUNDS").map_or(Ok(1), |text| text.parse()).context("ROUNDS is a number")?;
    let only = env::var("ONLY").unwrap_or_default();
    let attacks: Vec<(usize, &str)> =
        ATTACKS.iter().map(|(name, _)| *name).enumerate().filter(|(_, name)| name.contains(&only)).collect();
    let mut felt: BTreeMap<(usize, &str), Vec<Felt>> = BTreeMap::new();
    // All attacks run in each round, so that a slow period of this machine doesn't affect only one of them.
    for round in 1..=rounds.max(1) {
        for &(number, name) in &attacks {
            for (which, program) in
                ["this", "older"].into_iter().zip(&programs).filter(|(which, _)| *which == "this" || round == 1)
            {
                // Each attack has its own runtime, so that it leaves nothing for the next.
                let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build()?;
                let times = runtime.block_on(attack(program, number));
                runtime.shutdown_background();
                let times = times.with_context(|| format!("{name}, {which} program"))?;
                eprintln!("{round}/{rounds} {name} | {which} | {}", row(&[times]));
                felt.entry((number, which)).or_default().push(times);
            }
        }
    }
    println!(
        "| attack | program | memory, MB | journal, MB | others' p99 before, ms | during, ms | ratio | longest, ms | \
         let in | refused |"
    );
    println!("|---|---|--:|--:|--:|--:|--:|--:|--:|--:|");
    for ((number, which), times) in &felt {
        println!("| {} | {which} | {}", ATTACKS[*number].0, row(times));
    }
    Ok(())
}

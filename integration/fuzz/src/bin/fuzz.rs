//! Runs targets on generated inputs, or writes their seeds.

use std::{
    env, fs,
    path::Path,
    process::ExitCode,
    thread,
    time::{Duration, Instant},
};

use peak_alloc::PeakAlloc;
use trainmaster_fuzz::{ALL, Inputs, STACK, Target, find};

#[global_allocator]
static MEMORY: PeakAlloc = PeakAlloc;

const USAGE: &str = "fuzz [--inputs N] [--seed N] [TARGET…]: feeds each target N inputs on a stack of 256 KiB
fuzz --seeds FOLDER: writes each target's seeds into FOLDER/TARGET
fuzz --list";

/// Statistics of the inputs of a target.
struct Fed {
    count: u64,
    took: Duration,
    slowest: Duration,
    largest: f32,
}

fn main() -> ExitCode {
    let mut arguments = env::args().skip(1);
    let (mut count, mut seed, mut targets) = (100_000, 1, Vec::new());
    while let Some(argument) = arguments.next() {
        let mut number = || arguments.next().and_then(|text| text.parse::<u64>().ok());
        match &*argument {
            "--list" => {
                ALL.iter().for_each(|target| println!("{}", target.name));
                return ExitCode::SUCCESS;
            }
            "--seeds" => return arguments.next().map_or_else(usage, |folder| write_seeds(Path::new(&folder))),
            "--inputs" => match number() {
                Some(given) => count = given,
                None => return usage(),
            },
            "--seed" => match number() {
                Some(given) => seed = given,
                None => return usage(),
            },
            name => match find(name) {
                Some(target) => targets.push(target),
                None => return usage(),
            },
        }
    }
    if targets.is_empty() {
        targets.extend(ALL);
    }
    println!("| target | inputs | seconds | inputs/s | slowest | most memory |\n|---|--:|--:|--:|--:|--:|");
    for target in targets {
        let thread = thread::Builder::new().stack_size(STACK).spawn(move || feed(target, count, seed));
        let Ok(fed) = thread.expect("there are threads").join() else { return ExitCode::FAILURE };
        let seconds = fed.took.as_secs_f64();
        println!(
            "| {} | {} | {seconds:.1} | {:.0} | {:.2} ms | {:.1} MB |",
            target.name,
            fed.count,
            fed.count as f64 / seconds,
            fed.slowest.as_secs_f64() * 1000.0,
            fed.largest
        );
    }
    ExitCode::SUCCESS
}

fn feed(target: &Target, count: u64, seed: u64) -> Fed {
    let mut inputs = Inputs::new(target, corpus(target), seed);
    let mut fed = Fed { count, took: Duration::ZERO, slowest: Duration::ZERO, largest: 0.0 };
    for at in 0..count {
        let input = inputs.next().expect("there is no end");
        let before = MEMORY.current_usage_as_mb();
        MEMORY.reset_peak_usage();
        let begun = Instant::now();
        if let Err(panic) = std::panic::catch_unwind(|| (target.run)(&input)) {
            let file = format!("{}-{at}.input", target.name);
            let written = fs::write(&file, &input);
            eprintln!("input {at} of {} ({file}: {written:?})", target.name);
            std::panic::resume_unwind(panic);
        }
        let took = begun.elapsed();
        fed.took += took;
        fed.slowest = fed.slowest.max(took);
        fed.largest = fed.largest.max(MEMORY.peak_usage_as_mb() - before);
    }
    fed
}

/// Kept inputs from earlier runs.
fn corpus(target: &Target) -> Vec<Vec<u8>> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("corpus").join(target.name);
    let mut files: Vec<_> = fs::read_dir(folder).into_iter().flatten().flatten().map(|entry| entry.path()).collect();
    files.sort();
    files.into_iter().filter_map(|file| fs::read(file).ok()).collect()
}

fn write_seeds(folder: &Path) -> ExitCode {
    for target in ALL {
        let folder = folder.join(target.name);
        let write = || -> std::io::Result<()> {
            fs::create_dir_all(&folder)?;
            (target.seeds)()
                .iter()
                .enumerate()
                .try_for_each(|(at, seed)| fs::write(folder.join(format!("seed-{at}")), seed))
        };
        if let Err(error) = write() {
            eprintln!("{}: {error}", folder.display());
            return ExitCode::FAILURE;
        }
    }
    ExitCode::SUCCESS
}

fn usage() -> ExitCode {
    eprintln!("{USAGE}");
    ExitCode::from(2)
}

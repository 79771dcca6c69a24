//! `occupy`: a foreign process on emulated devices, for tests and demonstrations of overloaded servers.

use std::{
    fs, io,
    io::Read as _,
    process,
    sync::mpsc::{RecvTimeoutError, sync_channel},
    thread,
    time::{Duration, Instant},
};

use anyhow::{Context, Result};

use crate::{cli::OccupyArgs, exit, turns::Turns};

/// Period of its computations: longer than a step of others, so that it delays also programs that this machine slows.
const PERIOD: Duration = Duration::from_millis(200);

/// The most that it books ahead: others on the device wait so long at once.
const AHEAD: Duration = Duration::from_secs(3);

/// Keeps devices busy until the standard input ends.
pub fn run(args: &OccupyArgs) -> Result<u8> {
    let name = format!("occupied-{}", process::id());
    let folder = &args.device_dir;
    let turns =
        Turns::open(folder, &args.devices.0, &name).with_context(|| format!("--device-dir {}", folder.display()))?;
    let (over, end) = sync_channel::<()>(0);
    thread::spawn(move || {
        let _ = io::stdin().read_to_end(&mut Vec::new());
        drop(over);
    });
    let mut due = Instant::now();
    let (mut done, mut ahead) = (due, Duration::ZERO);
    loop {
        let begun = Instant::now();
        // On a busy machine it wakes late. So that the device isn't idle then, it books ahead from then on.
        ahead = begun.saturating_duration_since(due).clamp(ahead, AHEAD);
        let next = done.max(begun) + PERIOD;
        done = turns.book(begun, PERIOD.mul_f64(args.share))?.max(next);
        due = (done - ahead).max(begun);
        if end.recv_timeout(due.saturating_duration_since(Instant::now())) == Err(RecvTimeoutError::Disconnected) {
            break;
        }
    }
    for device in &args.devices.0 {
        fs::remove_file(folder.join(device.to_string()).join(&name))?;
    }
    Ok(exit::DONE)
}

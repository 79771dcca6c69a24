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

/// Period of its computations.
const PERIOD: Duration = Duration::from_millis(50);

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
    loop {
        let begun = Instant::now();
        let done = turns.book(begun, PERIOD.mul_f64(args.share))?.max(begun + PERIOD);
        if end.recv_timeout(done.saturating_duration_since(Instant::now())) == Err(RecvTimeoutError::Disconnected) {
            break;
        }
    }
    for device in &args.devices.0 {
        fs::remove_file(folder.join(device.to_string()).join(&name))?;
    }
    Ok(exit::DONE)
}

//! Turns on shared devices: processes on one emulated device share its computation time.
//!
//! A device is a folder. Its file `until` has the time until which the device is booked, in nanoseconds of the
//! machine's monotonic clock. A process books its computation after that time, under the file's lock, so each process
//! waits for earlier ones. Each process records its total booked time in its own file, for measurements of the device.

use std::{
    fs::{self, File, OpenOptions},
    io,
    os::unix::fs::FileExt as _,
    path::Path,
    sync::Arc,
    time::{Duration, Instant},
};

use rustix::time::{ClockId, clock_gettime};

/// Room for a number of nanoseconds in decimal.
const DIGITS: usize = 20;

/// The devices on which a process computes, all at the same time. Without any, there is no sharing.
#[derive(Clone, Debug, Default)]
pub(crate) struct Turns {
    devices: Arc<[Device]>,
    /// A point in time by both clocks, which run at the same rate.
    epoch: Option<(Instant, Duration)>,
}

#[derive(Debug)]
struct Device {
    until: File,
    tally: File,
}

impl Turns {
    /// Opens devices by number, which are folders in `folder`. `name`: file name for this process's booked time.
    pub(crate) fn open(folder: &Path, devices: &[u32], name: &str) -> io::Result<Self> {
        let mut numbers = devices.to_vec();
        // All processes lock them in the same order.
        numbers.sort_unstable();
        numbers.dedup();
        let open = |number: u32| {
            let folder = folder.join(number.to_string());
            fs::create_dir_all(&folder)?;
            let file = |name: &str| {
                OpenOptions::new().read(true).write(true).create(true).truncate(false).open(folder.join(name))
            };
            let device = Device { until: file("until")?, tally: file(name)? };
            // From now on, measurements include this process.
            let booked = read(&device.tally)?;
            write(&device.tally, booked)?;
            Ok(device)
        };
        let devices = numbers.into_iter().map(open).collect::<io::Result<_>>()?;
        Ok(Self { devices, epoch: Some((Instant::now(), monotonic())) })
    }

    /// Books `time`, from `ready` on at the earliest. Returns its end.
    pub(crate) fn book(&self, ready: Instant, time: Duration) -> io::Result<Instant> {
        let Some((instant, clock)) = self.epoch.filter(|_| !time.is_zero() && !self.devices.is_empty()) else {
            return Ok(ready + time);
        };
        let from = clock + ready.saturating_duration_since(instant);
        self.devices.iter().try_for_each(|device| device.until.lock())?;
        let delayed = self.book_locked(from, time);
        self.devices.iter().try_for_each(|device| device.until.unlock())?;
        Ok(ready + delayed? + time)
    }

    /// The delay of the start because of earlier bookings.
    fn book_locked(&self, from: Duration, time: Duration) -> io::Result<Duration> {
        let mut start = from;
        for device in self.devices.iter() {
            start = start.max(Duration::from_nanos(read(&device.until)?));
        }
        for device in self.devices.iter() {
            write(&device.until, (start + time).as_nanos() as u64)?;
            write(&device.tally, read(&device.tally)? + time.as_nanos() as u64)?;
        }
        Ok(start - from)
    }
}

/// The clock that all processes of the machine share.
fn monotonic() -> Duration {
    let time = clock_gettime(ClockId::Monotonic);
    Duration::new(time.tv_sec.unsigned_abs(), time.tv_nsec as u32)
}

/// The number in a file. An empty file is 0.
fn read(file: &File) -> io::Result<u64> {
    let mut text = [0; DIGITS + 1];
    let length = file.read_at(&mut text, 0)?;
    match text[..length].trim_ascii() {
        [] => Ok(0),
        digits => {
            let number = std::str::from_utf8(digits).ok().and_then(|text| text.parse().ok());
            number.ok_or_else(|| io::Error::new(io::ErrorKind::InvalidData, "a device's file holds no number"))
        }
    }
}

/// The length is constant, so no digits of an older number remain.
fn write(file: &File, number: u64) -> io::Result<()> {
    file.write_all_at(format!("{number:<DIGITS$}\n").as_bytes(), 0)
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: Duration = Duration::from_millis(1);

    #[test]
    fn without_devices_there_are_no_turns() {
        let now = Instant::now();
        assert_eq!(Turns::default().book(now, 5 * MS).unwrap(), now + 5 * MS);
    }

    #[test]
    fn a_later_booking_waits_for_all_earlier_ones_on_its_devices() {
        let folder = tempfile::tempdir().unwrap();
        let open = |devices: &[u32], name| Turns::open(folder.path(), devices, name).unwrap();
        let (a, b, both) = (open(&[0], "a"), open(&[1], "b"), open(&[1, 0], "both"));
        let hour = Duration::from_secs(3600);
        let now = Instant::now();
        // Each has read the clocks itself.
        let about = |end: io::Result<Instant>, hours: u32| {
            let end = end.unwrap();
            assert!(end >= now + hours * hour - 100 * MS && end <= now + hours * hour + 100 * MS, "{:?}", end - now);
        };
        assert_eq!(a.book(now, hour).unwrap(), now + hour);
        about(both.book(now, hour), 2);
        // Device 1 was idle for an hour: bookings are never rearranged.
        about(b.book(now, hour), 3);
        let tally =
            |path: &str| fs::read_to_string(folder.path().join(path)).unwrap().trim_end().parse::<u64>().unwrap();
        let hours = |count: u64| count * 3600 * 1_000_000_000;
        assert_eq!(
            (tally("0/a"), tally("0/both"), tally("1/both"), tally("1/b")),
            (hours(1), hours(1), hours(1), hours(1))
        );
        // A restarted process continues its total.
        let again = open(&[0], "a");
        again.book(now, hour).unwrap();
        assert_eq!(tally("0/a"), hours(2));
    }

    #[test]
    fn past_bookings_cause_no_delay() {
        let folder = tempfile::tempdir().unwrap();
        let turns = Turns::open(folder.path(), &[0], "a").unwrap();
        let past = Instant::now();
        let end = turns.book(past, MS).unwrap();
        while Instant::now() <= end {
            std::thread::sleep(MS);
        }
        let now = Instant::now();
        assert_eq!(turns.book(now, MS).unwrap(), now + MS);
    }
}

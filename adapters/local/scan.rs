//! Reading `/proc`: whether a pid is still the same process, and which processes belong to the state folder.

use std::{io::Read as _, time::Duration};

use procfs::process::{Process, all_processes};

use trainmaster_manager::{SlotId, role};

use super::slot::ProcessId;

/// Maximum number of bytes read from an environment. Linux allows more (a quarter of the limit on stacks), but the
/// adapter's processes have far fewer.
const LONGEST_ENVIRON: u64 = 1 << 20;

/// The variable with the state folder's id, in the environment of every process that this adapter starts.
pub(crate) const MARKER: &str = "TRAINMASTER_STATE";

/// The used fields of `/proc/<pid>/stat`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Stat {
    pub(crate) zombie: bool,
    pub(crate) group: i32,
    /// Start time in clock ticks since boot. Together, pid and start time identify a process.
    pub(crate) start: u64,
    /// CPU time so far, including children that were waited for.
    pub(crate) cpu: Duration,
    /// Resident memory in bytes.
    pub(crate) memory: u64,
}

/// A process's place by its environment: a virtual server, and there a slot or foreign use.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Place {
    pub(crate) server: String,
    pub(crate) slot: Option<ProcessId>,
}

/// A living process with the marker.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Marked {
    pub(crate) pid: i32,
    pub(crate) stat: Stat,
    pub(crate) id: ProcessId,
}

/// The state of a process, if the pid exists.
pub(crate) fn stat(pid: i32) -> Option<Stat> {
    read(&Process::new(pid).ok()?)
}

/// procfs relies on the kernel's format of the file: a program can choose its name, but nothing around it.
fn read(process: &Process) -> Option<Stat> {
    let stat = process.stat().ok()?;
    // User and system time of the process and of its children.
    let ticks = stat.utime + stat.stime + (stat.cutime + stat.cstime).unsigned_abs();
    Some(Stat {
        zombie: matches!(stat.state, 'Z' | 'X'),
        group: stat.pgrp,
        start: stat.starttime,
        cpu: Duration::from_secs(ticks) / procfs::ticks_per_second() as u32,
        memory: stat.rss * procfs::page_size(),
    })
}

/// Whether that same process still runs.
pub(crate) fn is_alive(pid: i32, start: u64) -> bool {
    stat(pid).is_some_and(|stat| stat.start == start && !stat.zombie)
}

/// The beginning of a process's environment, which can be of any size. Empty if it can't be read.
fn environ(process: &Process) -> Vec<u8> {
    let mut environ = Vec::new();
    match process.open_relative("environ").map(|file| file.take(LONGEST_ENVIRON).read_to_end(&mut environ)) {
        Ok(Ok(_)) => environ,
        _ => Vec::new(),
    }
}

/// Returns all living processes of a state folder, including the descendants of its slots.
pub(crate) fn marked(state_id: &str) -> Vec<Marked> {
    let living = all_processes().into_iter().flatten().flatten().filter_map(|process| {
        let id = parse_environ(&environ(&process), state_id)?;
        let stat = read(&process).filter(|stat| !stat.zombie)?;
        Some(Marked { pid: process.pid, stat, id })
    });
    living.collect()
}

/// Returns all processes of the machine with their pids, including zombies, each with its place if it has one.
pub(crate) fn processes(state_id: &str) -> impl Iterator<Item = (i32, Stat, Option<Place>)> {
    all_processes().into_iter().flatten().flatten().filter_map(move |process| {
        let place = parse_place(&environ(&process), state_id);
        Some((process.pid, read(&process)?, place))
    })
}

/// The value of a variable.
fn value<'a>(environ: &'a [u8], key: &str) -> Option<&'a str> {
    let mut entries = environ.split(|byte| *byte == 0).filter_map(|entry| std::str::from_utf8(entry).ok());
    entries.find_map(|entry| entry.strip_prefix(key)?.strip_prefix('='))
}

fn parse_place(environ: &[u8], state_id: &str) -> Option<Place> {
    if value(environ, MARKER) != Some(state_id) {
        return None;
    }
    let server = value(environ, "TRAINMASTER_SERVER")?.to_owned();
    Some(Place { server, slot: parse_environ(environ, state_id) })
}

fn parse_environ(environ: &[u8], state_id: &str) -> Option<ProcessId> {
    let value = |key: &str| value(environ, key);
    if value(MARKER) != Some(state_id) {
        return None;
    }
    Some(ProcessId {
        job: value("TRAINMASTER_JOB")?.parse().ok()?,
        incarnation: value("TRAINMASTER_INCARNATION")?.parse().ok()?,
        slot: SlotId::new(role::of(value("TRAINMASTER_ROLE")?)?, value("TRAINMASTER_INDEX")?.parse().ok()?),
    })
}

#[cfg(test)]
mod tests {
    use std::{
        io::{BufRead as _, BufReader},
        os::unix::process::CommandExt as _,
        process::{Command, Stdio},
    };

    use trainmaster_core::Role;

    use super::*;

    #[test]
    fn a_process_is_told_from_a_later_one_of_its_pid() {
        let me = stat(std::process::id() as i32).unwrap();
        assert!(is_alive(std::process::id() as i32, me.start));
        assert!(!is_alive(std::process::id() as i32, me.start + 1), "another process of the same pid");
    }

    #[test]
    fn a_process_of_any_name_is_seen() {
        let script = "printf 'a) b (\\377' > /proc/self/comm; echo renamed; read end";
        let mut named = Command::new("sh");
        named.args(["-c", script]).stdin(Stdio::piped()).stdout(Stdio::piped()).process_group(0);
        let mut named = named.spawn().unwrap();
        let mut line = String::new();
        BufReader::new(named.stdout.take().unwrap()).read_line(&mut line).unwrap();
        let pid = named.id() as i32;
        assert!(std::fs::read_to_string(format!("/proc/{pid}/stat")).is_err(), "its name is no text");
        let seen = stat(pid).unwrap();
        let status = std::fs::read(format!("/proc/{pid}/status")).unwrap();
        let status = String::from_utf8_lossy(&status).into_owned();
        let resident = status.lines().find_map(|line| line.strip_prefix("VmRSS:")?.trim().strip_suffix(" kB"));
        assert_eq!((seen.zombie, seen.group), (false, pid));
        // The kernel doesn't count each page at once.
        let resident = resident.unwrap().parse::<u64>().unwrap() << 10;
        assert!(seen.memory.abs_diff(resident) < 1 << 20, "{} and {resident}", seen.memory);
        drop(named.stdin.take());
        while !stat(pid).unwrap().zombie {
            std::thread::sleep(Duration::from_millis(10));
        }
        assert!(!is_alive(pid, seen.start));
        named.wait().unwrap();
        assert_eq!(stat(pid), None);
    }

    #[test]
    fn the_environment_names_the_slot() {
        let environ = b"PATH=/bin\0TRAINMASTER_STATE=s1\0TRAINMASTER_JOB=7\0TRAINMASTER_INCARNATION=2\0\
            TRAINMASTER_ROLE=server\0TRAINMASTER_INDEX=3\0";
        let slot = SlotId::new(Role::Server, 3);
        assert_eq!(parse_environ(environ, "s1"), Some(ProcessId { job: 7, incarnation: 2, slot }));
        assert_eq!(parse_environ(environ, "s"), None);
        assert_eq!(parse_place(environ, "s1"), None, "on no server");
        let load = b"TRAINMASTER_SERVER=a\0TRAINMASTER_STATE=s1\0";
        assert_eq!(parse_place(load, "s1"), Some(Place { server: "a".into(), slot: None }));
        assert_eq!(parse_place(load, "s2"), None);
        assert_eq!(parse_environ(b"TRAINMASTER_STATE=s1\0TRAINMASTER_JOB=x\0", "s1"), None);
    }
}

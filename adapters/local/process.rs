//! Processes. Each starts in its own group, gets signals as a group, and is watched through a process descriptor.

use std::{
    ffi::OsString,
    fs::File,
    io,
    os::{fd::OwnedFd, unix::process::CommandExt as _, unix::process::ExitStatusExt as _},
    path::Path,
    process::{Child, Command, ExitStatus, Stdio},
    time::Duration,
};

use rustix::process::{
    Pid, PidfdFlags, Signal as OsSignal, kill_process, kill_process_group, pidfd_open, test_kill_process_group,
};
use tokio::io::{Interest, unix::AsyncFd};

use super::{
    fleet::{self, Exit, Signal},
    scan,
    slot::ProcessId,
    user::User,
};

/// Identifies a running process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Handle {
    pub(crate) pid: i32,
    /// Clock ticks since boot.
    pub(crate) start: u64,
}

/// Starts a program in its own process group, as this process's user or as another one. For another user, the program
/// also gets its own session, detached from the daemon's terminal.
///
/// # Errors
/// The operating system's error, such as too many processes or a script without its interpreter.
pub(crate) fn start(
    command: &fleet::plan::Command,
    environment: Vec<(OsString, OsString)>,
    folder: &Path,
    log: File,
    user: Option<&User>,
    (id, state_id): (ProcessId, &str),
) -> io::Result<(Handle, Watch)> {
    let errors = log.try_clone()?;
    let mut program = match user {
        None => {
            let mut program = Command::new(&command.program);
            program.process_group(0);
            program
        }
        Some(user) => {
            // `setsid` creates the session, which is also a new group, and then executes the program. Changing the user
            // drops root's supplementary groups.
            let mut program = Command::new("setsid");
            program.arg("--").arg(&command.program).uid(user.uid).gid(user.gid);
            program
        }
    };
    let mut child = program
        .args(&command.arguments)
        .env_clear()
        .envs(environment)
        .current_dir(folder)
        .stdin(Stdio::null())
        .stdout(log)
        .stderr(errors)
        .spawn()?;
    let pid = Pid::from_child(&child);
    // The child isn't reaped yet, so its pid can't belong to another process.
    let watched = scan::stat(pid.as_raw_pid()).ok_or_else(|| io::Error::other("the process isn't in /proc"));
    let watched = watched.and_then(|stat| Ok((stat.start, Descriptor::open(pid)?)));
    match watched {
        Ok((start, descriptor)) => Ok((
            Handle { pid: pid.as_raw_pid(), start },
            Watch::Own { child, id, state_id: state_id.to_owned(), descriptor },
        )),
        Err(error) => {
            // A process that can't be watched must not continue.
            let _ = kill_process_group(pid, OsSignal::KILL);
            let _ = child.kill();
            let _ = child.wait();
            Err(error)
        }
    }
}

/// Watches a process that an earlier run of the adapter started.
///
/// # Errors
/// The process is gone.
pub(crate) fn adopt(handle: Handle, id: ProcessId, state_id: &str) -> io::Result<Watch> {
    let gone = || io::Error::other("the process is gone");
    let pid = Pid::from_raw(handle.pid).ok_or_else(gone)?;
    let descriptor = Descriptor::open(pid)?;
    // Only this check proves that the descriptor belongs to the recorded process.
    if !scan::is_alive(handle.pid, handle.start) {
        return Err(gone());
    }
    Ok(Watch::Adopted { handle, id, state_id: state_id.to_owned(), descriptor })
}

/// Signals a process and its whole group. A missing process is no error.
pub(crate) fn signal(handle: Handle, signal: Signal) {
    let signal = match signal {
        Signal::Term => OsSignal::TERM,
        Signal::Kill => OsSignal::KILL,
    };
    // An adopted process is reaped by its new parent. Then its pid may belong to another process.
    if scan::stat(handle.pid).is_none_or(|stat| stat.start != handle.start) {
        return;
    }
    let Some(pid) = Pid::from_raw(handle.pid) else { return };
    let signalled = match kill_process_group(pid, signal) {
        // It was just started and leads no group yet.
        Err(rustix::io::Errno::SRCH) => kill_process(pid, signal),
        signalled => signalled,
    };
    if let Err(error) = signalled
        && error != rustix::io::Errno::SRCH
    {
        tracing::warn!(pid = handle.pid, %error, "can't signal a process group");
    }
}

/// Ends the remaining processes of a state folder, except those for which `spare` is true.
pub(crate) fn end_marked(state_id: &str, spare: impl Fn(&scan::Marked) -> bool) {
    for process in scan::marked(state_id).into_iter().filter(|process| !spare(process)) {
        if let Some(pid) = Pid::from_raw(process.pid)
            && scan::is_alive(process.pid, process.stat.start)
        {
            tracing::info!(pid = process.pid, slot = %process.id, "ending a process that was left behind");
            let _ = kill_process(pid, OsSignal::KILL);
        }
    }
}

/// A process descriptor. It is readable after the process has ended.
pub(crate) struct Descriptor(AsyncFd<OwnedFd>);

impl Descriptor {
    #[expect(
        deprecated,
        reason = "its successor is unsafe because a type may lie about its descriptor; OwnedFd doesn't"
    )]
    fn open(pid: Pid) -> io::Result<Self> {
        Ok(Self(AsyncFd::with_interest(pidfd_open(pid, PidfdFlags::NONBLOCK)?, Interest::READABLE)?))
    }

    async fn ended(&self) -> io::Result<()> {
        self.0.readable().await.map(drop)
    }
}

/// Watches one process until it ends. Dropping it leaves the process running.
pub(crate) enum Watch {
    /// A child of this process.
    Own {
        /// The child, not reaped yet.
        child: Child,
        /// Its slot.
        id: ProcessId,
        /// The state folder's id, to find the folder's processes.
        state_id: String,
        /// The child's descriptor.
        descriptor: Descriptor,
    },
    /// A process of an earlier run of the adapter.
    Adopted {
        /// The process.
        handle: Handle,
        /// Its slot.
        id: ProcessId,
        /// The state folder's id, to find the folder's processes.
        state_id: String,
        /// The process's descriptor.
        descriptor: Descriptor,
    },
}

impl Watch {
    /// Waits until the process has ended, and ends the rest of its slot, so that the next process has it alone.
    pub(crate) async fn ended(self) -> Exit {
        match self {
            Self::Own { mut child, id, state_id, descriptor } => {
                let _ = descriptor.ended().await;
                // The child isn't reaped yet, so the group's number is still its own.
                let pid = Pid::from_child(&child);
                let _ = kill_process_group(pid, OsSignal::KILL);
                let exit = child.wait().map_or(Exit::Unknown, to_exit);
                group_is_empty(pid).await;
                end_rest(id, state_id, None).await;
                exit
            }
            Self::Adopted { handle, id, state_id, descriptor } => {
                let _ = descriptor.ended().await;
                // Its pid may belong to another process by now, so its group can't be signalled.
                end_rest(id, state_id, Some(handle.pid)).await;
                Exit::Unknown
            }
        }
    }
}

/// Ends what a slot's process has left, and waits until it is gone. torchrun's training processes have sessions of
/// their own: without their agent they would go on, beside those of the next one. Costs a look at all processes.
async fn end_rest(id: ProcessId, state_id: String, except: Option<i32>) {
    for _ in 0..100 {
        let marker = state_id.clone();
        let rest = tokio::task::spawn_blocking(move || {
            let rest = scan::marked(&marker).into_iter();
            let rest = rest.filter(|process| process.id == id && Some(process.pid) != except);
            rest.filter(|process| {
                Pid::from_raw(process.pid).is_some_and(|pid| kill_process(pid, OsSignal::KILL).is_ok())
            })
            .count()
        });
        if rest.await.unwrap_or(0) == 0 {
            return;
        }
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
}

/// Waits until a group is gone. SIGKILL takes a moment, and the next incarnation may need the same ports and devices.
async fn group_is_empty(group: Pid) {
    for _ in 0..100 {
        if test_kill_process_group(group).is_err() {
            return;
        }
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
}

fn to_exit(status: ExitStatus) -> Exit {
    match (status.code(), status.signal()) {
        (Some(code), _) => Exit::Code(code),
        (None, Some(signal)) => Exit::Signal(signal),
        (None, None) => Exit::Unknown,
    }
}

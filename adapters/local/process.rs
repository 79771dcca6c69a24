//! Processes: started in a group of their own, signalled as a group, watched by a process descriptor.

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

/// How to reach a process that runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Handle {
    pub(crate) pid: i32,
    /// Clock ticks since boot.
    pub(crate) start: u64,
}

/// Starts a program in a process group of its own, as this process's user or another one; then also in a session of its
/// own, away from a terminal that is the daemon's.
///
/// # Errors
/// What the operating system says: too many processes, a script without its interpreter, …
pub(crate) fn start(
    command: &fleet::plan::Command,
    environment: Vec<(OsString, OsString)>,
    folder: &Path,
    log: File,
    user: Option<&User>,
) -> io::Result<(Handle, Watch)> {
    let errors = log.try_clone()?;
    let mut program = match user {
        None => {
            let mut program = Command::new(&command.program);
            program.process_group(0);
            program
        }
        Some(user) => {
            // It makes the session, which is a new group too, and becomes the program. Root's other groups are dropped
            // with the user.
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
    // Nobody has waited for the child, so its pid can't have gone to another process.
    let watched = scan::stat(pid.as_raw_pid()).ok_or_else(|| io::Error::other("the process isn't in /proc"));
    let watched = watched.and_then(|stat| Ok((stat.start, Descriptor::open(pid)?)));
    match watched {
        Ok((start, descriptor)) => Ok((Handle { pid: pid.as_raw_pid(), start }, Watch::Own { child, descriptor })),
        Err(error) => {
            // What can't be watched must not be left running.
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
/// It is no longer there.
pub(crate) fn adopt(handle: Handle, id: ProcessId, state_id: &str) -> io::Result<Watch> {
    let gone = || io::Error::other("the process is gone");
    let pid = Pid::from_raw(handle.pid).ok_or_else(gone)?;
    let descriptor = Descriptor::open(pid)?;
    // Only now is it certain that the descriptor is of the process that was recorded.
    if !scan::is_alive(handle.pid, handle.start) {
        return Err(gone());
    }
    Ok(Watch::Adopted { handle, id, state_id: state_id.to_owned(), descriptor })
}

/// Signals a process and its whole group. A process that is gone is no error.
pub(crate) fn signal(handle: Handle, signal: Signal) {
    let signal = match signal {
        Signal::Term => OsSignal::TERM,
        Signal::Kill => OsSignal::KILL,
    };
    // An adopted process is reaped by somebody else, after which its number may be anyone's.
    if scan::stat(handle.pid).is_none_or(|stat| stat.start != handle.start) {
        return;
    }
    let Some(pid) = Pid::from_raw(handle.pid) else { return };
    let signalled = match kill_process_group(pid, signal) {
        // It has only just started and leads no group yet.
        Err(rustix::io::Errno::SRCH) => kill_process(pid, signal),
        signalled => signalled,
    };
    if let Err(error) = signalled
        && error != rustix::io::Errno::SRCH
    {
        tracing::warn!(pid = handle.pid, %error, "can't signal a process group");
    }
}

/// Ends what is left of a state folder's processes, but for those that `spare` names.
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

/// A process descriptor: readable once the process has ended.
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

/// Waits for one process. Dropping it leaves the process running.
pub(crate) enum Watch {
    /// A child of this process.
    Own {
        /// Not yet waited for.
        child: Child,
        /// Of the child.
        descriptor: Descriptor,
    },
    /// Left by an earlier run of the adapter.
    Adopted {
        /// Which one.
        handle: Handle,
        /// Its slot.
        id: ProcessId,
        /// The state folder's id, for finding what belongs to it.
        state_id: String,
        /// Of the process.
        descriptor: Descriptor,
    },
}

impl Watch {
    /// Waits until the process has ended, and ends what it left in its group: a slot is gone as a whole.
    pub(crate) async fn ended(self) -> Exit {
        match self {
            Self::Own { mut child, descriptor } => {
                let _ = descriptor.ended().await;
                // The child is not yet waited for: the number of its group is still its own.
                let pid = Pid::from_child(&child);
                let _ = kill_process_group(pid, OsSignal::KILL);
                let exit = child.wait().map_or(Exit::Unknown, to_exit);
                group_is_empty(pid).await;
                exit
            }
            Self::Adopted { handle, id, state_id, descriptor } => {
                let _ = descriptor.ended().await;
                // Its number may be another's by now, so its children are found by their environment.
                let of_others = |process: &scan::Marked| process.id != id || process.pid == handle.pid;
                end_marked(&state_id, of_others);
                Exit::Unknown
            }
        }
    }
}

/// SIGKILL takes a moment; the next incarnation may want the ports and devices that the last one held.
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

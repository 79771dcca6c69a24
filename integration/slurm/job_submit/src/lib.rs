//! Interface between the plugin job_submit/trainmaster and its static library, which recognises, checks and holds jobs.
//! submission.h is made from src/lib.rs.
//!
//! Texts end with a zero byte and may be NULL; other pointers may not. The library keeps no pointer after a call.
//! `message` has `room` bytes. No panic leaves the library: a caught one becomes a message, and the job is refused,
//! because its comment may contain anything.

#![allow(unsafe_code)] // a C ABI
#![allow(clippy::missing_safety_doc)] // above, once for all functions

use std::{
    any::Any,
    cell::RefCell,
    ffi::{CStr, c_char},
    fs,
    io::{self, Read as _},
    panic::{AssertUnwindSafe, catch_unwind},
    path::{Path, PathBuf},
    sync::{Mutex, MutexGuard, PoisonError},
    time::SystemTime,
};

use trainmaster_adapters::slurm::{
    Config, comment,
    seen::Memory,
    submit::{Leader, Submission, submit, submit_servers},
};

/// Bytes of a held job's comment, with the zero byte.
pub const TRAINMASTER_COMMENT: usize = 1025;
/// Bytes of its generic resources, with the zero byte.
pub const TRAINMASTER_TRES: usize = 256;
/// Bytes of its environment, with the two zero bytes at its end.
pub const TRAINMASTER_ENVIRONMENT: usize = 1024;
/// Bytes that suffice for a message.
pub const TRAINMASTER_MESSAGE: usize = 2048;

/// The configuration for submissions. slurmctld holds its locks meanwhile, so no file is read here.
static CONFIG: Mutex<Option<Config>> = Mutex::new(None);
/// The configuration file, which a thread of the plugin checks.
static WATCHED: Mutex<Option<Watched>> = Mutex::new(None);

/// The configuration file.
#[derive(Debug)]
struct Watched {
    path: PathBuf,
    seen: Option<(SystemTime, u64)>,
}

impl Watched {
    fn new(path: PathBuf) -> Self {
        let seen = Self::seen(&path);
        Self { path, seen }
    }

    fn seen(path: &Path) -> Option<(SystemTime, u64)> {
        let data = fs::metadata(path).ok()?;
        Some((data.modified().ok()?, data.len()))
    }

    /// The new configuration, if the file changed.
    fn changed(&mut self) -> Option<Result<Config, String>> {
        let seen = Self::seen(&self.path);
        if seen == self.seen {
            return None;
        }
        self.seen = seen;
        Some(configure(&self.path))
    }
}

fn locked<T>(value: &Mutex<T>) -> MutexGuard<'_, T> {
    value.lock().unwrap_or_else(PoisonError::into_inner)
}

fn config() -> Config {
    locked(&CONFIG).clone().unwrap_or_default()
}

thread_local! {
    /// State of the heterogeneous job that is being submitted. slurmctld submits its components one after the other on
    /// one thread, and only the first one identifies its owner.
    static LEADER: RefCell<Option<Leader>> = const { RefCell::new(None) };
}

/// A submitted job. Unset numbers are -1; an unset begin is 0.
#[repr(C)]
#[derive(Debug)]
#[allow(missing_docs)] // as in Slurm
pub struct CSubmission {
    pub name: *const c_char,
    pub comment: *const c_char,
    pub script: *const c_char,
    pub array: *const c_char,
    pub partition: *const c_char,
    pub tres_per_node: *const c_char,
    pub tres_per_task: *const c_char,
    pub tres_per_job: *const c_char,
    /// An option that is not allowed for Trainmaster's jobs. NULL if there is none.
    pub unsupported_option: *const c_char,
    /// Its value.
    pub unsupported_value: *const c_char,
    /// The number of a heterogeneous job's component. The components come in order, one after the other on one thread.
    pub component: i64,
    pub begin: i64,
    pub requeue: i64,
    pub min_nodes: i64,
    pub max_nodes: i64,
    pub tasks: i64,
    pub tasks_per_node: i64,
    pub cpus_per_task: i64,
    /// pn_min_memory as Slurm encodes it, with its flag.
    pub memory: u64,
}

/// The changed fields of a held job. An empty text deletes the field.
#[repr(C)]
#[derive(Debug)]
#[allow(missing_docs)] // as in Slurm
pub struct CHeld {
    pub begin: i64,
    pub comment: [c_char; TRAINMASTER_COMMENT],
    pub tres_per_node: [c_char; TRAINMASTER_TRES],
    pub tres_per_job: [c_char; TRAINMASTER_TRES],
    /// name \0 value \0 ... \0
    pub environment: [c_char; TRAINMASTER_ENVIRONMENT],
}

/// What becomes of a submitted job.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// The job isn't for Trainmaster.
    Passes = 0,
    /// The job is held for the agent.
    Held = 1,
    /// The job is refused, with a message for its owner.
    Refused = 2,
    /// A panic, with a message for the log. The job must not pass unchanged, because its comment may contain anything.
    Failed = 3,
}

/// Reads the table `slurm` of this file, if the file exists. Returns 0, or -1 with a message. Called once, before any
/// other function.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn trainmaster_configure(path: *const c_char, message: *mut c_char, room: usize) -> i32 {
    let read = || {
        // SAFETY: required by this function's contract.
        let watched = Watched::new(PathBuf::from(unsafe { text(path) }));
        let read = configure(&watched.path);
        // An invalid file may be corrected later.
        *locked(&CONFIG) = read.as_ref().ok().cloned();
        *locked(&WATCHED) = Some(watched);
        read.map(drop)
    };
    // SAFETY: required by this function's contract.
    unsafe { told(read, message, room) }
}

/// Reads the file again if it has changed. Never called with slurmctld's locks held. Returns 0, or -1 with a message;
/// the previous configuration stays in force then.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn trainmaster_look(message: *mut c_char, room: usize) -> i32 {
    let look = || match locked(&WATCHED).as_mut().and_then(Watched::changed) {
        None => Ok(()),
        Some(Ok(config)) => {
            *locked(&CONFIG) = Some(config);
            Ok(())
        }
        Some(Err(problem)) => Err(problem),
    };
    // SAFETY: required by this function's contract.
    unsafe { told(look, message, room) }
}

/// Returns 0, or -1 and the error.
///
/// # Safety
/// `message` has `room` bytes.
unsafe fn told(work: impl FnOnce() -> Result<(), String>, message: *mut c_char, room: usize) -> i32 {
    let problem = match catch_unwind(AssertUnwindSafe(work)) {
        Ok(Ok(())) => return 0,
        Ok(Err(problem)) => problem,
        Err(panic) => words(&*panic),
    };
    // SAFETY: required by this function's contract.
    unsafe { put(&problem, message, room) };
    -1
}

/// Bytes of the file that are read. Its parser allows fewer.
const LONGEST_FILE: u64 = 16 << 20;

fn configure(path: &Path) -> Result<Config, String> {
    let read = || {
        let mut text = String::new();
        fs::File::open(path)?.take(LONGEST_FILE).read_to_string(&mut text)?;
        Ok::<_, io::Error>(text)
    };
    match read() {
        Ok(text) => Config::from_toml(&text).map_err(|error| format!("{}: {error}", path.display())),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(Config::default()),
        Err(error) => Err(format!("{}: {error}", path.display())),
    }
}

/// Returns whether a job belongs to Trainmaster. Called for every job, before all other checks, so that it has to be
/// cheap.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn trainmaster_is_ours(comment: *const c_char, script: *const c_char, component: i64) -> bool {
    let look = || {
        if component <= 0 {
            LEADER.take();
        }
        // SAFETY: required by this function's contract.
        let (comment, script) = unsafe { (bytes(comment), bytes(script)) };
        LEADER.with_borrow(Option::is_some) || comment::is_ours(comment, script)
    };
    // After a panic, the next function handles the job, and refuses it.
    catch_unwind(AssertUnwindSafe(look)).unwrap_or(true)
}

/// Returns whether a comment has, or might have, a form that only Trainmaster may set.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn trainmaster_is_reserved(comment: *const c_char) -> bool {
    // SAFETY: required by this function's contract.
    let look = || comment::is_ours(unsafe { bytes(comment) }, "");
    catch_unwind(AssertUnwindSafe(look)).unwrap_or(true)
}

/// Checks and holds a job. `random` has 16 bytes. `held` is written if the job is held, `message` if it isn't.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn trainmaster_submit(
    job: *const CSubmission,
    now: i64,
    random: *const u8,
    held: *mut CHeld,
    message: *mut c_char,
    room: usize,
) -> Outcome {
    let work = || {
        // SAFETY: required by this function's contract.
        let (job, random) = unsafe { (submission(&*job), *random.cast::<[u8; 16]>()) };
        let config = config();
        let token: String = random.iter().map(|byte| format!("{byte:02x}")).collect();
        let hash = *blake3::hash(token.as_bytes()).as_bytes();
        let leader = LEADER.with_borrow(|leader| leader.clone().filter(|_| job.component > Some(0)));
        let mut environment = Vec::new();
        let accepted = if let Some(leader) = leader {
            submit_servers(&job, &leader)?
        } else {
            let Some((accepted, leader)) = submit(&job, now, config.lease, hash)? else { return Ok(false) };
            LEADER.set(leader);
            // The batch script belongs to the first component.
            environment.push(("TRAINMASTER_TOKEN", token));
            environment.extend(config.feed.clone().map(|feed| ("TRAINMASTER_FEED", feed)));
            accepted
        };
        environment.extend(accepted.environment);
        let environment: String = environment.iter().map(|(name, value)| format!("{name}\0{value}\0")).collect();
        for (name, text, room) in [
            ("comment", &accepted.comment, TRAINMASTER_COMMENT),
            ("--gres", &accepted.tres_per_node, TRAINMASTER_TRES),
            ("--gpus", &accepted.tres_per_job, TRAINMASTER_TRES),
            ("environment", &environment, TRAINMASTER_ENVIRONMENT - 1),
        ] {
            if text.len() >= room {
                return Err(format!("{name}: {} bytes must be fewer than {room}", text.len()));
            }
        }
        // SAFETY: required by this function's contract; the lengths of the texts were checked.
        unsafe {
            (*held).begin = accepted.begin;
            put(&accepted.comment, (&raw mut (*held).comment).cast(), TRAINMASTER_COMMENT);
            put(&accepted.tres_per_node, (&raw mut (*held).tres_per_node).cast(), TRAINMASTER_TRES);
            put(&accepted.tres_per_job, (&raw mut (*held).tres_per_job).cast(), TRAINMASTER_TRES);
            put(&environment, (&raw mut (*held).environment).cast(), TRAINMASTER_ENVIRONMENT);
        }
        Ok(true)
    };
    let (outcome, problem) = match catch_unwind(AssertUnwindSafe(work)) {
        Ok(Ok(true)) => return Outcome::Held,
        Ok(Ok(false)) => return Outcome::Passes,
        Ok(Err(refusal)) => (Outcome::Refused, format!("trainmaster: {refusal}")),
        Err(panic) => (Outcome::Failed, words(&*panic)),
    };
    // SAFETY: required by this function's contract.
    unsafe { put(&problem, message, room) };
    outcome
}

/// # Safety
/// Texts are C strings or NULL.
unsafe fn submission(job: &CSubmission) -> Submission {
    let number = |value: i64| u32::try_from(value).ok();
    // SAFETY: required by this function's contract.
    unsafe {
        let option =
            (!job.unsupported_option.is_null()).then(|| (text(job.unsupported_option), text(job.unsupported_value)));
        Submission {
            name: text(job.name),
            comment: text(job.comment),
            // Only the head is examined.
            script: (!job.script.is_null()).then(|| head(job.script)),
            array: text(job.array),
            partition: text(job.partition),
            component: number(job.component),
            begin: job.begin,
            requeue: number(job.requeue).map(|value| value > 0),
            min_nodes: number(job.min_nodes),
            max_nodes: number(job.max_nodes),
            tasks: number(job.tasks),
            tasks_per_node: number(job.tasks_per_node),
            cpus_per_task: number(job.cpus_per_task),
            memory: Memory::of(job.memory),
            tres_per_node: text(job.tres_per_node),
            tres_per_task: text(job.tres_per_task),
            tres_per_job: text(job.tres_per_job),
            unsupported: option.into_iter().collect(),
        }
    }
}

/// # Safety
/// A C string or NULL.
unsafe fn text(text: *const c_char) -> String {
    if text.is_null() {
        return String::new();
    }
    // SAFETY: required by this function's contract.
    unsafe { CStr::from_ptr(text) }.to_string_lossy().into_owned()
}

/// The first bytes of a long text.
///
/// # Safety
/// A C string or NULL.
unsafe fn head(text: *const c_char) -> String {
    // SAFETY: required by this function's contract.
    let bytes = if text.is_null() { &[][..] } else { unsafe { CStr::from_ptr(text) }.to_bytes() };
    String::from_utf8_lossy(&bytes[..bytes.len().min(comment::HEAD)]).into_owned()
}

/// The same without a copy. The text before the first invalid UTF-8 is enough to recognise a job.
///
/// # Safety
/// A C string or NULL that outlives the result.
unsafe fn bytes<'a>(text: *const c_char) -> &'a str {
    if text.is_null() {
        return "";
    }
    // SAFETY: required by this function's contract.
    let bytes = unsafe { CStr::from_ptr(text) }.to_bytes();
    bytes.utf8_chunks().next().map_or("", |chunk| chunk.valid())
}

/// Writes a text and two zeros. The second one ends a list.
///
/// # Safety
/// `to` has `room` bytes. A longer text is truncated.
unsafe fn put(text: &str, to: *mut c_char, room: usize) {
    if to.is_null() || room == 0 {
        return;
    }
    let length = text.len().min(room - 1);
    // SAFETY: required by this function's contract.
    unsafe {
        to.cast::<u8>().copy_from_nonoverlapping(text.as_ptr(), length);
        to.cast::<u8>().add(length).write_bytes(0, (room - length).min(2));
    }
}

fn words(panic: &(dyn Any + Send)) -> String {
    let text = panic.downcast_ref::<&str>().copied().or_else(|| panic.downcast_ref::<String>().map(String::as_str));
    format!("panic: {}", text.unwrap_or("without words"))
}

#[cfg(test)]
mod tests {
    use std::{ffi::CString, ptr::null};

    use super::*;

    fn nothing() -> CSubmission {
        CSubmission {
            name: null(),
            comment: null(),
            script: null(),
            array: null(),
            partition: null(),
            tres_per_node: null(),
            tres_per_task: null(),
            tres_per_job: null(),
            unsupported_option: null(),
            unsupported_value: null(),
            component: -1,
            begin: 0,
            requeue: -1,
            min_nodes: -1,
            max_nodes: -1,
            tasks: -1,
            tasks_per_node: -1,
            cpus_per_task: -1,
            memory: 0xffff_ffff_ffff_fffe,
        }
    }

    fn call(job: &CSubmission) -> (Outcome, String, CHeld) {
        let empty = CHeld {
            begin: 0,
            comment: [0; TRAINMASTER_COMMENT],
            tres_per_node: [0; TRAINMASTER_TRES],
            tres_per_job: [0; TRAINMASTER_TRES],
            environment: [0; TRAINMASTER_ENVIRONMENT],
        };
        let (mut held, mut message) = (empty, [0; 200]);
        // SAFETY: all pointers are to the values above.
        let outcome =
            unsafe { trainmaster_submit(job, 1000, [7; 16].as_ptr(), &mut held, message.as_mut_ptr(), message.len()) };
        // SAFETY: it is terminated.
        (outcome, unsafe { text(message.as_ptr()) }, held)
    }

    #[test]
    fn a_job_passes_is_held_or_refused() {
        assert_eq!(call(&nothing()).0, Outcome::Passes);
        let (comment, script) =
            (CString::new("trainmaster;mode=allreduce").unwrap(), CString::new("#!/bin/sh\n").unwrap());
        let job = CSubmission { comment: comment.as_ptr(), ..nothing() };
        let (outcome, message, _) = call(&job);
        assert_eq!(outcome, Outcome::Refused);
        assert!(message.starts_with("trainmaster: salloc"), "{message}");
        let (outcome, _, held) = call(&CSubmission { script: script.as_ptr(), ..job });
        assert_eq!((outcome, held.begin), (Outcome::Held, 1900));
        // SAFETY: it is terminated.
        let comment = unsafe { text(held.comment.as_ptr()) };
        assert!(comment.starts_with("trainmaster;mode=allreduce;worker.requested=1;worker.cpu=1;@token="), "{comment}");
        // SAFETY: it is terminated.
        let (name, value) = unsafe { (text(held.environment.as_ptr()), text(held.environment.as_ptr().add(18))) };
        assert_eq!((name.as_str(), value), ("TRAINMASTER_TOKEN", "07".repeat(16)));
    }

    #[test]
    fn the_second_component_is_recognised_by_the_first() {
        let (comment, script) =
            (CString::new("trainmaster;worker.gpu=1").unwrap(), CString::new("#!/bin/sh\n").unwrap());
        let first =
            CSubmission { comment: comment.as_ptr(), script: script.as_ptr(), component: 0, tasks: 2, ..nothing() };
        let second = CSubmission { component: 1, tasks: 3, ..nothing() };
        let third = CSubmission { component: 2, ..nothing() };
        // SAFETY: C strings and NULL.
        let is_ours = |job: &CSubmission| unsafe { trainmaster_is_ours(job.comment, job.script, job.component) };
        assert!(!is_ours(&nothing()) && !is_ours(&second));
        assert!(is_ours(&first));
        assert_eq!(call(&first).0, Outcome::Held);
        assert!(is_ours(&second));
        let (outcome, message, held) = call(&second);
        assert_eq!((outcome, held.begin), (Outcome::Held, 1900), "{message}");
        // SAFETY: they are terminated.
        let (comment, environment) = unsafe { (text(held.comment.as_ptr()), text(held.environment.as_ptr())) };
        assert_eq!(environment, "");
        assert!(comment.starts_with("trainmaster;server.requested=3;server.cpu=1;@part=servers;@asked="), "{comment}");
        assert!(is_ours(&third));
        let (outcome, message, _) = call(&third);
        assert_eq!(outcome, Outcome::Refused);
        assert!(message.contains("two"), "{message}");
        // Another job on the same thread.
        assert!(!is_ours(&CSubmission { component: 0, ..nothing() }) && !is_ours(&second));
        let comment = CString::new("trainmaster;worker.gpu=1").unwrap();
        let late = CSubmission { comment: comment.as_ptr(), ..second };
        assert!(is_ours(&late));
        assert_eq!(call(&late).0, Outcome::Refused);
    }

    #[test]
    fn a_long_message_is_cut_and_a_long_job_refused() {
        let script = CString::new("#!/bin/sh\n").unwrap();
        let comment = CString::new(format!("trainmaster;mode=allreduce;x={}", "é".repeat(600))).unwrap();
        let (outcome, message, _) =
            call(&CSubmission { comment: comment.as_ptr(), script: script.as_ptr(), ..nothing() });
        assert_eq!((outcome, message.len() <= 201), (Outcome::Refused, true));
    }

    #[test]
    fn any_bytes_are_accepted() {
        let strange = CString::new(b"#!/bin/sh\n\xff\xfe\n#TRAINMASTER mode = sync\n".to_vec()).unwrap();
        // SAFETY: C strings and NULL.
        unsafe {
            assert!(!trainmaster_is_ours(null(), strange.as_ptr(), -1));
            assert!(!trainmaster_is_ours(null(), null(), 1));
        }
    }

    #[test]
    fn a_panic_becomes_a_message() {
        let panic = catch_unwind(|| panic!("of {}", 3)).unwrap_err();
        assert_eq!(words(&*panic), "panic: of 3");
    }

    #[test]
    fn an_existing_configuration_is_read() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("trainmaster.toml");
        assert_eq!(configure(&file).unwrap(), Config::default());
        fs::write(&file, "[slurm]\nlease = \"1s\"\n").unwrap();
        assert!(configure(&file).unwrap_err().contains("lease"));
        assert!(configure(Path::new("/dev/zero")).unwrap_err().contains("bytes must be at most"));
        let mut watched = Watched::new(file.clone());
        assert!(watched.changed().is_none());
        fs::write(&file, "[slurm]\nlease = \"100s\"\n").unwrap();
        assert_eq!(watched.changed().unwrap().unwrap().lease, 100);
        assert!(watched.changed().is_none());
        fs::write(&file, "a".repeat(2 << 20)).unwrap();
        assert!(watched.changed().unwrap().unwrap_err().contains("trainmaster.toml"));
    }
}

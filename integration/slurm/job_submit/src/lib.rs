//! Interface between the plugin job_submit/trainmaster and its static library, which recognises, checks and holds jobs,
//! beside that of trainmaster.h. submission.h is made from src/lib.rs.
//!
//! Texts and messages may be NULL; other pointers may not. The library keeps no pointer after a call. No panic leaves
//! the library: a caught one becomes a message, and the job is refused, because its comment may contain anything.

#![allow(unsafe_code)] // Functions for C have fixed names.

use std::{
    cell::RefCell,
    ffi::c_char,
    fs,
    io::{self, Read as _},
    path::{Path, PathBuf},
    sync::{Mutex, MutexGuard, PoisonError},
    time::SystemTime,
};

use trainmaster::{
    guard::catch,
    text::{trainmaster_c_string, trainmaster_message},
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
pub struct CSubmission<'a> {
    pub name: trainmaster_c_string<'a>,
    pub comment: trainmaster_c_string<'a>,
    pub script: trainmaster_c_string<'a>,
    pub array: trainmaster_c_string<'a>,
    pub partition: trainmaster_c_string<'a>,
    pub tres_per_node: trainmaster_c_string<'a>,
    pub tres_per_task: trainmaster_c_string<'a>,
    pub tres_per_job: trainmaster_c_string<'a>,
    /// An option that is not allowed for Trainmaster's jobs. NULL if there is none.
    pub unsupported_option: trainmaster_c_string<'a>,
    /// Its value.
    pub unsupported_value: trainmaster_c_string<'a>,
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

impl CHeld {
    /// No changes.
    pub const NONE: Self = Self {
        begin: 0,
        comment: [0; TRAINMASTER_COMMENT],
        tres_per_node: [0; TRAINMASTER_TRES],
        tres_per_job: [0; TRAINMASTER_TRES],
        environment: [0; TRAINMASTER_ENVIRONMENT],
    };
}

/// 16 random bytes.
#[repr(C)]
#[derive(Debug)]
#[allow(missing_docs)] // the struct says it
pub struct CRandom {
    pub bytes: [u8; 16],
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
pub extern "C" fn trainmaster_configure(
    path: trainmaster_c_string<'_>,
    message: Option<&mut trainmaster_message<'_>>,
) -> i32 {
    told(message, || {
        let watched = Watched::new(PathBuf::from(path.to_text()));
        let read = configure(&watched.path);
        // An invalid file may be corrected later.
        *locked(&CONFIG) = read.as_ref().ok().cloned();
        *locked(&WATCHED) = Some(watched);
        read.map(drop)
    })
}

/// Reads the file again if it has changed. Never called with slurmctld's locks held. Returns 0, or -1 with a message;
/// the previous configuration stays in force then.
#[unsafe(no_mangle)]
pub extern "C" fn trainmaster_look(message: Option<&mut trainmaster_message<'_>>) -> i32 {
    told(message, || match locked(&WATCHED).as_mut().and_then(Watched::changed) {
        None => Ok(()),
        Some(Ok(config)) => {
            *locked(&CONFIG) = Some(config);
            Ok(())
        }
        Some(Err(problem)) => Err(problem),
    })
}

/// Returns 0, or -1 and the error.
fn told(message: Option<&mut trainmaster_message<'_>>, work: impl FnOnce() -> Result<(), String>) -> i32 {
    let done = catch(work).unwrap_or_else(|words| Err(panicked(&words)));
    tell(message, done.as_ref().err().map_or("", String::as_str));
    if done.is_ok() { 0 } else { -1 }
}

fn tell(message: Option<&mut trainmaster_message<'_>>, text: &str) {
    message.into_iter().for_each(|message| message.tell(text));
}

fn panicked(words: &str) -> String {
    format!("panic: {words}")
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
pub extern "C" fn trainmaster_is_ours(
    comment: trainmaster_c_string<'_>,
    script: trainmaster_c_string<'_>,
    component: i64,
) -> bool {
    let look = || {
        if component <= 0 {
            LEADER.take();
        }
        LEADER.with_borrow(Option::is_some) || comment::is_ours(valid(comment), valid(script))
    };
    // After a panic, the next function handles the job, and refuses it.
    catch(look).unwrap_or(true)
}

/// Returns whether a comment has, or might have, a form that only Trainmaster may set.
#[unsafe(no_mangle)]
pub extern "C" fn trainmaster_is_reserved(comment: trainmaster_c_string<'_>) -> bool {
    catch(|| comment::is_ours(valid(comment), "")).unwrap_or(true)
}

/// Checks and holds a job. `held` is written if the job is held. `message` is empty if it is held or passes.
#[unsafe(no_mangle)]
pub extern "C" fn trainmaster_submit(
    job: &CSubmission<'_>,
    now: i64,
    random: &CRandom,
    held: &mut CHeld,
    message: Option<&mut trainmaster_message<'_>>,
) -> Outcome {
    let (outcome, problem) = match catch(|| held_job(&submission(job), now, random)) {
        Ok(Ok(Some(changes))) => {
            *held = changes;
            (Outcome::Held, String::new())
        }
        Ok(Ok(None)) => (Outcome::Passes, String::new()),
        Ok(Err(refusal)) => (Outcome::Refused, format!("trainmaster: {refusal}")),
        Err(words) => (Outcome::Failed, panicked(&words)),
    };
    tell(message, &problem);
    outcome
}

/// The changes of a job that is held. None: the job isn't for Trainmaster.
fn held_job(job: &Submission, now: i64, random: &CRandom) -> Result<Option<CHeld>, String> {
    let config = config();
    let token: String = random.bytes.iter().map(|byte| format!("{byte:02x}")).collect();
    let hash = *blake3::hash(token.as_bytes()).as_bytes();
    let leader = LEADER.with_borrow(|leader| leader.clone().filter(|_| job.component > Some(0)));
    let mut environment = Vec::new();
    let accepted = if let Some(leader) = leader {
        submit_servers(job, &leader)?
    } else {
        let Some((accepted, leader)) = submit(job, now, config.lease, hash)? else { return Ok(None) };
        LEADER.set(leader);
        // The batch script belongs to the first component.
        environment.push(("TRAINMASTER_TOKEN", token));
        environment.extend(config.feed.clone().map(|feed| ("TRAINMASTER_FEED", feed)));
        accepted
    };
    environment.extend(accepted.environment);
    let environment: String = environment.iter().map(|(name, value)| format!("{name}\0{value}\0")).collect();
    Ok(Some(CHeld {
        begin: accepted.begin,
        comment: field("comment", &accepted.comment, 1)?,
        tres_per_node: field("--gres", &accepted.tres_per_node, 1)?,
        tres_per_job: field("--gpus", &accepted.tres_per_job, 1)?,
        environment: field("environment", &environment, 2)?,
    }))
}

/// A text with at least `zeros` zero bytes behind it.
fn field<const ROOM: usize>(name: &str, text: &str, zeros: usize) -> Result<[c_char; ROOM], String> {
    if text.len() + zeros > ROOM {
        return Err(format!("{name}: {} bytes must be at most {}", text.len(), ROOM - zeros));
    }
    let mut field = [0; ROOM];
    field.iter_mut().zip(text.bytes()).for_each(|(to, byte)| *to = byte as c_char);
    Ok(field)
}

fn submission(job: &CSubmission<'_>) -> Submission {
    let number = |value: i64| u32::try_from(value).ok();
    let option = (!job.unsupported_option.is_null())
        .then(|| (job.unsupported_option.to_text(), job.unsupported_value.to_text()));
    Submission {
        name: job.name.to_text(),
        comment: job.comment.to_text(),
        script: (!job.script.is_null()).then(|| head(job.script)),
        array: job.array.to_text(),
        partition: job.partition.to_text(),
        component: number(job.component),
        begin: job.begin,
        requeue: number(job.requeue).map(|value| value > 0),
        min_nodes: number(job.min_nodes),
        max_nodes: number(job.max_nodes),
        tasks: number(job.tasks),
        tasks_per_node: number(job.tasks_per_node),
        cpus_per_task: number(job.cpus_per_task),
        memory: Memory::of(job.memory),
        tres_per_node: job.tres_per_node.to_text(),
        tres_per_task: job.tres_per_task.to_text(),
        tres_per_job: job.tres_per_job.to_text(),
        unsupported: option.into_iter().collect(),
    }
}

/// The first bytes of a script: only its head is examined.
fn head(script: trainmaster_c_string<'_>) -> String {
    let bytes = script.bytes();
    String::from_utf8_lossy(&bytes[..bytes.len().min(comment::HEAD)]).into_owned()
}

/// The text before the first invalid UTF-8, which is enough to recognise a job. Without a copy.
fn valid(text: trainmaster_c_string<'_>) -> &str {
    text.bytes().utf8_chunks().next().map_or("", |chunk| chunk.valid())
}

#[cfg(test)]
mod tests {
    use std::ffi::{CStr, CString};

    use super::*;

    fn nothing() -> CSubmission<'static> {
        CSubmission {
            name: NULL,
            comment: NULL,
            script: NULL,
            array: NULL,
            partition: NULL,
            tres_per_node: NULL,
            tres_per_task: NULL,
            tres_per_job: NULL,
            unsupported_option: NULL,
            unsupported_value: NULL,
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

    const NULL: trainmaster_c_string<'_> = trainmaster_c_string::NULL;

    fn of(text: &CStr) -> trainmaster_c_string<'_> {
        trainmaster_c_string::new(text)
    }

    /// The text up to the first zero byte.
    fn shown(text: &[c_char]) -> String {
        let bytes: Vec<u8> = text.iter().map(|byte| *byte as u8).take_while(|byte| *byte != 0).collect();
        String::from_utf8(bytes).unwrap()
    }

    struct Answer {
        outcome: Outcome,
        message: String,
        begin: i64,
        comment: String,
        environment: Vec<String>,
    }

    fn call(job: &CSubmission<'_>) -> Answer {
        let mut held = CHeld::NONE;
        let mut text = [0; 200];
        let mut message = trainmaster_message::new(&mut text);
        let outcome = trainmaster_submit(job, 1000, &CRandom { bytes: [7; 16] }, &mut held, Some(&mut message));
        let environment = held.environment.split(|byte| *byte == 0).map(shown).take_while(|text| !text.is_empty());
        Answer {
            outcome,
            message: shown(&text),
            begin: held.begin,
            comment: shown(&held.comment),
            environment: environment.collect(),
        }
    }

    #[test]
    fn a_job_passes_is_held_or_refused() {
        assert_eq!(call(&nothing()).outcome, Outcome::Passes);
        let job = CSubmission { comment: of(c"trainmaster;mode=allreduce"), ..nothing() };
        let refused = call(&job);
        assert_eq!(refused.outcome, Outcome::Refused);
        assert!(refused.message.starts_with("trainmaster: salloc"), "{}", refused.message);
        let held = call(&CSubmission { script: of(c"#!/bin/sh\n"), ..job });
        assert_eq!((held.outcome, held.begin), (Outcome::Held, 1900));
        let start = "trainmaster;mode=allreduce;worker.requested=1;worker.cpu=1;@token=";
        assert!(held.comment.starts_with(start), "{}", held.comment);
        assert_eq!(held.environment[..2], ["TRAINMASTER_TOKEN".to_owned(), "07".repeat(16)]);
    }

    #[test]
    fn the_second_component_is_recognised_by_the_first() {
        let (comment, script) = (of(c"trainmaster;worker.gpu=1"), of(c"#!/bin/sh\n"));
        let first = CSubmission { comment, script, component: 0, tasks: 2, ..nothing() };
        let second = CSubmission { component: 1, tasks: 3, ..nothing() };
        let third = CSubmission { component: 2, ..nothing() };
        let is_ours = |job: &CSubmission<'_>| trainmaster_is_ours(job.comment, job.script, job.component);
        assert!(!is_ours(&nothing()) && !is_ours(&second));
        assert!(is_ours(&first));
        assert_eq!(call(&first).outcome, Outcome::Held);
        assert!(is_ours(&second));
        let held = call(&second);
        assert_eq!((held.outcome, held.begin), (Outcome::Held, 1900), "{}", held.message);
        assert!(held.environment.is_empty());
        let start = "trainmaster;server.requested=3;server.cpu=1;@part=servers;@asked=";
        assert!(held.comment.starts_with(start), "{}", held.comment);
        assert!(is_ours(&third));
        let refused = call(&third);
        assert_eq!(refused.outcome, Outcome::Refused);
        assert!(refused.message.contains("two"), "{}", refused.message);
        // Another job on the same thread.
        assert!(!is_ours(&CSubmission { component: 0, ..nothing() }) && !is_ours(&second));
        let late = CSubmission { comment, ..second };
        assert!(is_ours(&late));
        assert_eq!(call(&late).outcome, Outcome::Refused);
    }

    #[test]
    fn a_long_message_is_cut_and_a_long_job_refused() {
        let comment = CString::new(format!("trainmaster;mode=allreduce;x={}", "é".repeat(600))).unwrap();
        let refused = call(&CSubmission { comment: of(&comment), script: of(c"#!/bin/sh\n"), ..nothing() });
        assert_eq!((refused.outcome, refused.message.len() <= 201), (Outcome::Refused, true));
        assert!(field::<4>("x", "abc", 1).is_ok() && field::<4>("x", "abc", 2).is_err());
    }

    #[test]
    fn any_bytes_are_accepted() {
        let strange = of(c"#!/bin/sh\n\xff\xfe\n#TRAINMASTER mode = sync\n");
        assert!(!trainmaster_is_ours(NULL, strange, -1));
        assert!(!trainmaster_is_ours(NULL, NULL, 1));
    }

    #[test]
    fn a_panic_becomes_a_message() {
        let mut text = [0; 200];
        let mut message = trainmaster_message::new(&mut text);
        assert_eq!(told(Some(&mut message), || panic!("of {}", 3)), -1);
        assert!(shown(&text).starts_with("panic: of 3 at "), "{}", shown(&text));
        assert_eq!(told(None, || panic!("of {}", 4)), -1);
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

//! The job file of an application.

use std::borrow::Cow;

use toml::Table;
use trainmaster_core::{JobSpec, text};

use super::{amounts, config::Accounts, tony};

/// Maximum length of a name in bytes.
const LONGEST: usize = 128;
/// Maximum length of a job file in bytes. It is large because TonY's keys are longer than Trainmaster's.
const LONGEST_FILE: usize = 64 << 10;

/// Characters that the shell scripts of YARN's containers would interpret. The scripts quote the values of an
/// environment only by `"`.
const SHELL: [char; 7] = ['"', '\\', '$', '`', '\n', '\r', PERCENT];
const PERCENT: char = '%';

/// Percent-encodes a job file for an ApplicationMaster's environment. The result begins with `%`, which a job file
/// can't.
pub(crate) fn encode(text: &str) -> String {
    let mut encoded = String::new();
    for (at, c) in text.chars().enumerate() {
        if at > 0 && !SHELL.contains(&c) {
            encoded.push(c);
            continue;
        }
        for byte in c.encode_utf8(&mut [0; 4]).bytes() {
            encoded += &format!("%{byte:02X}");
        }
    }
    encoded
}

/// Decodes a job file. It may also have been sent without encoding.
fn decode(text: &str) -> Option<Cow<'_, str>> {
    if !text.starts_with(PERCENT) {
        return Some(text.into());
    }
    let mut bytes = Vec::new();
    let mut rest = text.bytes();
    while let Some(byte) = rest.next() {
        if byte != b'%' {
            bytes.push(byte);
            continue;
        }
        let mut digit = || char::from(rest.next()?).to_digit(16);
        bytes.push((digit()? << 4 | digit()?) as u8);
    }
    String::from_utf8(bytes).ok().map(Cow::Owned)
}

/// Reads a job file. Its tenant is YARN's user and its queue YARN's, if it names none or isn't allowed to choose.
///
/// # Errors
/// The error names the key, its value and the allowed values.
pub fn read(text: &str, user: &str, queue: &str, accounts: Accounts) -> Result<JobSpec, String> {
    if text.trim().is_empty() {
        return Err("the application carries no job file: TRAINMASTER_JOB is empty".into());
    }
    if text.len() > 3 * LONGEST_FILE {
        return Err(format!("job file: {} bytes must be at most {LONGEST_FILE}", text.len()));
    }
    let text = &*decode(text).ok_or("job file: it begins with %, but is not percent-encoded UTF-8")?;
    let wrong = |problem: String| format!("job file: {}", problem.trim_end());
    // The original text is parsed if possible, so that errors have line numbers.
    let (read, table) = match text::read_toml::<Table>(text, LONGEST_FILE) {
        Ok(table) if table.contains_key("tony") => {
            let table = tony::translate(table).map_err(wrong)?;
            (JobSpec::from_toml(&table.to_string()), table)
        }
        table => (JobSpec::from_toml(text), table.unwrap_or_default()),
    };
    let mut spec = read.map_err(|error| wrong(error.to_string()))?;
    for (key, own, yarns) in [("tenant", &mut spec.tenant, user), ("queue", &mut spec.queue, queue)] {
        if yarns.is_empty() {
            continue;
        }
        let yarns = name(yarns);
        // A queue can be named without its parents.
        let is_yarns = |named: &str| named == yarns || yarns.ends_with(&format!(".{named}"));
        if !table.contains_key(key) || accounts == Accounts::Yarn && is_yarns(own) {
            *own = yarns;
        } else if accounts == Accounts::Yarn {
            return Err(format!(
                "job file: {key}: {own:?} must be YARN's, {yarns:?}, or left out; with accounts = \"job\" in yarn.toml \
                 it may be any"
            ));
        }
    }
    let roles = [("worker", Some(&spec.worker)), ("server", spec.server.as_ref())];
    for (key, role) in roles.into_iter().filter_map(|(key, role)| Some((key, role?))) {
        amounts::check(key, &role.demand).map_err(|error| format!("job file: {error}"))?;
    }
    Ok(spec)
}

/// Converts a user's or queue's name. YARN allows characters that the core doesn't.
pub(super) fn name(text: &str) -> String {
    let allowed = |c: char| c.is_ascii_alphanumeric() || matches!(c, '.' | '_' | '-');
    let text: String = text.chars().take(LONGEST).map(|c| if allowed(c) { c } else { '-' }).collect();
    if text.starts_with('.') { text.replacen('.', "-", 1) } else { text }
}

/// The name with the application's number, for a name that is taken.
pub(crate) fn numbered(name: &str, application: &str) -> String {
    let number = application.rsplit('_').next().unwrap_or_default();
    let number = number.trim_start_matches('0');
    let kept: String = name.chars().take(LONGEST - 1 - number.len().min(LONGEST / 2)).collect();
    format!("{kept}-{number:.64}")
}

#[cfg(test)]
mod tests {
    use super::*;

    const JOB: &str = "name = \"a\"\nmode = \"allreduce\"\nworker = { cpu = 1 }";

    #[test]
    fn user_and_queue_are_yarns_where_the_file_says_nothing() {
        let read = |text: &str, user: &str, queue: &str| {
            let spec = read(text, user, queue, Accounts::Job).unwrap();
            (spec.tenant, spec.queue)
        };
        let of = |tenant: &str, queue: &str| (tenant.to_owned(), queue.to_owned());
        assert_eq!(read(JOB, "alice", "root.dl"), of("alice", "root.dl"));
        assert_eq!(read(&format!("tenant = \"t\"\nqueue = \"q\"\n{JOB}"), "alice", "root.dl"), of("t", "q"));
        assert_eq!(read(&format!("queue = \"dl\"\n{JOB}"), "alice", "root.dl"), of("alice", "dl"));
        assert_eq!(read(JOB, "", ""), of("default", "default"));
        assert_eq!(read(JOB, "dom\\bob@X", ".q"), of("dom-bob-X", "-q"));
    }

    #[test]
    fn nobody_takes_anothers_account() {
        let read = |keys: &str| read(&format!("{keys}\n{JOB}"), "alice", "root.dl", Accounts::Yarn);
        for (keys, parts) in [
            ("tenant = \"bob\"", ["tenant: \"bob\"", "\"alice\""]),
            ("tenant = \"alice\"\nqueue = \"gold\"", ["queue: \"gold\"", "\"root.dl\""]),
        ] {
            let error = read(keys).unwrap_err();
            assert!(parts.iter().all(|part| error.contains(part)) && error.contains("accounts"), "{error}");
        }
        for queue in ["root.dl", "dl"] {
            let spec = read(&format!("tenant = \"alice\"\nqueue = {queue:?}")).unwrap();
            assert_eq!((spec.tenant.as_str(), spec.queue.as_str()), ("alice", "root.dl"));
        }
    }

    #[test]
    fn errors_are_the_job_files() {
        for (text, parts) in [
            ("", ["TRAINMASTER_JOB", "empty"]),
            ("name = 1", ["job file: ", "name"]),
            (&JOB.replace("cpu = 1", "cpus = 1"), ["worker.cpus", "allowed are"]),
            (&JOB.replace("cpu = 1", "gpu = 0.5"), ["worker.gpu", "whole number"]),
        ] {
            let error = read(text, "u", "q", Accounts::Yarn).unwrap_err();
            assert!(parts.iter().all(|part| error.contains(part)), "{error}");
        }
    }

    #[test]
    fn a_job_file_survives_a_shell_script() {
        let text = "# 100 %, \\é\nname = \"a\"\r\nworker = { command = 'echo $HOME `id`' }\n";
        let encoded = encode(text);
        assert!(encoded.starts_with("%23 100 %25, %5Cé%0Aname = %22a%22"), "{encoded}");
        assert!(!encoded.contains(['"', '\\', '$', '`', '\n']));
        assert_eq!(decode(&encoded).as_deref(), Some(text));
        assert_eq!(decode(text).as_deref(), Some(text));
        let read = |text: &str| super::read(text, "alice", "q", Accounts::Yarn);
        assert_eq!(read(&encode(JOB)).unwrap(), read(JOB).unwrap());
        for wrong in ["%", "%6", "%zz", "%FF"] {
            assert!(read(wrong).unwrap_err().contains("percent-encoded"), "{wrong}");
        }
    }

    #[test]
    fn a_name_that_is_taken_gets_the_applications_number() {
        assert_eq!(numbered("mnist", "application_1700000000000_0012"), "mnist-12");
        let long = numbered(&"n".repeat(128), "application_1700000000000_12345");
        assert!(long.len() == 128 && long.ends_with("-12345"), "{long}");
    }
}

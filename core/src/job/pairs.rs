//! A job description as pairs of dotted key and value, as managers transport it: `worker.max` = `8`.

use toml::{Table, Value, map::Entry};

use super::{file, file::JobFileError, spec::JobSpec, spec::JobSpecError};
use crate::text::{DEEPEST, read_toml, shown};

/// Maximum number of pairs of a job.
const MOST: usize = 256;
/// Maximum bytes of a key, and of a value.
const LONGEST_KEY: usize = 256;
const LONGEST_VALUE: usize = 8 << 10;
/// Maximum characters of a key or a value in error messages.
const SHOWN: usize = 100;

/// Keys whose value is always text, even if it looks like a number.
const TEXT: [&str; 7] = ["name", "model", "tenant", "queue", "worker.command", "server.command", "dataset.upload"];
const LABELS: &str = "constraints.labels.";
/// Tables whose keys can contain dots.
const FREE: [&str; 3] = [LABELS, "worker.resources.", "server.resources."];

pub(super) fn parse<'a>(pairs: impl IntoIterator<Item = (&'a str, &'a str)>) -> Result<JobSpec, JobFileError> {
    let pairs: Vec<(&str, &str)> = pairs.into_iter().map(|(key, text)| (key.trim(), text.trim())).collect();
    if pairs.len() > MOST {
        let problem = format!("{} keys must be at most {MOST}", pairs.len());
        return Err(JobSpecError { key: "job".into(), problem }.into());
    }
    let mut root = Table::new();
    for (key, text) in &pairs {
        check(key, text)?;
        insert(&mut root, key, text)?;
    }
    file::read(root).map_err(|error| match &error {
        // The library's message is "unknown field `wroker`, expected …". The key and value of the pair are added to it.
        JobFileError::Syntax(problem) => {
            let named =
                |key: &str| segments(key).iter().any(|part| problem.starts_with(&format!("unknown field `{part}`")));
            let pair = pairs.iter().find(|(key, _)| named(key));
            pair.map_or(error.clone(), |(key, text)| {
                JobSpecError { key: (*key).into(), problem: format!("{text:?}: {problem}") }.into()
            })
        }
        JobFileError::Spec(_) => error,
    })
}

/// Checks lengths and nesting before anything is parsed: tables nest as deep as a key has parts.
fn check(key: &str, text: &str) -> Result<(), JobSpecError> {
    let parts = segments(key).len();
    let problem = if key.len() > LONGEST_KEY {
        format!("a key of {} bytes must have at most {LONGEST_KEY}", key.len())
    } else if parts > DEEPEST {
        format!("a key of {parts} parts must have at most {DEEPEST}")
    } else if text.len() > LONGEST_VALUE {
        format!("\"{}\": {} bytes must be at most {LONGEST_VALUE}", shown(text, SHOWN), text.len())
    } else {
        return Ok(());
    };
    Err(JobSpecError { key: shown(key, SHOWN).into(), problem })
}

fn insert(root: &mut Table, key: &str, text: &str) -> Result<(), JobSpecError> {
    let wrong = |problem: &str| JobSpecError { key: key.into(), problem: format!("{text:?} {problem}") };
    let mut path = segments(key);
    if path.iter().any(|segment| segment.is_empty()) {
        return Err(wrong("must belong to a key such as worker.max"));
    }
    let last = path.pop().expect("a path has a segment");
    let mut table = root;
    for segment in path {
        table = match table.entry(segment).or_insert_with(|| Value::Table(Table::new())) {
            Value::Table(inner) => inner,
            _ => return Err(wrong(&format!("has no place: {segment} was given a value of its own"))),
        };
    }
    match table.entry(last) {
        Entry::Vacant(place) => {
            place.insert(value(key, text));
            Ok(())
        }
        Entry::Occupied(_) => Err(wrong("is given twice; write it once")),
    }
}

/// Splits a key at its dots, but not within a table with free names. Segments such as `gpu:a100` stay whole.
fn segments(key: &str) -> Vec<&str> {
    let free = FREE.into_iter().find(|table| key.starts_with(table));
    let (fixed, name) = free.map_or((key, None), |table| (&key[..table.len() - 1], Some(&key[table.len()..])));
    fixed.split('.').map(|segment| segment.trim_matches('"')).chain(name.map(|name| name.trim_matches('"'))).collect()
}

/// Parses a value as TOML if possible, else takes the text itself: `12h` needs no quotes. A value that nests deeper
/// than any key of a job allows is text.
fn value(key: &str, text: &str) -> Value {
    let read = read_toml::<Table>(&format!("v = {text}"), 2 * LONGEST_VALUE).ok().and_then(|mut table| {
        let value = table.remove("v");
        // A line break in the text could add further keys.
        value.filter(|value| table.is_empty() && !matches!(value, Value::Datetime(_)))
    });
    let is_text = TEXT.contains(&key) || key.starts_with(LABELS);
    match read {
        Some(value) if !is_text || value.is_str() => value,
        _ => Value::String(text.into()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(pairs: &[(&str, &str)]) -> Result<JobSpec, String> {
        parse(pairs.iter().copied()).map_err(|error| error.to_string())
    }

    #[test]
    fn pairs_say_what_a_file_says() {
        let pairs = [
            ("name", "resnet"),
            ("model", "50"),
            ("mode", "sync"),
            ("worker.gpu:a100", "1"),
            ("worker.memory", "10GiB"),
            (" worker.max ", " 8 "),
            ("worker.requested", "4"),
            ("worker.resources.fpga", "0.5"),
            ("server.cpu", "2"),
            ("separate_roles", "true"),
            ("convergence", "{ delta = 0.02, patience = 2 }"),
            ("constraints.labels.zone", "1"),
            ("deadline", "12h"),
            ("accuracy", "0.9"),
            ("utility.kind", "sigmoid"),
            ("utility.value", "50"),
        ];
        let file = "name = \"resnet\"\nmodel = \"50\"\nmode = \"sync\"\ndeadline = \"12h\"\naccuracy = 0.9\n\
            worker = { \"gpu:a100\" = 1, memory = \"10GiB\", max = 8, requested = 4, resources = { fpga = 0.5 } }\n\
            server = { cpu = 2 }\nseparate_roles = true\nconvergence = { delta = 0.02, patience = 2 }\n\
             constraints.labels.zone = \"1\"\n\
            utility = { kind = \"sigmoid\", value = 50 }";
        assert_eq!(read(&pairs).unwrap(), JobSpec::from_toml(file).unwrap());
    }

    #[test]
    fn mistakes_are_named_with_key_value_and_what_is_allowed() {
        for (key, text, parts) in [
            ("wroker.max", "8", &["wroker.max", "\"8\"", "`worker`"][..]),
            ("convergence.dleta", "0.1", &["convergence", "dleta", "delta"]),
            ("mode", "snyc", &["mode", "snyc", "allreduce"]),
            ("batch", "many", &["batch", "many"]),
            ("worker.max", "x", &["worker.max", "x", "whole number"]),
            ("worker.memory", "10", &["worker.memory", "10", "10GiB"]),
            ("deadline", "soon", &["deadline", "\"soon\"", "20s"]),
            ("model_size", "10", &["model_size", "10", "text in quotes"]),
            ("worker.gpu", "2", &["worker.gpu", "2", "twice"]),
            ("name.first", "x", &["name.first", "name was given"]),
            ("", "x", &["worker.max"]),
            ("worker..max", "x", &["worker..max"]),
            (&"a.".repeat(100), "x", &["101 parts", "8"]),
            (&"a".repeat(5000), "x", &["aaa…", "5000", "256"]),
            ("worker.gpu", &"1".repeat(9000), &["worker.gpu", "9000", "8192"]),
            ("utility", "[[[[[[[[[1]]]]]]]]]", &["utility", "[[[["]),
            ("utility", "{ a.b.c.d.e.f.g.h.i = 1 }", &["utility", "a.b.c"]),
        ] {
            let error = read(&[("name", "a"), ("worker.gpu", "1"), ("server.cpu", "1"), (key, text)]).unwrap_err();
            assert!(!error.contains('\n'), "{error}");
            assert!(!error.contains(&format!("{text:?}: {text:?}")), "the value stands twice: {error}");
            for part in parts {
                assert!(error.contains(part), "{error:?} should contain {part:?}");
            }
        }
    }
}

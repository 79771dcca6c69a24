//! The reference of configuration files, made from the code: tables in Markdown, and JSON Schemas for editors.
//!
//! `BLESS=1 cargo test --workspace --test program reference` writes both.

use std::{collections::BTreeSet, env, fmt::Write as _, fs, path::Path};

use schemars::schema_for;
use serde_json::{Map, Value};
use trainmaster_adapters::{local::Cluster, ray, slurm, yarn};
use trainmaster_core::{JobSpec, Settings, amount::parse_span};
use trainmaster_daemon::Config;

/// A kind of file.
struct File {
    title: &'static str,
    /// The name of its schema in docs/schema.
    name: Option<&'static str>,
    /// The page with its tables, from the repository's root.
    page: Option<&'static str>,
    schema: Value,
}

fn files() -> [File; 8] {
    let file = |title, name, page, schema: schemars::Schema| File { title, name, page, schema: schema.to_value() };
    let page = Some;
    [
        file(
            "The configuration of Trainmaster's daemon",
            Some("configuration"),
            page("docs/configuration.md"),
            schema_for!(Config),
        ),
        file("The settings of Trainmaster's scheduler", Some("settings"), None, schema_for!(Settings)),
        file("A job of Trainmaster", Some("job"), None, JobSpec::file_schema()),
        file(
            "This machine as servers of Trainmaster",
            Some("local"),
            page("adapters/local/README.md"),
            schema_for!(Cluster),
        ),
        file("Trainmaster's adapter of Ray", Some("ray"), page("adapters/ray/README.md"), schema_for!(ray::Config)),
        // A table of a file that has more.
        file("", None, page("adapters/slurm/README.md"), schema_for!(slurm::Config)),
        file("Trainmaster inside slurmctld", Some("slurm"), None, schema_for!(trainmaster_slurm_agent::Config)),
        file("Trainmaster's adapter of YARN", Some("yarn"), page("adapters/yarn/README.md"), schema_for!(yarn::Config)),
    ]
}

/// A schema for editors, without what concerns only the code.
fn for_editors(title: &str, mut schema: Value) -> String {
    fn clean(schema: &mut Value) {
        match schema {
            Value::Object(fields) => {
                fields.remove("writeOnly");
                if fields.get("description").is_some_and(Value::is_string) {
                    let text = described(fields).replace("\\|", "|");
                    fields.insert("description".into(), text.into());
                }
                fields.values_mut().for_each(clean);
            }
            Value::Array(items) => items.iter_mut().for_each(clean),
            _ => {}
        }
    }

    clean(&mut schema);
    let fields = schema.as_object_mut().unwrap();
    fields.insert("title".into(), title.into());
    fields.remove("description");
    format!("{}\n", serde_json::to_string_pretty(&schema).unwrap())
}

const BEGIN: &str = "<!-- Made from the code; see sidecar/tests/reference.rs. -->\n";
const END: &str = "<!-- End of what is made from the code. -->\n";

/// One key of a file.
struct Key<'a> {
    name: &'a str,
    schema: &'a Map<String, Value>,
    is_required: bool,
}

struct Page<'a> {
    definitions: Option<&'a Value>,
    /// What precedes the title of a table's section.
    level: &'a str,
    text: String,
}

impl<'a> Page<'a> {
    /// The schemas that one of several forms has, with references followed.
    fn forms(&self, schema: &'a Map<String, Value>) -> Vec<&'a Map<String, Value>> {
        let named = schema.get("$ref").and_then(Value::as_str).and_then(|path| path.rsplit('/').next());
        if let Some(found) = named.and_then(|name| self.definitions?.get(name)?.as_object()) {
            return self.forms(found);
        }
        match schema.get("anyOf").or_else(|| schema.get("oneOf")).and_then(Value::as_array) {
            Some(all) => all.iter().filter_map(Value::as_object).flat_map(|form| self.forms(form)).collect(),
            None => vec![schema],
        }
    }

    /// The form that is a table with keys of its own, or a list of such tables. With the table's title.
    fn table(&self, path: &str, schema: &'a Map<String, Value>) -> Option<(String, &'a Map<String, Value>)> {
        self.forms(schema).into_iter().find_map(|form| match form.get("items").and_then(Value::as_object) {
            Some(items) => self.table(path, items).map(|(_, table)| (format!("[[{path}]]"), table)),
            None => form.contains_key("properties").then(|| (format!("[{path}]"), form)),
        })
    }

    fn keys(&self, schema: &'a Map<String, Value>) -> Vec<Key<'a>> {
        let required = schema.get("required").and_then(Value::as_array).map_or(&[][..], Vec::as_slice);
        let properties = schema.get("properties").and_then(Value::as_object).into_iter().flatten();
        let key = |(name, schema): (&'a String, &'a Value)| {
            let is_required = required.iter().any(|required| required == name);
            Some(Key { name, schema: schema.as_object()?, is_required })
        };
        properties.filter_map(key).collect()
    }

    /// The tables of a file's keys: those of the file itself, then one for each of its tables.
    fn tables(&mut self, path: &str, schema: &'a Map<String, Value>) {
        let keys = self.keys(schema);
        self.text.push_str("\n| key | value | default | meaning |\n|---|---|---|---|\n");
        for key in &keys {
            let value = self.value(key.schema);
            if value.is_empty() {
                continue;
            }
            let default = match key.schema.get("default") {
                _ if key.is_required => "required".into(),
                None | Some(Value::Null) => "none".into(),
                Some(Value::Object(table)) if table.is_empty() => "none".into(),
                Some(Value::Object(_)) => "the table's".into(),
                Some(value) => format!("`{value}`"),
            };
            writeln!(self.text, "| `{}` | {value} | {default} | {} |", key.name, described(key.schema)).unwrap();
        }
        for key in keys {
            let path = if path.is_empty() { key.name.to_owned() } else { format!("{path}.{}", key.name) };
            if let Some((title, table)) = self.table(&path, key.schema) {
                write!(self.text, "\n{} `{title}`\n\n{}\n", self.level, described(key.schema)).unwrap();
                self.tables(&path, table);
            }
        }
    }

    /// What a key's value may be. Empty: nothing but a table with keys of its own.
    fn value(&self, schema: &'a Map<String, Value>) -> String {
        let words: Vec<String> = self.forms(schema).into_iter().filter_map(|form| self.word(form)).collect();
        let only_a_table = words.len() == 1 && self.table("", schema).is_some();
        if only_a_table { String::new() } else { words.join(" or ") }
    }

    fn word(&self, form: &'a Map<String, Value>) -> Option<String> {
        if let Some(word) = form.get("const") {
            return Some(format!("`{word}`"));
        }
        if let Some(words) = form.get("enum").and_then(Value::as_array) {
            return Some(words.iter().map(|word| format!("`{word}`")).collect::<Vec<_>>().join(" or "));
        }
        let types: Vec<&str> = match form.get("type") {
            Some(Value::Array(all)) => all.iter().filter_map(Value::as_str).filter(|name| *name != "null").collect(),
            Some(Value::String(one)) => vec![one],
            _ => Vec::new(),
        };
        let of = |key: &str| form.get(key).and_then(Value::as_object).map(|schema| self.value(schema));
        Some(match types[..] {
            ["null"] => return None,
            ["string"] => match form.get("pattern").and_then(Value::as_str) {
                Some(pattern) if pattern.contains("ms|s") => "duration".into(),
                Some(pattern) if pattern.contains("KiB") => "bytes".into(),
                Some(pattern) if pattern.contains("GiB") => "size".into(),
                Some(pattern) if pattern.contains("Gbit") => "bandwidth".into(),
                _ => "text".into(),
            },
            ["integer"] => "whole number".into(),
            ["number"] => "number".into(),
            ["boolean"] => "`true` or `false`".into(),
            ["array"] => format!("list of: {}", of("items").unwrap_or_default()),
            ["object"] => {
                of("additionalProperties").map_or_else(|| "table".into(), |inner| format!("table of: {inner}"))
            }
            _ => panic!("no word for {form:?}"),
        })
    }
}

/// The description in one line, without links into the code's documentation.
fn described(schema: &Map<String, Value>) -> String {
    let text = schema.get("description").and_then(Value::as_str).expect("each key has a description");
    let text = text.split("```").next().unwrap_or_default().trim().trim_end_matches("# Examples");
    let mut line = text.split_whitespace().collect::<Vec<_>>().join(" ").replace('|', "\\|");
    // Files have texts with units.
    if let Some((words, _)) = line.split_once(" Here in ") {
        line.truncate(words.len());
    }
    // A link to code becomes the name; a link alone in parentheses is left out.
    while let Some((before, after)) = line.split_once("[`") {
        let (name, after) = after.split_once("`]").expect("a link to code ends");
        let after = after.strip_prefix('(').and_then(|link| link.split_once(')')).map_or(after, |(_, after)| after);
        line = match (before.strip_suffix(" ("), after.strip_prefix(')')) {
            (Some(before), Some(after)) => format!("{before}{after}"),
            _ => format!("{before}`{name}`{after}"),
        };
    }
    line
}

#[test]
fn the_reference_of_configuration_files_is_up_to_date() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
    let bless = env::var_os("BLESS").is_some();
    let check = |name: &str, made: &str| {
        let path = root.join(name);
        if bless {
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(&path, made).unwrap();
        }
        let found = fs::read_to_string(&path).unwrap_or_default();
        assert!(found == made, "{name} isn't what the code makes; write it again with BLESS=1");
    };
    for File { title, name, page, schema } in files() {
        if let Some(name) = name {
            check(&format!("docs/schema/{name}.json"), &for_editors(title, schema.clone()));
        }
        let Some(page) = page else { continue };
        let text = fs::read_to_string(root.join(page)).unwrap();
        let (head, rest) = text.split_once(BEGIN).expect("the page has the mark at which its tables begin");
        let (_, tail) = rest.split_once(END).expect("the page has the mark at which its tables end");
        let level = if page.starts_with("docs") { "##" } else { "###" };
        let mut made = Page { definitions: schema.get("$defs"), level, text: String::new() };
        made.tables("", schema.as_object().unwrap());
        check(page, &format!("{head}{BEGIN}{}\n{END}{tail}", made.text));
    }
}

/// docs/job-files.md explains keys in its own order, so it isn't made from the code.
#[test]
fn the_page_of_job_files_has_every_key() {
    let page = fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join("../docs/job-files.md")).unwrap();
    let first_cells = page.lines().filter_map(|line| line.strip_prefix("| ")?.split(" |").next());
    let rows: BTreeSet<&str> = first_cells.flat_map(code).collect();
    let anywhere: BTreeSet<&str> = code(&page).collect();
    let schema = JobSpec::file_schema().to_value();
    let own = keys(&schema);
    let inner: BTreeSet<&str> = schema["$defs"].as_object().unwrap().values().flat_map(keys).collect();
    assert!(own.len() > 30 && inner.len() > 30, "{own:?} {inner:?}");
    let missing: Vec<_> = own.difference(&rows).chain(inner.difference(&anywhere)).collect();
    assert!(missing.is_empty(), "docs/job-files.md lacks {missing:?}");
}

#[test]
fn the_page_of_job_files_has_the_defaults() {
    let page = fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join("../docs/job-files.md")).unwrap();
    let schema = JobSpec::file_schema().to_value();
    // Of the tables with a column of defaults.
    let rows = page.lines().filter_map(|line| line.strip_prefix("| ")?.strip_suffix(" |"));
    let cells = rows.filter_map(|row| Some((row.split_once(" | ")?.0, row.rsplit_once(" | ")?.1)));
    let stated = |key: &str| {
        let (_, cell) = cells.clone().find(|(first, _)| first.split(", ").any(|name| name.trim_matches('`') == key))?;
        let text = format!("x = {}", cell.trim_matches('`'));
        Some(toml::from_str::<Value>(&text).map_or_else(|_| cell.into(), |mut table| table["x"].take()))
    };
    let convergence: Map<String, Value> = schema["$defs"]["Convergence"]["properties"]
        .as_object()
        .unwrap()
        .iter()
        .map(|(key, schema)| (key.clone(), schema["default"].clone()))
        .collect();
    assert_eq!(stated("convergence"), Some(convergence.into()), "docs/job-files.md: convergence");
    let mut compared = 0;
    for (key, schema) in schema["properties"].as_object().unwrap() {
        // A size of 0 has a meaning in words.
        let plain = |default: &&Value| default.is_number() || default.is_boolean() || default.is_string();
        let Some(default) = schema.get("default").filter(plain).filter(|default| **default != "0MiB") else { continue };
        assert_eq!(stated(key).as_ref(), Some(default), "docs/job-files.md: {key}");
        compared += 1;
    }
    assert!(compared >= 6, "{compared}");
}

/// docs/slurm.md has one table for all keys, so it isn't made from the code.
#[test]
fn the_page_of_slurm_has_every_key_with_its_default() {
    let page = fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join("../docs/slurm.md")).unwrap();
    let rows = page.lines().filter_map(|line| line.strip_prefix("| ")?.strip_suffix(" |"));
    let cells = rows.filter_map(|row| Some((row.split_once(" | ")?.0, row.rsplit_once(" | ")?.1)));
    let schema = schema_for!(trainmaster_slurm_agent::Config).to_value();
    let mut defaults: Vec<(String, &Value)> = Vec::new();
    for (key, schema) in schema["properties"].as_object().unwrap() {
        match &schema["default"] {
            // The scheduler's keys are those of the daemon's configuration.
            Value::Object(table) if key != "scheduler" => {
                defaults.extend(table.iter().map(|(inner, default)| (format!("{key}.{inner}"), default)));
            }
            Value::Object(_) => defaults.push((format!("[{key}]"), &Value::Null)),
            default => defaults.push((key.clone(), default)),
        }
    }
    assert!(defaults.len() >= 15, "{defaults:?}");
    for (key, default) in defaults {
        let named = |first: &str| first.split(", ").any(|name| name.trim_matches('`') == key);
        let (_, cell) = cells.clone().find(|(first, _)| named(first)).unwrap_or_else(|| panic!("{key} isn't there"));
        let stated = cell.trim_matches('`');
        match default {
            Value::Null => assert!(!cell.starts_with('`'), "{key}: {cell}"),
            Value::String(text) => match parse_span(text) {
                Ok(span) => assert_eq!(parse_span(stated), Ok(span), "{key}"),
                Err(_) => assert_eq!(stated, text, "{key}"),
            },
            other => assert_eq!(stated, other.to_string(), "{key}"),
        }
    }
}

fn keys(schema: &Value) -> BTreeSet<&str> {
    let properties = schema.get("properties").and_then(Value::as_object);
    properties.into_iter().flat_map(|properties| properties.keys()).map(String::as_str).collect()
}

/// The words between backticks.
fn code(text: &str) -> impl Iterator<Item = &str> {
    // Every other part is a block of code, of which the page needs no table.
    let words = text.split("```").step_by(2);
    let pieces = words.flat_map(|words| words.split('`').skip(1).step_by(2));
    pieces.flat_map(|piece| piece.split(|c: char| !c.is_alphanumeric() && c != '_')).filter(|word| !word.is_empty())
}

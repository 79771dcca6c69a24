//! The reference of configuration files, made from the code: tables in Markdown, and JSON Schemas for editors.
//!
//! `BLESS=1 cargo test --workspace --test program reference` writes both.

use std::{env, fmt::Write as _, fs, path::Path};

use serde_json::{Map, Value};
use trainmaster_core::Settings;
use trainmaster_daemon::Config;

/// The page with a file's tables, if it has one of its own; the schema's name, and the schema.
fn files() -> [(&'static str, &'static str, Value); 2] {
    let config = schemars::schema_for!(Config).to_value();
    let settings = schemars::schema_for!(Settings).to_value();
    [("configuration.md", "configuration.json", config), ("", "settings.json", settings)]
}

/// One key of a file.
struct Key<'a> {
    name: &'a str,
    schema: &'a Map<String, Value>,
    is_required: bool,
}

struct Page<'a> {
    definitions: Option<&'a Value>,
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

    /// The form that is a table with keys of its own.
    fn table(&self, schema: &'a Map<String, Value>) -> Option<&'a Map<String, Value>> {
        self.forms(schema).into_iter().find(|form| form.contains_key("properties"))
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
    fn tables(&mut self, path: &str, schema: &'a Map<String, Value>, meaning: &str) {
        let keys = self.keys(schema);
        if !path.is_empty() {
            write!(self.text, "\n## `[{path}]`\n\n{meaning}\n").unwrap();
        }
        self.text.push_str("\n| key | value | default | meaning |\n|---|---|---|---|\n");
        for key in &keys {
            let value = self.value(key.schema);
            if value.is_empty() {
                continue;
            }
            let default = match key.schema.get("default") {
                None | Some(Value::Null) if key.is_required => "required".into(),
                None | Some(Value::Null) => "none".into(),
                Some(Value::Object(table)) if table.is_empty() => "none".into(),
                Some(Value::Object(_)) => "the table's".into(),
                Some(value) => format!("`{value}`"),
            };
            writeln!(self.text, "| `{}` | {value} | {default} | {} |", key.name, described(key.schema)).unwrap();
        }
        for key in keys {
            if let Some(table) = self.table(key.schema) {
                let path = if path.is_empty() { key.name.to_owned() } else { format!("{path}.{}", key.name) };
                self.tables(&path, table, &described(key.schema));
            }
        }
    }

    /// What a key's value may be. Empty: nothing but a table with keys of its own.
    fn value(&self, schema: &'a Map<String, Value>) -> String {
        let words: Vec<String> = self.forms(schema).into_iter().filter_map(|form| self.word(form)).collect();
        let only_a_table = words.len() == 1 && self.table(schema).is_some();
        if only_a_table { String::new() } else { words.join(" or ") }
    }

    fn word(&self, form: &'a Map<String, Value>) -> Option<String> {
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
            ["string"] if form.get("pattern").is_some_and(|pattern| pattern.to_string().contains("ms|s")) => {
                "duration".into()
            }
            ["string"] => "text".into(),
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
    let mut line = text.split_whitespace().collect::<Vec<_>>().join(" ").replace('|', "\\|");
    while let Some((before, after)) = line.split_once(" ([`") {
        let (_, after) = after.split_once("))").expect("a link to code ends");
        line = format!("{before}{after}");
    }
    while let Some((before, after)) = line.split_once("[`") {
        let (name, after) = after.split_once("`]").expect("a link to code ends");
        let after = after.strip_prefix('(').and_then(|link| link.split_once(')')).map_or(after, |(_, after)| after);
        line = format!("{before}`{name}`{after}");
    }
    line
}

#[test]
fn the_reference_of_configuration_files_is_up_to_date() {
    const BEGIN: &str = "<!-- Made from the code; see sidecar/tests/reference.rs. -->\n";
    let docs = Path::new(env!("CARGO_MANIFEST_DIR")).join("../docs");
    let bless = env::var_os("BLESS").is_some();
    for (page, name, schema) in files() {
        let check = |name: &str, made: &str| {
            let path = docs.join(name);
            if bless {
                fs::create_dir_all(path.parent().unwrap()).unwrap();
                fs::write(&path, made).unwrap();
            }
            let found = fs::read_to_string(&path).unwrap_or_default();
            assert!(found == made, "{} isn't what the code makes; write it again with BLESS=1", path.display());
        };
        check(&format!("schema/{name}"), &format!("{}\n", serde_json::to_string_pretty(&schema).unwrap()));
        if !page.is_empty() {
            let mut made = Page { definitions: schema.get("$defs"), text: String::new() };
            made.tables("", schema.as_object().unwrap(), "");
            let text = fs::read_to_string(docs.join(page)).unwrap();
            let (head, _) = text.split_once(BEGIN).expect("the page has the mark at which its tables begin");
            check(page, &format!("{head}{BEGIN}{}", made.text));
        }
    }
}

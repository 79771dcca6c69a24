//! Job files with the keys of [TonY](https://github.com/tony-framework/TonY), such as `tony.worker.instances`.

use toml::{Table, Value};

/// TonY's roles, and Trainmaster's.
const ROLES: [(&str, &str); 2] = [("worker", "worker"), ("ps", "server")];
const ROLE_KEYS: &str = "instances, max-instances, memory, vcores, gpus, command, node-label";
const OTHERS: &str = "tony.worker.*, tony.ps.*, tony.application.name, tony.yarn.queue, tony.application.node-label";
/// TonY's default for a task.
const MEMORY: &str = "2g";

/// Translates the table `tony` of a job file, if it has one, to Trainmaster's keys. The rest of the file is unchanged.
///
/// # Errors
/// The error names the key, its value and the allowed values.
pub(super) fn translate(mut file: Table) -> Result<Table, String> {
    let Some(tony) = file.remove("tony") else { return Ok(file) };
    let Value::Table(tony) = tony else { return Err(wrong("tony", &tony, "a table")) };
    let mut labels = Vec::new();
    for (key, value) in tony {
        if let Some((_, ours)) = ROLES.iter().find(|(theirs, _)| *theirs == key) {
            let path = format!("tony.{key}");
            let Value::Table(role) = value else { return Err(wrong(&path, &value, "a table")) };
            if let Some(role) = role_table(&path, role, &mut labels)? {
                put(&mut file, ours, &path, Value::Table(role))?;
            }
            continue;
        }
        let Value::Table(section) = value else { return Err(wrong(&format!("tony.{key}"), &value, OTHERS)) };
        for (name, value) in section {
            let path = format!("tony.{key}.{name}");
            match (key.as_str(), name.as_str()) {
                ("application", "name") => put(&mut file, "name", &path, text(&path, value)?.into())?,
                ("yarn", "queue") => put(&mut file, "queue", &path, text(&path, value)?.into())?,
                ("application", "node-label") => labels.push((path.clone(), text(&path, value)?)),
                _ => return Err(format!("{path} is unknown; allowed are {OTHERS}")),
            }
        }
    }
    label(&mut file, labels)?;
    Ok(file)
}

/// Translates a role. Returns `None` if it has no instances.
fn role_table(path: &str, role: Table, labels: &mut Vec<(String, String)>) -> Result<Option<Table>, String> {
    let mut ours = Table::new();
    ours.insert("memory".into(), memory(&format!("{path}.memory"), MEMORY.into())?);
    ours.insert("cpu".into(), 1.into());
    let (mut instances, mut most) = (1, None);
    for (name, value) in role {
        let path = format!("{path}.{name}");
        match name.as_str() {
            "instances" => instances = count(&path, &value)?,
            "max-instances" => most = Some(count(&path, &value)?),
            "memory" => _ = ours.insert("memory".into(), memory(&path, value)?),
            "vcores" => _ = ours.insert("cpu".into(), count(&path, &value)?.into()),
            "gpus" => _ = ours.insert("gpu".into(), count(&path, &value)?.into()),
            "command" => _ = ours.insert("command".into(), text(&path, value)?.into()),
            "node-label" => labels.push((path.clone(), text(&path, value)?)),
            _ => return Err(format!("{path} is unknown; allowed are {ROLE_KEYS}")),
        }
    }
    let most = most.unwrap_or(instances);
    if instances == 0 && most > 0 {
        return Err(format!("{path}.instances = 0: allowed is 1 or more where max-instances = {most}"));
    }
    if most < instances {
        return Err(format!("{path}.max-instances = {most}: it must be {path}.instances = {instances} or more"));
    }
    ours.insert("requested".into(), instances.into());
    ours.insert("max".into(), most.into());
    Ok((instances > 0).then_some(ours))
}

/// Sets the job's partition, which is the same for all its roles.
fn label(file: &mut Table, labels: Vec<(String, String)>) -> Result<(), String> {
    let Some((first, partition)) = labels.first() else { return Ok(()) };
    if let Some((other, value)) = labels.iter().find(|(_, value)| value != partition) {
        return Err(format!("{first} = {partition:?} and {other} = {value:?}: a job is in one partition"));
    }
    let of = |key: &str, value: Value| Value::Table(Table::from_iter([(key.to_owned(), value)]));
    put(file, "constraints", first, of("labels", of("partition", partition.as_str().into())))
}

fn put(file: &mut Table, key: &str, path: &str, value: Value) -> Result<(), String> {
    match file.insert(key.into(), value) {
        None => Ok(()),
        Some(_) => Err(format!("{path} and {key} are the same; write one of them")),
    }
}

/// Converts memory in Hadoop's notation: `2g`, `2048m`, or a number of MiB.
fn memory(path: &str, value: Value) -> Result<Value, String> {
    let written = match &value {
        Value::Integer(number) => number.to_string(),
        Value::String(text) => text.trim().to_ascii_lowercase(),
        _ => String::new(),
    };
    let (number, unit) = written.split_at(written.trim_end_matches(|c: char| !c.is_ascii_digit()).len());
    let unit = match unit {
        "" | "m" => "MiB",
        "g" => "GiB",
        _ => return Err(wrong(path, &value, "2g, 2048m or MiB as a number")),
    };
    if number.parse::<u32>().is_err() {
        return Err(wrong(path, &value, "2g, 2048m or MiB as a number"));
    }
    Ok(format!("{number}{unit}").into())
}

/// Hadoop's properties are texts, even if they are numbers.
fn count(path: &str, value: &Value) -> Result<i64, String> {
    let number = match value {
        Value::Integer(number) => Some(*number),
        Value::String(text) => text.trim().parse().ok(),
        _ => None,
    };
    number.filter(|number| (0..=10_000).contains(number)).ok_or_else(|| wrong(path, value, "0 to 10000"))
}

fn text(path: &str, value: Value) -> Result<String, String> {
    match value {
        Value::String(text) => Ok(text),
        _ => Err(wrong(path, &value, "a text")),
    }
}

fn wrong(path: &str, value: &Value, allowed: &str) -> String {
    format!("{path} = {value}: allowed is {allowed}")
}

#[cfg(test)]
mod tests {
    use super::super::{config::Accounts, jobfile};

    const JOB: &str = r#"
        tony.application.name = "mnist"
        tony.yarn.queue = "dl"
        tony.worker.instances = "2"
        tony.worker.max-instances = 6
        tony.worker.memory = "3G"
        tony.worker.vcores = 2
        tony.worker.gpus = 1
        tony.worker.command = "python train.py"
        tony.ps.instances = 1
        tony.ps.command = "python ps.py"
        tony.application.node-label = "fast"
        batch = 64
    "#;

    #[test]
    fn a_job_in_tonys_words_is_the_same_job() {
        let ours = r#"
            name = "mnist"
            queue = "dl"
            batch = 64
            constraints = { labels = { partition = "fast" } }
            worker = { requested = 2, max = 6, memory = "3GiB", cpu = 2, gpu = 1, command = "python train.py" }
            server = { requested = 1, max = 1, memory = "2GiB", cpu = 1, command = "python ps.py" }
        "#;
        let read = |text| jobfile::read(text, "alice", "dl", Accounts::Yarn).unwrap();
        assert_eq!(read(JOB), read(ours));
        let alone = read("name = \"a\"\nmode = \"allreduce\"\n[tony]\nworker.instances = 3\nps.instances = 0");
        assert_eq!((alone.worker.requested, alone.worker.max, alone.server), (3, 3, None));
    }

    #[test]
    fn errors_name_tonys_key() {
        for (change, parts) in [
            (("instances = \"2\"", "instances = \"two\""), ["tony.worker.instances = \"two\"", "0 to 10000"]),
            (("max-instances = 6", "max-instances = 1"), ["tony.worker.max-instances = 1", "instances = 2"]),
            (("instances = \"2\"", "instances = 0"), ["tony.worker.instances = 0", "1 or more"]),
            (("memory = \"3G\"", "memory = \"3 apples\""), ["tony.worker.memory", "2048m"]),
            (("gpus = 1", "gpu = 1"), ["tony.worker.gpu is unknown", "gpus"]),
            (("tony.yarn.queue", "tony.yarn.que"), ["tony.yarn.que is unknown", "tony.yarn.queue"]),
            (("tony.yarn.queue = \"dl\"", "name = \"x\""), ["tony.application.name and name", "one of them"]),
            (("tony.ps.command = \"python ps.py\"", "tony.ps.node-label = \"slow\""), ["\"slow\"", "one partition"]),
            (
                ("tony.ps.instances = 1\n        tony.ps.command = \"python ps.py\"", "tony.ps = 1"),
                ["tony.ps = 1", "a table"],
            ),
        ] {
            let text = JOB.replace(change.0, change.1);
            assert_ne!(text, JOB, "{change:?}");
            let error = jobfile::read(&text, "", "", Accounts::Yarn).unwrap_err();
            assert!(parts.iter().all(|part| error.contains(part)), "{error}");
        }
    }
}

//! `trainmaster top`: the cluster, its tenants and its jobs at a glance, drawn again every second.

use std::{
    collections::{BTreeMap, HashMap},
    time::Duration,
};

use clap::Args;
use serde::Serialize;
use tokio::time::sleep;
use trainmaster_core::amount::{Unit, parse_span};
use trainmaster_proto::v1::{ListReply, ListRequest, ServerStatus, ServersRequest};
use trainmaster_terminal::{
    Failure, Output, Paper, Show,
    client::{Daemon, ServerArgs},
    screen::{Screen, bar},
    sheet::{Column, Entry, Sheet},
};

use super::jobs::JobList;

/// Columns of a bar.
const BAR: usize = 32;

/// The command's arguments.
#[derive(Args, Debug)]
pub(crate) struct TopArgs {
    /// Time between two looks, such as 5s
    #[arg(long, value_name = "DURATION", default_value = "1s", value_parser = pause)]
    every: Duration,
}

fn pause(text: &str) -> Result<Duration, String> {
    let span = parse_span(text).map_err(|error| error.to_string())?;
    match span.0 {
        200.. => Ok(Duration::from_millis(span.0.unsigned_abs())),
        _ => Err(format!("{text} must be at least 200ms")),
    }
}

/// Runs the command until Ctrl-C. Without a terminal, and with `--json`, it looks once.
///
/// # Errors
/// The daemon's.
pub(crate) async fn run(args: &TopArgs, server: &ServerArgs, output: Output) -> Result<(), Failure> {
    let daemon = Daemon::connect(server).await?;
    let Output::Text(Paper { width: Some(_), .. }) = output else {
        return output.show(&look(&daemon).await?);
    };
    let draw = async {
        let mut screen = Screen::default();
        loop {
            let top = look(&daemon).await?;
            screen.draw(|paper| top.text(paper))?;
            sleep(args.every).await;
        }
    };
    tokio::select! {
        ended = draw => ended,
        interrupted = tokio::signal::ctrl_c() => Ok(interrupted?),
    }
}

async fn look(daemon: &Daemon) -> Result<Top, Failure> {
    let servers = daemon.jobs().servers(ServersRequest {}).await.map_err(|status| daemon.failure(&status))?;
    let jobs = daemon.jobs().list(ListRequest::default()).await.map_err(|status| daemon.failure(&status))?;
    Ok(Top::of(&servers.into_inner().servers, jobs.into_inner()))
}

#[derive(Serialize)]
struct Top {
    resources: Vec<Resource>,
    tenants: Vec<Tenant>,
    #[serde(flatten)]
    list: JobList,
}

/// A resource of all servers that take jobs, in sub-units.
#[derive(Serialize)]
struct Resource {
    name: String,
    capacity: i64,
    /// By jobs and other workloads; more than the capacity if servers are oversubscribed.
    used: i64,
    /// By other workloads alone.
    foreign: i64,
}

#[derive(Serialize)]
struct Tenant {
    name: String,
    /// Jobs with workers.
    running: u32,
    /// Jobs without workers in the state `waiting`.
    waiting: u32,
    workers: u32,
}

impl Top {
    fn of(servers: &[ServerStatus], reply: ListReply) -> Self {
        let mut resources: BTreeMap<&str, Resource> = BTreeMap::new();
        for server in servers.iter().filter(|server| !server.draining) {
            for (name, have) in &server.capacity {
                let of = |all: &HashMap<String, i64>| all.get(name).copied().unwrap_or(0);
                let sum = resources.entry(name).or_insert_with(|| Resource {
                    name: name.clone(),
                    capacity: 0,
                    used: 0,
                    foreign: 0,
                });
                let foreign = of(&server.foreign);
                sum.capacity = sum.capacity.saturating_add(*have);
                sum.used = sum.used.saturating_add(of(&server.used)).saturating_add(foreign);
                sum.foreign = sum.foreign.saturating_add(foreign);
            }
        }
        // GPUs come first.
        let mut resources: Vec<Resource> = resources.into_values().collect();
        resources.sort_by_key(|resource| !resource.name.starts_with("gpu"));
        let mut list = JobList::from(reply);
        let mut tenants: BTreeMap<&str, Tenant> = BTreeMap::new();
        for job in &list.reply.jobs {
            let tenant = tenants.entry(&job.tenant).or_insert_with(|| Tenant {
                name: job.tenant.clone(),
                running: 0,
                waiting: 0,
                workers: 0,
            });
            tenant.running += u32::from(job.workers > 0);
            let waits = ["waiting", "starting", "restarting"].contains(&job.state.as_str());
            tenant.waiting += u32::from(job.workers == 0 && waits);
            tenant.workers = tenant.workers.saturating_add(job.workers);
        }
        let mut tenants: Vec<Tenant> = tenants.into_values().collect();
        tenants.sort_by_key(|tenant| u32::MAX - tenant.workers);
        // The largest first, and those without workers in the order of their arrival.
        list.reply.jobs.sort_by_key(|job| u32::MAX - job.workers);
        Self { resources, tenants, list }
    }
}

impl Show for Top {
    fn text(&self, paper: &Paper) -> String {
        let mut cluster = Sheet::new([
            Column::key("CLUSTER"),
            Column::spare("", 2),
            Column::key("USED"),
            Column::key("OF"),
            Column::spare("BY OTHERS", 1),
        ]);
        for resource in &self.resources {
            let unit = Unit::of(&resource.name);
            let format = |amount: i64| if amount == 0 { "0".into() } else { unit.format(amount) };
            cluster.row([
                Entry::from(&resource.name),
                bar(resource.used as f64 / resource.capacity as f64, BAR).into(),
                format(resource.used).into(),
                format(resource.capacity).into(),
                format(resource.foreign).into(),
            ]);
        }
        let mut tenants =
            Sheet::new([Column::key("TENANT"), Column::key("WORKERS"), Column::key("RUNNING"), Column::key("WAITING")]);
        for tenant in &self.tenants {
            tenants.row([
                Entry::from(&tenant.name),
                tenant.workers.into(),
                tenant.running.into(),
                tenant.waiting.into(),
            ]);
        }
        let cluster = if self.resources.is_empty() { "no servers".into() } else { cluster.on(paper) };
        let tenants = if self.tenants.len() < 2 { String::new() } else { format!("{}\n\n", tenants.on(paper)) };
        format!("{cluster}\n\n{tenants}{}", self.list.text(paper))
    }
}

#[cfg(test)]
mod tests {
    use trainmaster_proto::v1::JobStatus;

    use super::*;

    fn server(name: &str, used: i64, draining: bool) -> ServerStatus {
        let of = |gpus: i64| [("gpu:a100".to_owned(), gpus), ("cpu".to_owned(), 4 * gpus)].into();
        ServerStatus {
            name: name.into(),
            capacity: of(4000),
            used: of(used),
            foreign: of(1000),
            // Oversubscribed: what is free isn't what remains of the capacity.
            free: of(7000),
            draining,
            ..ServerStatus::default()
        }
    }

    fn job(job: u64, tenant: &str, workers: u32) -> JobStatus {
        let state = if workers > 0 { "running" } else { "waiting" }.into();
        JobStatus { job, name: format!("job{job}"), tenant: tenant.into(), workers, state, ..JobStatus::default() }
    }

    #[test]
    fn servers_and_tenants_are_summed_up_and_large_jobs_come_first() {
        let servers = [server("a", 0, false), server("b", 3000, false), server("c", 4000, true)];
        let rejected = JobStatus { state: "rejected".into(), ..job(4, "x", 0) };
        let starting = JobStatus { state: "starting".into(), ..job(3, "y", 4) };
        let jobs = vec![job(1, "x", 0), job(2, "x", 1), starting, rejected];
        let top = Top::of(&servers, ListReply { jobs, ..ListReply::default() });
        let gpus = &top.resources[0];
        assert_eq!((gpus.name.as_str(), gpus.capacity, gpus.used, gpus.foreign), ("gpu:a100", 8000, 5000, 2000));
        let tenants: Vec<_> =
            top.tenants.iter().map(|one| (one.name.as_str(), one.workers, one.running, one.waiting)).collect();
        assert_eq!(tenants, [("y", 4, 1, 0), ("x", 1, 1, 1)]);
        assert_eq!(top.list.reply.jobs.iter().map(|job| job.job).collect::<Vec<_>>(), [3, 2, 1, 4]);
        let text = top.text(&Paper::default());
        let line = text.lines().find(|line| line.starts_with("gpu:a100")).unwrap();
        let mut words = line.split_whitespace().rev();
        assert_eq!([words.next(), words.next(), words.next()], [Some("2"), Some("8"), Some("5")], "{text}");
        let huge = ServerStatus { capacity: [("gpu".into(), i64::MAX)].into(), ..server("d", 0, false) };
        assert_eq!(Top::of(&[huge.clone(), huge], ListReply::default()).resources[0].capacity, i64::MAX);
        let empty = Top::of(&[], ListReply::default()).text(&Paper::default());
        assert!(empty.starts_with("no servers\n\nno jobs"), "{empty}");
    }

    #[test]
    fn looks_have_a_pause() {
        assert_eq!(pause("5s"), Ok(Duration::from_secs(5)));
        assert_eq!(pause("1ms"), Err("1ms must be at least 200ms".into()));
        assert!(pause("soon").is_err());
    }
}

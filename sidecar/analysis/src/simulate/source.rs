//! Sources of workloads: a generator, or a file of recorded jobs.

use std::path::Path;

use trainmaster_core::{JobSpec, Span};
use trainmaster_sim::{
    Request, Workload, WorkloadError,
    workload::{self, Entry, gavel, pollux, rubick, trace},
};
use trainmaster_terminal::Failure;

use super::{
    gavel::measured as gavel_speeds,
    rows::{Found, Rows, Wrong},
    rubick::read,
};

/// A workload by its name or its file.
pub(super) struct Source {
    /// Name given by the user.
    pub(super) name: String,
    pub(super) summary: String,
    /// Source of its numbers.
    pub(super) origin: String,
    /// Invalid rows of the file.
    pub(super) left_out: Vec<String>,
    kind: Kind,
}

enum Kind {
    Generated(&'static Entry),
    /// Jobs, and the GPUs of each server.
    Trace(Vec<trace::Recorded>, fn(u32) -> u32),
    /// Whether the scheduler chooses their batches.
    Pollux(Vec<pollux::Row>, bool),
    Gavel(Vec<gavel::Measured>),
    Rubick(Vec<rubick::Row>, rubick::Models),
}

/// The kinds of files.
const LAYOUTS: &str =
    "philly:FILE, elasticflow:FILE, pollux:FILE, pollux-adaptive:FILE, rubick:FILE, gavel:FILE or csv:FILE";

impl Source {
    /// A generator's name, or one of [`LAYOUTS`]. `columns` are for `csv:FILE`, the folder `measured` is for
    /// `rubick:FILE`.
    ///
    /// # Errors
    /// The workload is unknown, the file can't be read, or it contains no job.
    pub(super) fn of(text: &str, columns: Option<&str>, measured: Option<&Path>) -> Result<Self, Failure> {
        if columns.is_some() && !text.starts_with("csv:") {
            return Err(Failure::Usage("--columns says what a csv:FILE holds; other workloads have none".into()));
        }
        if measured.is_some() && !text.starts_with("rubick:") {
            return Err(Failure::Usage("--measured is for rubick:FILE; other workloads have no such folder".into()));
        }
        let Some((layout, file)) = text.split_once(':') else {
            let entry =
                workload::find(text).map_err(|error| Failure::Usage(format!("{error}; a file is {LAYOUTS}")))?;
            return Ok(Self {
                name: entry.name.into(),
                summary: entry.summary.into(),
                origin: entry.source.into(),
                left_out: Vec::new(),
                kind: Kind::Generated(entry),
            });
        };
        let path = Path::new(file);
        let (kind, found, left_out) = match layout {
            "philly" => {
                let columns = Columns { time: "timestamp", gpus: "num_gpus", duration: "duration", name: None };
                jobs(path, &columns, trace::philly)?
            }
            "elasticflow" => {
                let name = Some("job_id");
                let columns = Columns { time: "submission_time", gpus: "num_gpu", duration: "duration", name };
                jobs(path, &columns, |_| 8)?
            }
            "csv" => jobs(path, &Columns::read(columns)?, trace::philly)?,
            "pollux" | "pollux-adaptive" => pollux_rows(path, layout == "pollux-adaptive")?,
            "gavel" => {
                let (measured, left_out) = gavel_speeds(path)?;
                let count = measured.len();
                (Kind::Gavel(measured), count, left_out)
            }
            "rubick" => {
                let missing = "rubick:FILE needs --measured DIR, the folder with the iterations of each model";
                let folder = measured.ok_or_else(|| Failure::Usage(missing.into()))?;
                let (rows, models, left_out) = read(path, folder)?;
                let count = rows.len();
                (Kind::Rubick(rows, models), count, left_out)
            }
            _ => return Err(Failure::Usage(format!("{layout:?} is not a layout of files; there are {LAYOUTS}"))),
        };
        Ok(Self {
            name: text.into(),
            summary: match &kind {
                Kind::Gavel(_) => format!("jobs of {found} measured models on three types of GPU"),
                _ => format!("{found} jobs of a file"),
            },
            origin: path.file_name().map_or_else(|| file.into(), |name| name.to_string_lossy().into_owned()),
            left_out,
            kind,
        })
    }

    /// The workload of a seed. That of recorded jobs is the same for all seeds.
    ///
    /// # Errors
    /// The request is out of range, or lacks the number of servers for a trace without it.
    pub(super) fn build(&self, request: &Request) -> Result<Workload, WorkloadError> {
        let first = |count: usize| request.jobs.map_or(count, |jobs| count.min(jobs as usize));
        match &self.kind {
            Kind::Generated(entry) => entry.build(request),
            Kind::Trace(jobs, gpus) => {
                let problem = || "is missing; a trace doesn't tell how many servers there were".to_owned();
                let servers = request.servers.ok_or_else(|| WorkloadError { key: "servers", problem: problem() })?;
                request.check()?;
                Ok(trace::recorded(jobs[..first(jobs.len())].iter().cloned(), servers, *gpus))
            }
            Kind::Pollux(rows, is_adaptive) => {
                request.check()?;
                let workload = pollux::from_rows(&rows[..first(rows.len())], request.servers)?;
                Ok(if *is_adaptive { pollux::adaptive(workload) } else { workload })
            }
            Kind::Gavel(measured) => {
                request.check()?;
                gavel::workload(measured, request)
            }
            Kind::Rubick(rows, models) => {
                request.check()?;
                rubick::workload(&rows[..first(rows.len())], models, request.servers)
            }
        }
    }
}

/// The headings of a trace.
struct Columns<'a> {
    time: &'a str,
    gpus: &'a str,
    duration: &'a str,
    name: Option<&'a str>,
}

impl<'a> Columns<'a> {
    /// Parses `time=…,gpus=…,duration=…` and possibly `name=…`. Columns that aren't named have their own names as
    /// headings.
    fn read(text: Option<&'a str>) -> Result<Self, Failure> {
        let mut columns = Self { time: "time", gpus: "gpus", duration: "duration", name: None };
        for part in text.into_iter().flat_map(|text| text.split(',')) {
            let wrong = || {
                Failure::Usage(format!(
                    "--columns {part:?} must be time=…, gpus=…, duration=… or name=…, with a heading of the file, such \
                     as time=timestamp"
                ))
            };
            let (key, heading) = part.split_once('=').ok_or_else(wrong)?;
            match (key.trim(), heading.trim()) {
                (_, "") => return Err(wrong()),
                ("time", heading) => columns.time = heading,
                ("gpus", heading) => columns.gpus = heading,
                ("duration", heading) => columns.duration = heading,
                ("name", heading) => columns.name = Some(heading),
                _ => return Err(wrong()),
            }
        }
        Ok(columns)
    }
}

type Read = (Kind, usize, Vec<String>);

/// The jobs of a trace, from the first arrival on.
fn jobs(path: &Path, columns: &Columns<'_>, servers: fn(u32) -> u32) -> Result<Read, Failure> {
    let mut wanted = vec![columns.time, columns.gpus, columns.duration];
    wanted.extend(columns.name);
    let mut names = Names::default();
    let mut found = Rows::read(path, &wanted)?.map(|row| {
        let time = row.moment(0)?;
        let gpus = row.whole(1, 1, 10_000)?;
        let duration =
            row.number(2, "a number of seconds from 0.001 to 10^9", |seconds| (0.001..=1e9).contains(&seconds))?;
        let name = match columns.name {
            Some(_) => names.take(3, row.text(3))?,
            None => format!("line-{}", row.line),
        };
        Ok((time, trace::Recorded { name, arrival: Span::ZERO, gpus, duration: Span::from_seconds(duration) }))
    })?;
    found.rows.sort_by(|(a, _), (b, _)| a.total_cmp(b));
    let first = found.rows.first().map_or(0.0, |(time, _)| *time);
    let jobs: Vec<trace::Recorded> = found
        .rows
        .into_iter()
        .map(|(time, job)| trace::Recorded { arrival: Span::from_seconds(time - first), ..job })
        .collect();
    let count = jobs.len();
    Ok((Kind::Trace(jobs, servers), count, found.wrong))
}

fn pollux_rows(path: &Path, is_adaptive: bool) -> Result<Read, Failure> {
    let wanted = ["name", "time", "application", "num_replicas", "batch_size"];
    let mut names = Names::default();
    let mut found: Found<pollux::Row> = Rows::read(path, &wanted)?.map(|row| {
        let read = pollux::Row {
            name: row.text(0).to_owned(),
            time: Span::from_seconds(row.number(1, "seconds from 0 to 10^9", |time| (0.0..=1e9).contains(&time))?),
            application: row.text(2).to_owned(),
            replicas: row.whole(3, 1, 10_000)?,
            batch: row.whole(4, 1, 1_000_000)?.into(),
        };
        pollux::check(&read).map_err(|error| {
            let column = wanted.iter().position(|name| *name == error.key).unwrap_or(2);
            Wrong { column, problem: error.problem }
        })?;
        names.take(0, &read.name)?;
        Ok(read)
    })?;
    found.rows.sort_by_key(|row| row.time);
    let count = found.rows.len();
    Ok((Kind::Pollux(found.rows, is_adaptive), count, found.wrong))
}

/// Unique names of jobs.
#[derive(Default)]
pub(super) struct Names(std::collections::BTreeSet<String>);

impl Names {
    pub(super) fn take(&mut self, column: usize, name: &str) -> Result<String, Wrong> {
        if let Err(error) = JobSpec::minimal(name).validate() {
            return Err(Wrong { column, problem: error.problem });
        }
        if !self.0.insert(name.to_owned()) {
            return Err(Wrong {
                column,
                problem: format!("{name:?} is another job's name; each may stand there once"),
            });
        }
        Ok(name.to_owned())
    }
}

#[cfg(test)]
mod tests {
    use std::{fs, path::PathBuf};

    use super::*;

    fn file(text: &str) -> (tempfile::TempDir, PathBuf) {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("jobs.csv");
        fs::write(&path, text).unwrap();
        (folder, path)
    }

    fn request(servers: Option<u32>, jobs: Option<u32>) -> Request {
        Request { seed: 1, jobs, servers }
    }

    fn of(layout: &str, text: &str, columns: Option<&str>) -> Result<Source, Failure> {
        let (_folder, path) = file(text);
        Source::of(&format!("{layout}:{}", path.display()), columns, None)
    }

    #[test]
    fn a_trace_starts_with_its_first_job_in_any_order_of_rows() {
        let source = of(
            "philly",
            "timestamp,duration,num_gpus,gpu_time,cluster\n2017-10-01 00:01:00,60.0,8,480.0,a\n\
             2017-09-30 23:59:30,10,1,10,b\n",
            None,
        )
        .unwrap();
        let workload = source.build(&request(Some(4), None)).unwrap();
        let jobs: Vec<_> = workload
            .jobs
            .iter()
            .map(|job| (job.spec.name.as_str(), job.arrival.0, job.spec.worker.requested))
            .collect();
        assert_eq!(jobs, [("line-3", 0, 1), ("line-2", 90_000, 8)]);
        assert_eq!((workload.servers.len(), source.left_out.len()), (4, 0));
        assert_eq!(source.build(&request(Some(4), Some(1))).unwrap().jobs.len(), 1);
        let missing = source.build(&request(None, None)).unwrap_err().to_string();
        assert!(missing.contains("servers") && missing.contains("missing"), "{missing}");
    }

    #[test]
    fn any_column_order_works_and_bad_rows_are_reported() {
        let text = "who,when,n,secs\na,0,1,5\nb,soon,1,5\nc,1,0,5\na,2,1,5\nd,3,2,-1\ne,4,2\nf,5,2,7\n";
        let source = of("csv", text, Some("time=when, gpus=n,duration=secs,name=who")).unwrap();
        assert_eq!(source.build(&request(Some(1), None)).unwrap().jobs.len(), 2);
        let expected = [
            "line 3, column \"when\": \"soon\"",
            "line 4, column \"n\": \"0\"",
            "line 5, column \"who\"",
            "line 6, column \"secs\": \"-1\"",
            "line 7: 3 values",
        ];
        assert_eq!(source.left_out.len(), expected.len(), "{:?}", source.left_out);
        for (problem, expected) in source.left_out.iter().zip(expected) {
            assert!(problem.contains(expected), "{expected:?} isn't in {problem:?}");
        }
    }

    #[test]
    fn an_unclosed_quote_affects_only_its_row() {
        let long = "x".repeat(500);
        let text = format!(
            "\u{feff}time,gpus,duration,note\r\n1,1,5,\"a, \"\"b\"\"\"\r\n\r\n2,1,5,\"open\r\n3,1,5,\r\n{long},1,5,\r\n"
        );
        let source = of("csv", &text, None).unwrap();
        assert_eq!(source.build(&request(Some(1), None)).unwrap().jobs.len(), 2, "{:?}", source.left_out);
        assert!(source.left_out[0].contains("line 4: a quote isn't closed"), "{:?}", source.left_out);
        assert!(source.left_out[1].contains("line 6, column \"time\": \"xxx") && source.left_out[1].len() < 300);
        assert_eq!(source.left_out.len(), 2);
    }

    #[test]
    fn pollux_rows_are_jobs_of_known_models() {
        let text = "name,time,application,num_replicas,batch_size\nncf-1,10,ncf,1,32768\nx,1,gpt,1,8\ny,2,bert,9,8\n";
        let source = of("pollux", text, None).unwrap();
        let workload = source.build(&request(None, None)).unwrap();
        assert_eq!((workload.jobs.len(), workload.servers.len()), (1, 16));
        assert!(source.left_out[0].contains("line 3, column \"application\": \"gpt\" must be one of"));
        assert!(source.left_out[1].contains("line 4, column \"num_replicas\""), "{:?}", source.left_out);
    }

    #[test]
    fn elasticflows_jobs_run_on_servers_of_eight_gpus() {
        let text = "job_id,submission_time,duration,num_gpu\nfb10-98,2000,60,64\n965d-70,1000,5,1\n965d-70,9,0,1\n";
        let source = of("elasticflow", text, None).unwrap();
        let workload = source.build(&request(Some(3), None)).unwrap();
        let jobs: Vec<_> = workload.jobs.iter().map(|job| (job.spec.name.as_str(), job.arrival.0)).collect();
        assert_eq!(jobs, [("965d-70", 0), ("fb10-98", 1_000_000)]);
        assert!(workload.servers.iter().all(|server| server.devices.len() == 8));
        assert!(source.left_out[0].contains("line 4, column \"duration\": \"0\""), "{:?}", source.left_out);
    }

    #[test]
    fn unreadable_sources_name_the_problem() {
        let problem = |result: Result<Source, Failure>| match result {
            Ok(_) => panic!("it was read"),
            Err(failure) => failure.to_string(),
        };
        let text = problem(of("csv", "when,gpus,duration\n1,1,1\n", None));
        assert!(text.contains("\"time\" is missing") && text.contains("\"when\""), "{text}");
        let text = problem(of("csv", "time,gpus,duration\n1,none,1\n", None));
        assert!(text.contains("no row") && text.contains("line 2"), "{text}");
        assert!(problem(of("csv", "", None)).contains("empty"));
        let text = problem(of("csv", "time,gpus,gpus,duration\n1,1,2,1\n", None));
        assert!(text.contains("line 1") && text.contains("more than one column is headed \"gpus\""), "{text}");
        let text = problem(Source::of(&format!("csv:{}", std::env::temp_dir().display()), None, None));
        assert!(text.contains("can't be read") && !text.contains("line 1"), "{text}");
        assert!(problem(of("csv", "a\n", Some("speed=a"))).contains("time=…"));
        assert!(problem(of("philly", "a\n", Some("time=a"))).contains("--columns"));
        assert!(problem(Source::of("rubick:x", None, None)).contains("--measured"));
        assert!(problem(Source::of("philly:x", None, Some(Path::new("y")))).contains("--measured"));
        assert!(problem(Source::of("slurm:x", None, None)).contains("philly:FILE"));
        assert!(problem(Source::of("nonsense", None, None)).contains("csv:FILE"));
        assert!(problem(Source::of("csv:/no/such/file", None, None)).contains("/no/such/file"));
    }
}

//! `trainmaster jobs`: the list of jobs, as a table or as JSON.

use std::cmp::Reverse;

use clap::{Args, ValueEnum, builder::PossibleValuesParser};
use serde::Serialize;
use trainmaster_core::{Shape, Span, text::shown};
use trainmaster_proto::{
    CRASHING, JOB_STATES,
    v1::{JobStatus, ListReply, ListRequest},
};
use trainmaster_terminal::{
    Failure, Mood, Output, Paper, Show,
    client::{Daemon, ServerArgs},
    output::{ago, away},
    screen::bar,
    sheet::{Column, Entry, Sheet},
};

/// The command's arguments.
#[derive(Args, Debug)]
pub(crate) struct JobsArgs {
    /// Also the jobs that have ended and are still kept
    #[arg(long)]
    all: bool,
    /// Only jobs in this state, such as running; may be given several times. Implies --all for states of ended jobs
    #[arg(long, value_name = "STATE", value_parser = states())]
    state: Vec<String>,
    #[command(flatten)]
    of: Owners,
    /// Sort by this column; the next ends, the largest shapes, the highest losses and priorities, and the latest
    /// submissions come first
    #[arg(long, value_name = "COLUMN", default_value = "job")]
    sort: Field,
    /// Also show tenants, queues, priorities and times of submission
    #[arg(long)]
    wide: bool,
    /// As --wide
    #[arg(long, short, value_name = "FORM", conflicts_with = "columns")]
    output: Option<Form>,
    /// Show these columns, in this order: job, name, state, shape, epoch, …
    #[arg(long, value_name = "COLUMNS", value_delimiter = ',', conflicts_with = "wide")]
    columns: Vec<Field>,
}

/// A form of the table.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Form {
    Wide,
}

/// A column of the table.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Field {
    Job,
    Name,
    State,
    Shape,
    Epoch,
    Step,
    Loss,
    Ends,
    Speed,
    Tenant,
    Queue,
    Submitted,
    Progress,
    Priority,
    Reason,
}

impl Field {
    const USUAL: [Self; 9] =
        [Self::Job, Self::Name, Self::State, Self::Shape, Self::Epoch, Self::Step, Self::Loss, Self::Ends, Self::Speed];
    const WIDE: [Self; 4] = [Self::Tenant, Self::Queue, Self::Priority, Self::Submitted];

    /// The column. `asked`: the user named it, so it is never dropped.
    fn column(self, asked: bool) -> Column {
        let spare = |heading, rank| if asked { Column::key(heading) } else { Column::spare(heading, rank) };
        match self {
            Self::Job => Column::key("JOB"),
            Self::Name => Column::key("NAME"),
            Self::State => Column::key("STATE"),
            Self::Shape => Column::key("SHAPE"),
            Self::Epoch => spare("EPOCH", 2),
            Self::Step => spare("STEP", 5),
            Self::Loss => spare("LOSS", 3),
            Self::Ends => spare("ENDS", 1),
            Self::Speed => spare("STEPS/S", 4),
            Self::Tenant => Column::key("TENANT"),
            Self::Queue => Column::key("QUEUE"),
            Self::Submitted => Column::key("SUBMITTED"),
            Self::Progress => Column::key("PROGRESS"),
            Self::Priority => Column::key("PRIORITY"),
            Self::Reason => Column::prose("REASON"),
        }
    }

    fn entry(self, job: &JobStatus) -> Entry {
        match self {
            Self::Job => job.job.into(),
            Self::Name => Entry::from(&job.name),
            Self::State => Entry::new(&job.state, job.mood()),
            Self::Shape => job.shape().into(),
            Self::Epoch => job.progress().into(),
            Self::Step => job.step.into(),
            Self::Loss => number(job.loss, 4).into(),
            Self::Ends => job.end().into(),
            Self::Speed => number(job.speed, 2).into(),
            Self::Tenant => Entry::from(&job.tenant),
            Self::Queue => Entry::from(&job.queue),
            Self::Submitted => ago(job.submitted_ms).into(),
            Self::Progress => job.bar(BAR).into(),
            Self::Priority => job.priority.to_string().into(),
            Self::Reason => job.why().into(),
        }
    }
}

/// Columns of a bar.
const BAR: usize = 22;

/// The states of ended jobs.
const ENDED: [&str; 4] = ["completed", "failed", "cancelled", "stopped"];

fn states() -> PossibleValuesParser {
    PossibleValuesParser::new(JOB_STATES.into_iter().chain(ENDED))
}

/// Whose jobs.
#[derive(Args, Debug)]
pub(crate) struct Owners {
    /// Only jobs of this tenant
    #[arg(long)]
    tenant: Option<String>,
    /// Only jobs of this queue
    #[arg(long)]
    queue: Option<String>,
}

impl Owners {
    /// Whether it limits the jobs at all.
    pub(crate) fn are_given(&self) -> bool {
        self.tenant.is_some() || self.queue.is_some()
    }

    pub(crate) fn own(&self, job: &JobStatus) -> bool {
        self.tenant.as_ref().is_none_or(|tenant| *tenant == job.tenant)
            && self.queue.as_ref().is_none_or(|queue| *queue == job.queue)
    }
}

impl std::fmt::Display for Owners {
    /// ` of tenant a, queue b`, or nothing.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let owners = [("tenant", &self.tenant), ("queue", &self.queue)];
        let given: Vec<_> =
            owners.iter().filter_map(|(kind, name)| Some(format!("{kind} {}", shown(name.as_ref()?, 128)))).collect();
        if given.is_empty() { Ok(()) } else { write!(f, " of {}", given.join(", ")) }
    }
}

impl JobsArgs {
    fn with_ended(&self) -> bool {
        self.all || self.state.iter().any(|state| ENDED.contains(&state.as_str()))
    }

    /// The jobs to show, in their order.
    fn choose(&self, mut reply: ListReply) -> ListReply {
        let is_in = |job: &JobStatus| self.state.is_empty() || self.state.contains(&job.state);
        reply.jobs.retain(|job| is_in(job) && self.of.own(job));
        match self.sort {
            Field::Job => reply.jobs.sort_by_key(|job| job.job),
            Field::Name => reply.jobs.sort_by(|a, b| a.name.cmp(&b.name)),
            Field::State => reply.jobs.sort_by(|a, b| a.state.cmp(&b.state)),
            Field::Tenant => reply.jobs.sort_by(|a, b| a.tenant.cmp(&b.tenant)),
            Field::Queue => reply.jobs.sort_by(|a, b| a.queue.cmp(&b.queue)),
            Field::Shape => reply.jobs.sort_by_key(|job| Reverse((job.workers, job.servers))),
            Field::Epoch | Field::Progress => reply.jobs.sort_by_key(|job| job.epoch),
            Field::Reason => reply.jobs.sort_by(|a, b| a.reason.cmp(&b.reason)),
            Field::Step => reply.jobs.sort_by_key(|job| job.step),
            Field::Loss => reply.jobs.sort_by(|a, b| known(b.loss).total_cmp(&known(a.loss))),
            Field::Ends => reply.jobs.sort_by_key(|job| job.remaining_ms.unwrap_or(i64::MAX)),
            Field::Speed => reply.jobs.sort_by(|a, b| known(a.speed).total_cmp(&known(b.speed))),
            Field::Priority => reply.jobs.sort_by_key(|job| Reverse(job.priority)),
            Field::Submitted => reply.jobs.sort_by_key(|job| Reverse(job.submitted_ms)),
        }
        reply
    }
}

/// What isn't known comes last where the highest is first, and first otherwise.
fn known(value: Option<f64>) -> f64 {
    value.unwrap_or(f64::NEG_INFINITY)
}

/// Runs the command.
///
/// # Errors
/// The daemon's.
pub(crate) async fn run(args: &JobsArgs, server: &ServerArgs, output: Output) -> Result<(), Failure> {
    let daemon = Daemon::connect(server).await?;
    let reply = daemon
        .jobs()
        .list(ListRequest { all: args.with_ended(), specs: false, ..ListRequest::default() })
        .await
        .map_err(|status| daemon.failure(&status))?;
    let list = args.choose(reply.into_inner());
    let wide = args.wide || args.output.is_some();
    if list.jobs.is_empty() && args.of.are_given() {
        eprintln!("note: no job{}", args.of);
    }
    let list = JobList { wide, columns: args.columns.clone(), ..JobList::from(list) };
    output.show(&list)
}

/// Jobs at one time.
#[derive(Serialize)]
pub(crate) struct JobList {
    #[serde(flatten)]
    pub(crate) reply: ListReply,
    #[serde(skip)]
    wide: bool,
    /// The columns that a user wants. Empty: the usual ones.
    #[serde(skip)]
    columns: Vec<Field>,
    /// Whether each job has a bar of its progress.
    #[serde(skip)]
    pub(crate) bars: bool,
}

impl From<ListReply> for JobList {
    fn from(reply: ListReply) -> Self {
        Self { reply, wide: false, columns: Vec::new(), bars: false }
    }
}

/// The texts of a job.
pub(crate) trait JobText {
    /// Its shape, or a dash.
    fn shape(&self) -> String;
    /// Its completed and predicted epochs.
    fn progress(&self) -> String;
    /// A bar of `width` columns of its epochs so far, in those that it will probably have.
    fn bar(&self, width: usize) -> String;
    /// When it ends.
    fn end(&self) -> String;
    fn mood(&self) -> Option<Mood>;
    /// Its state's reason. That of a crashing job has its age.
    fn why(&self) -> String;
    /// The job in one line, for logs. A job that waits for a decision has the time of the next one.
    fn line(&self, next_decision_ms: Option<i64>) -> String;
}

impl JobText for JobStatus {
    fn shape(&self) -> String {
        let shape = Shape { workers: self.workers, servers: self.servers };
        if shape.is_empty() { "–".into() } else { shape.to_string() }
    }

    fn progress(&self) -> String {
        let certain = self.predicted_low.is_some() && self.predicted_low == self.predicted_high;
        match self.predicted_epochs {
            Some(epochs) if certain => format!("{}/{epochs:.0}", self.epoch),
            Some(epochs) => format!("{}/~{epochs:.0}", self.epoch),
            None => format!("{}/≤{}", self.epoch, self.max_epochs),
        }
    }

    fn bar(&self, width: usize) -> String {
        let end = self.predicted_epochs.unwrap_or_else(|| f64::from(self.max_epochs)).max(f64::from(self.epoch));
        let part = if self.state == "completed" { 1.0 } else { f64::from(self.epoch) / end.max(1.0) };
        // On a narrow terminal, the end is cut.
        format!("{:3.0} % {}", part * 100.0, bar(part, width))
    }

    fn end(&self) -> String {
        match self.remaining_ms {
            Some(left) if self.ended_ms.is_none() => format!("in {}", Span(left)),
            _ => "–".into(),
        }
    }

    fn mood(&self) -> Option<Mood> {
        match self.state.as_str() {
            "running" => Some(Mood::Good),
            "waiting" | "starting" | "restarting" | "released" => Some(Mood::Doubtful),
            CRASHING | "rejected" | "failed" => Some(Mood::Bad),
            _ if self.ended_ms.is_some() || self.held => Some(Mood::Faint),
            _ => None,
        }
    }

    fn why(&self) -> String {
        match self.failed_ms.filter(|_| self.state == CRASHING && !self.reason.is_empty()).map(ago).as_deref() {
            None | Some("now") => self.reason.clone(),
            Some(ago) => format!("{ago}: {}", self.reason),
        }
    }

    fn line(&self, next_decision_ms: Option<i64>) -> String {
        let mut line = format!("job {} ({}): {} {}", self.job, self.name, self.state, self.shape());
        line += &format!(", epoch {}, step {}", self.progress(), self.step);
        if let Some(loss) = self.loss {
            line += &format!(", loss {loss:.4}");
        }
        if let Some(speed) = self.speed {
            line += &format!(", {speed:.2} steps/s");
        }
        if let Some(left) = self.remaining_ms.filter(|_| self.ended_ms.is_none()) {
            line += &format!(", ends in {}", Span(left));
        }
        if !self.reason.is_empty() {
            line += &format!("; {}", self.reason);
        }
        if let Some(at) = next_decision_ms.filter(|_| self.state == "waiting") {
            line += &format!("; next decision {}", away(at));
        }
        line
    }
}

fn number(value: Option<f64>, digits: usize) -> String {
    value.map_or_else(|| "–".into(), |value| format!("{value:.digits$}"))
}

impl JobList {
    fn head(&self) -> String {
        let jobs = match self.reply.jobs.len() {
            0 => "no jobs".into(),
            1 => "1 job".into(),
            count => format!("{count} jobs"),
        };
        let ListReply { engine, mode, decision, next_decision_ms, fallback, .. } = &self.reply;
        let next = next_decision_ms.map_or_else(String::new, |at| format!(", the next {}", away(at)));
        let instead = if fallback.is_empty() { String::new() } else { format!(" (which failed: {fallback} decides)") };
        format!("{jobs}; engine {engine}{instead}, {mode}, decision {decision}{next}")
    }
}

impl Show for JobList {
    fn text(&self, paper: &Paper) -> String {
        if self.reply.jobs.is_empty() {
            return self.head();
        }
        let asked = !self.columns.is_empty();
        let mut fields = self.columns.clone();
        if !asked {
            fields.extend(Field::USUAL);
            fields.extend(self.wide.then_some(Field::WIDE).into_iter().flatten());
            fields.extend(self.bars.then_some(Field::Progress));
            fields.push(Field::Reason);
        }
        let mut sheet = Sheet::new(fields.iter().map(|field| field.column(asked)));
        for job in &self.reply.jobs {
            sheet.row(fields.iter().map(|field| field.entry(job)));
        }
        format!("{}\n\n{}", sheet.on(paper), self.head())
    }
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;

    #[derive(Parser)]
    struct Line {
        #[command(flatten)]
        args: JobsArgs,
    }

    fn chosen(line: &str) -> String {
        let job = |job: u64, name: &str, state: &str, tenant: &str, remaining_ms: Option<i64>| JobStatus {
            job,
            name: name.into(),
            state: state.into(),
            tenant: tenant.into(),
            queue: "q".into(),
            remaining_ms,
            ..JobStatus::default()
        };
        let jobs = vec![
            job(1, "c", "waiting", "x", None),
            job(2, "a", "running", "x", Some(9)),
            job(3, "b", "running", "y", Some(5)),
        ];
        let args = Line::try_parse_from(format!("jobs {line}").split_whitespace()).unwrap().args;
        let reply = args.choose(ListReply { jobs, ..ListReply::default() });
        reply.jobs.iter().map(|job| job.name.as_str()).collect()
    }

    #[test]
    fn jobs_are_chosen_and_sorted() {
        assert_eq!(chosen(""), "cab");
        assert_eq!((chosen("--state running"), chosen("--state running --state waiting")), ("ab".into(), "cab".into()));
        assert_eq!(chosen("--tenant x"), "ca");
        assert_eq!((chosen("--tenant x --state running"), chosen("--queue p")), ("a".into(), String::new()));
        assert_eq!(
            (chosen("--sort name"), chosen("--sort ends"), chosen("--sort tenant")),
            ("abc".into(), "bac".into(), "cab".into())
        );
        // Equal ones stay in the order of submission.
        for other in ["shape", "epoch", "step", "loss", "speed", "submitted"] {
            assert_eq!(chosen(&format!("--sort {other}")), "cab", "{other}");
        }
        assert!(Line::try_parse_from(["jobs", "--state", "runing"]).is_err());
        let with_ended = |line: &str| Line::try_parse_from(line.split(' ')).unwrap().args.with_ended();
        assert!(with_ended("jobs --state failed") && with_ended("jobs --all") && !with_ended("jobs --state running"));
    }

    #[test]
    fn a_bar_shows_how_far_a_job_came() {
        let bar = |state: &str, epoch, predicted_epochs, ended_ms| {
            let job = JobStatus {
                state: state.into(),
                epoch,
                max_epochs: 40,
                predicted_epochs,
                ended_ms,
                ..JobStatus::default()
            };
            job.bar(12)
        };
        assert_eq!(bar("running", 10, None, None), " 25 % [===>      ]");
        assert_eq!(bar("running", 10, Some(20.0), None), " 50 % [=====>    ]");
        assert_eq!(bar("running", 30, Some(20.0), None), "100 % [==========]", "the prediction was too low");
        assert_eq!(bar("completed", 10, None, Some(1)), "100 % [==========]");
        assert_eq!(bar("cancelled", 10, None, Some(1)), " 25 % [===>      ]");
        assert_eq!(bar("waiting", 0, Some(f64::NAN), None), "  0 % [          ]");
    }

    #[test]
    fn the_wanted_columns_are_shown_in_their_order_at_any_width() {
        let status = JobStatus { name: "net".into(), queue: "night".into(), loss: Some(0.5), ..JobStatus::default() };
        let args = |line: &str| Line::try_parse_from(line.split(' ')).map(|line| line.args);
        let columns = args("jobs --columns queue,loss,name").unwrap().columns;
        let reply = ListReply { jobs: vec![status], ..ListReply::default() };
        let text = JobList { columns, ..JobList::from(reply) }.text(&Paper { width: Some(20), ..Paper::default() });
        let mut lines = text.lines().map(|line| line.split_whitespace().collect::<Vec<_>>());
        assert_eq!(lines.next().unwrap(), ["QUEUE", "LOSS", "NAME"]);
        assert_eq!(lines.next().unwrap(), ["night", "0.5000", "net"]);
        let error = args("jobs --columns colour").unwrap_err().to_string();
        assert!(error.contains("colour") && error.contains("submitted"), "{error}");
        assert!(args("jobs --columns name --wide").is_err());
        assert!(args("jobs -o wide").unwrap().output.is_some());
    }

    #[test]
    fn the_wide_list_has_tenants_and_queues() {
        let status =
            JobStatus { name: "a".into(), tenant: "vision".into(), queue: "night".into(), ..JobStatus::default() };
        let list =
            |wide| JobList { wide, ..JobList::from(ListReply { jobs: vec![status.clone()], ..ListReply::default() }) };
        let text = |wide| list(wide).text(&Paper::default());
        assert!(text(true).contains("vision") && text(true).contains("night") && !text(false).contains("vision"));
    }
}

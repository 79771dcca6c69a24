//! Rubick's files: a table of jobs, and a folder with one table of measured iterations for each model.

use std::path::Path;

use trainmaster_core::Span;
use trainmaster_sim::workload::rubick::{Measured, Models, Row};
use trainmaster_terminal::Failure;

use super::{
    rows::{Found, Rows},
    source::Names,
};

/// Maximum number of models, each of which is a file.
const MOST_MODELS: usize = 100;

/// Reads the jobs of a file, and what the folder has of their models. Invalid rows are left out, and reported.
///
/// # Errors
/// A file can't be read or has no valid row, or there are too many models.
pub(super) fn read(path: &Path, folder: &Path) -> Result<(Vec<Row>, Models, Vec<String>), Failure> {
    let wanted = ["name", "submission_time", "application", "num_gpus", "steps"];
    let mut names = Names::default();
    let Found { mut rows, mut wrong } = Rows::read(path, &wanted)?.map(|row| {
        let model = row.text(2);
        // The name of a file, so it can't lead out of the folder.
        let is_name = |c: char| c.is_ascii_alphanumeric() || c == '_' || c == '-';
        if model.is_empty() || model.len() > 64 || !model.chars().all(is_name) {
            return Err(row.wrong(2, "a model's name of 1 to 64 letters, digits, _ and -"));
        }
        let read = Row {
            name: row.text(0).to_owned(),
            time: Span::from_seconds(row.number(1, "seconds from 0 to 10^9", |time| (0.0..=1e9).contains(&time))?),
            application: model.to_owned(),
            gpus: row.whole(3, 1, 10_000)?,
            steps: row.whole(4, 1, 1_000_000_000)?.into(),
        };
        names.take(0, &read.name)?;
        Ok(read)
    })?;
    let mut models = Models::new();
    for row in &rows {
        if models.contains_key(&row.application) {
            continue;
        }
        if models.len() == MOST_MODELS {
            let problem = format!("model {:?} is beyond the {MOST_MODELS} that a file may have", row.application);
            return Err(Failure::Usage(format!("{}: {problem}", path.display())));
        }
        let found = measured(&folder.join(format!("{}.csv", row.application)))?;
        wrong.extend(found.wrong);
        models.insert(row.application.clone(), found.rows);
    }
    rows.sort_by_key(|row| row.time);
    Ok((rows, models, wrong))
}

/// The measured iterations of a model. A time of 0 means that the plan didn't run.
fn measured(path: &Path) -> Result<Found<Measured>, Failure> {
    let mut found = Rows::read(path, &["placement", "iter_time"])?.map(|row| {
        let text = row.text(0);
        let placement: Option<Vec<u32>> = text.chars().map(|c| c.to_digit(10).filter(|digit| *digit > 0)).collect();
        let placement = placement.filter(|placement| (1..=64).contains(&placement.len()));
        Ok(Measured {
            placement: placement.ok_or_else(|| row.wrong(0, "1 to 64 digits: the GPUs on each server"))?,
            seconds: row.number(1, "seconds from 0 to 10^6", |seconds| (0.0..=1e6).contains(&seconds))?,
        })
    })?;
    found.rows.retain(|row| row.seconds > 0.0);
    Ok(found)
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    fn of(jobs: &str, models: &[(&str, &str)]) -> Result<(Vec<Row>, Models, Vec<String>), Failure> {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("jobs.csv");
        fs::write(&path, jobs).unwrap();
        for (name, text) in models {
            fs::write(folder.path().join(format!("{name}.csv")), text).unwrap();
        }
        read(&path, folder.path())
    }

    const JOBS: &str = "name,submission_time,duration,application,num_gpus,steps\n\
        b,9,1,vit,2,100\na,3,1,vit,1,50\n../x,1,1,../vit,1,1\nc,1,1,vit,0,1\na,1,1,vit,1,1\n";

    #[test]
    fn jobs_come_with_what_was_measured() {
        let vit = "exec_plan,placement,iter_time,forward\nga,1,0.15,\nga,11,0.09,1\nga,2,0,\nga,203,1,\nga,8,-1,\n";
        let (rows, models, left_out) = of(JOBS, &[("vit", vit)]).unwrap();
        let jobs: Vec<_> = rows.iter().map(|row| (row.name.as_str(), row.time.0, row.gpus, row.steps)).collect();
        assert_eq!(jobs, [("a", 3000, 1, 50), ("b", 9000, 2, 100)]);
        let placements: Vec<_> = models["vit"].iter().map(|row| (row.placement.clone(), row.seconds)).collect();
        assert_eq!(placements, [(vec![1], 0.15), (vec![1, 1], 0.09)]);
        for (problem, part) in left_out.iter().zip([
            "line 4, column \"application\": \"../vit\"",
            "line 5, column \"num_gpus\"",
            "line 6, column \"name\": \"a\" is another job's name",
            "line 5, column \"placement\": \"203\"",
            "line 6, column \"iter_time\": \"-1\"",
        ]) {
            assert!(problem.contains(part), "{part:?} isn't in {problem:?}");
        }
        assert_eq!(left_out.len(), 5, "{left_out:?}");
    }

    #[test]
    fn a_model_without_a_file_is_named() {
        let error = of(JOBS, &[]).unwrap_err().to_string();
        assert!(error.contains("vit.csv") && error.contains("can't be read"), "{error}");
        let error = of(JOBS, &[("vit", "plan,iter_time\n")]).unwrap_err().to_string();
        assert!(error.contains("\"placement\" is missing"), "{error}");
        let worst = format!("placement,iter_time\n{},1\n1,1\n", "8".repeat(100_000));
        let (_, models, left_out) = of(JOBS, &[("vit", &worst)]).unwrap();
        assert!(models["vit"].len() == 1 && left_out.iter().all(|problem| problem.len() < 300), "{left_out:?}");
        let many: String = (0..101).map(|number| format!("j{number},1,m{number},1,1\n")).collect();
        let files: Vec<String> = (0..101).map(|number| format!("m{number}")).collect();
        let files: Vec<(&str, &str)> = files.iter().map(|name| (name.as_str(), "placement,iter_time\n1,1\n")).collect();
        let error = of(&format!("name,submission_time,application,num_gpus,steps\n{many}"), &files).unwrap_err();
        assert!(error.to_string().contains("beyond the 100"), "{error}");
    }
}

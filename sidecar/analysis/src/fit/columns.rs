//! Numbers from named columns of a CSV file.

use std::path::Path;

use anyhow::{Context, anyhow, bail};
use csv::{ReaderBuilder, Trim};

/// The requested columns of a file with a header line, in any order. Other columns are ignored.
pub(crate) struct Columns {
    file: String,
    names: Vec<String>,
    rows: Vec<Row>,
}

/// One line.
struct Row {
    line: u64,
    /// In the order of `names`. `None` for a missing optional column.
    values: Vec<Option<f64>>,
}

/// A requested column.
#[derive(Clone, Copy)]
pub(crate) struct Wanted<'a> {
    /// Its heading.
    pub(crate) name: &'a str,
    /// Whether the file must have it.
    pub(crate) required: bool,
    /// Its allowed values.
    pub(crate) allowed: Allowed,
}

/// Ranges of numbers.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Allowed {
    /// 0, 1, 2, …
    Count,
    /// 1, 2, 3, …
    Positive,
    /// Any above 0.
    Above,
    /// 0 or above.
    NotNegative,
}

impl Allowed {
    fn holds(self, number: f64) -> bool {
        let whole = |least: f64| number >= least && number <= f64::from(u32::MAX) && number.fract() == 0.0;
        match self {
            Self::Count => whole(0.0),
            Self::Positive => whole(1.0),
            Self::Above => number > 0.0 && number.is_finite(),
            Self::NotNegative => number >= 0.0 && number.is_finite(),
        }
    }

    fn words(self) -> String {
        match self {
            Self::Count => format!("a whole number from 0 to {}", u32::MAX),
            Self::Positive => format!("a whole number from 1 to {}", u32::MAX),
            Self::Above => "a number above 0".into(),
            Self::NotNegative => "a number that is 0 or more".into(),
        }
    }
}

impl Columns {
    /// The headings of a file, for files whose first column has several possible names.
    pub(crate) fn headings(path: &Path) -> anyhow::Result<Vec<String>> {
        let file = path.display().to_string();
        let mut reader =
            ReaderBuilder::new().trim(Trim::All).from_path(path).map_err(|error| unreadable(&file, &error))?;
        let headings = reader.headers().map_err(|error| unreadable(&file, &error))?;
        Ok(headings.iter().map(ToOwned::to_owned).collect())
    }

    /// Reads the requested columns.
    ///
    /// # Errors
    /// Names the file and, if relevant, line, column, value and allowed range.
    pub(crate) fn read(path: &Path, wanted: &[Wanted<'_>]) -> anyhow::Result<Self> {
        let file = path.display().to_string();
        let mut reader =
            ReaderBuilder::new().trim(Trim::All).from_path(path).map_err(|error| unreadable(&file, &error))?;
        let headings = reader.headers().map_err(|error| unreadable(&file, &error))?.clone();
        let mut places = Vec::new();
        for column in wanted {
            let mut found = headings.iter().enumerate().filter(|(_, heading)| *heading == column.name);
            let place = found.next().map(|(place, _)| place);
            if found.next().is_some() {
                bail!("{file}, line 1: column {:?} stands there twice; once is allowed", column.name);
            }
            if place.is_none() && column.required {
                let have = if headings.is_empty() {
                    "the file is empty".into()
                } else {
                    format!("it has {}", quoted(&headings))
                };
                bail!("{file}: column {:?} is missing; {have}, needed are {}", column.name, needed(wanted));
            }
            places.push(place);
        }
        let mut rows = Vec::new();
        for record in reader.records() {
            let record = record.map_err(|error| unreadable(&file, &error))?;
            let line = record.position().map_or(0, csv::Position::line);
            let mut values = Vec::new();
            for (column, place) in wanted.iter().zip(&places) {
                let value = place.map(|place| value(&record[place], *column));
                let named = || format!("{file}, line {line}, column {:?}", column.name);
                values.push(value.transpose().with_context(named)?);
            }
            rows.push(Row { line, values });
        }
        if rows.is_empty() {
            bail!("{file}: no row below the header; at least one is needed");
        }
        Ok(Self { file, names: wanted.iter().map(|column| column.name.to_owned()).collect(), rows })
    }

    /// Name of the file.
    pub(crate) fn file(&self) -> &str {
        &self.file
    }

    /// The values of all rows, in the order of the requested columns.
    pub(crate) fn rows(&self) -> impl Iterator<Item = &[Option<f64>]> {
        self.rows.iter().map(|row| row.values.as_slice())
    }

    /// The values of a required column.
    pub(crate) fn column(&self, place: usize) -> Vec<f64> {
        self.rows().map(|row| row[place].unwrap_or_default()).collect()
    }

    /// An error about the value in a row.
    pub(crate) fn wrong(&self, row: usize, place: usize, allowed: &str) -> anyhow::Error {
        let value = self.rows[row].values[place].unwrap_or_default();
        let (line, name) = (self.rows[row].line, &self.names[place]);
        anyhow!("{}, line {line}, column {name:?}: {value} isn't allowed; {allowed}", self.file)
    }
}

fn value(text: &str, column: Wanted<'_>) -> anyhow::Result<f64> {
    let number = text.parse().ok().filter(|number| column.allowed.holds(*number));
    number.ok_or_else(|| anyhow!("{text:?} isn't allowed; it must be {}", column.allowed.words()))
}

fn quoted(headings: &csv::StringRecord) -> String {
    headings.iter().map(|heading| format!("{heading:?}")).collect::<Vec<_>>().join(", ")
}

fn needed(wanted: &[Wanted<'_>]) -> String {
    wanted.iter().filter(|column| column.required).map(|column| column.name).collect::<Vec<_>>().join(", ")
}

fn unreadable(file: &str, error: &csv::Error) -> anyhow::Error {
    match error.kind() {
        csv::ErrorKind::Io(error) => anyhow!("{file} can't be read: {error}"),
        csv::ErrorKind::UnequalLengths { pos, expected_len, len } => {
            let line = pos.as_ref().map_or(0, csv::Position::line);
            anyhow!("{file}, line {line}: {len} values where the header has {expected_len}")
        }
        csv::ErrorKind::Utf8 { pos, .. } => {
            let line = pos.as_ref().map_or(0, csv::Position::line);
            anyhow!("{file}, line {line}: not UTF-8 text")
        }
        _ => anyhow!("{file}: {error}"),
    }
}

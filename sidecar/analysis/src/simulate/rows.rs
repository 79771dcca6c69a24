//! The rows of a CSV file. Invalid ones are reported and left out.

use std::path::Path;

use anyhow::{anyhow, bail};
use csv::{ReaderBuilder, StringRecord, Terminator, Trim};
use trainmaster_host::bounded::{TABLE, read};
use trainmaster_terminal::Failure;

/// The requested columns of a file with a header line, one row per line, in any order. Other columns are ignored.
pub(super) struct Rows {
    file: String,
    names: Vec<String>,
    rows: Vec<(u64, Result<StringRecord, String>)>,
}

/// One row.
pub(super) struct Row<'a> {
    /// Line number in the file.
    pub(super) line: u64,
    values: &'a StringRecord,
}

/// An invalid value.
pub(super) struct Wrong {
    /// Index among the requested columns.
    pub(super) column: usize,
    /// The value and the allowed ones.
    pub(super) problem: String,
}

/// Results of reading a file's rows.
pub(super) struct Found<T> {
    pub(super) rows: Vec<T>,
    /// One line per invalid row: place, value and allowed values.
    pub(super) wrong: Vec<String>,
}

impl Rows {
    /// Reads a file.
    ///
    /// # Errors
    /// The file can't be read, or lacks a column.
    pub(super) fn read(path: &Path, wanted: &[&str]) -> Result<Self, Failure> {
        Ok(Self::open(path, wanted)?)
    }

    fn open(path: &Path, wanted: &[&str]) -> anyhow::Result<Self> {
        let file = path.display().to_string();
        let bytes = read(path, TABLE).map_err(|error| anyhow!("{file} can't be read: {error}"))?;
        let lines = bytes.split(|byte| *byte == b'\n').map(<[u8]>::trim_ascii);
        let mut lines = (1_u64..).zip(lines).filter(|(_, line)| !line.is_empty()).map(|(at, line)| (at, values(line)));
        let Some((at, headings)) = lines.next() else {
            bail!("{file}: the file is empty; needed are the columns {}", wanted.join(", "));
        };
        let headings = headings.map_err(|problem| anyhow!("{file}, line {at}: {problem}"))?;
        let mut places = Vec::new();
        for name in wanted {
            let mut found = headings.iter().enumerate().filter(|(_, heading)| heading == name);
            let Some((place, _)) = found.next() else {
                let have: Vec<String> = headings.iter().map(quoted).collect();
                bail!("{file}: column {name:?} is missing; it has {}", have.join(", "));
            };
            if found.next().is_some() {
                bail!("{file}, line {at}: more than one column is headed {name:?}; nothing tells which is meant");
            }
            places.push(place);
        }
        let pick = |record: StringRecord| {
            if record.len() == headings.len() {
                Ok(places.iter().map(|place| &record[*place]).collect())
            } else {
                Err(format!("{} values where the header has {}", record.len(), headings.len()))
            }
        };
        let rows = lines.map(|(at, record)| (at, record.and_then(pick))).collect();
        Ok(Self { file, names: wanted.iter().map(|name| (*name).to_owned()).collect(), rows })
    }

    /// Converts all rows.
    ///
    /// # Errors
    /// No row is valid.
    pub(super) fn map<T>(&self, mut read: impl FnMut(&Row<'_>) -> Result<T, Wrong>) -> Result<Found<T>, Failure> {
        let mut found = Found { rows: Vec::new(), wrong: Vec::new() };
        for (line, row) in &self.rows {
            let result = match row {
                Ok(values) => read(&Row { line: *line, values })
                    .map_err(|wrong| format!(", column {:?}: {}", self.names[wrong.column], wrong.problem)),
                Err(problem) => Err(format!(": {problem}")),
            };
            match result {
                Ok(row) => found.rows.push(row),
                Err(problem) => found.wrong.push(format!("{}, line {line}{problem}", self.file)),
            }
        }
        if found.rows.is_empty() {
            let first = found.wrong.first().map_or_else(String::new, |problem| format!("; the first: {problem}"));
            return Err(Failure::refused(format!("{}: no row of {} can be used{first}", self.file, self.rows.len())));
        }
        Ok(found)
    }
}

/// The values of a line. Values don't continue in the next line, so an unclosed quote affects no other row.
fn values(line: &[u8]) -> Result<StringRecord, String> {
    if line.iter().filter(|byte| **byte == b'"').count() % 2 == 1 {
        return Err("a quote isn't closed; a row takes one line".into());
    }
    let mut builder = ReaderBuilder::new();
    builder.trim(Trim::All).has_headers(false).terminator(Terminator::Any(b'\n'));
    let mut reader = builder.from_reader(line);
    let mut record = StringRecord::new();
    match reader.read_record(&mut record) {
        Ok(_) => Ok(record),
        Err(_) => Err("it isn't UTF-8".into()),
    }
}

/// A value in quotes, truncated if it is long.
fn quoted(value: &str) -> String {
    const SHOWN: usize = 40;
    let cut = value.char_indices().nth(SHOWN).map_or(value, |(at, _)| &value[..at]);
    format!("{cut:?}{}", if cut.len() < value.len() { "…" } else { "" })
}

impl Row<'_> {
    /// A value as text.
    pub(super) fn text(&self, column: usize) -> &str {
        &self.values[column]
    }

    /// The error of a value that isn't allowed.
    pub(super) fn wrong(&self, column: usize, allowed: &str) -> Wrong {
        Wrong { column, problem: format!("{} isn't allowed; it must be {allowed}", quoted(self.text(column))) }
    }

    /// A number in an allowed range.
    pub(super) fn number(&self, column: usize, allowed: &str, holds: impl Fn(f64) -> bool) -> Result<f64, Wrong> {
        let number = self.text(column).parse().ok().filter(|number| holds(*number));
        number.ok_or_else(|| self.wrong(column, allowed))
    }

    /// A whole number; `8.0` is one.
    pub(super) fn whole(&self, column: usize, least: u32, most: u32) -> Result<u32, Wrong> {
        let within = |number: f64| number.fract() == 0.0 && (f64::from(least)..=f64::from(most)).contains(&number);
        let number = self.number(column, &format!("a whole number from {least} to {most}"), within)?;
        Ok(number as u32)
    }

    /// A time: seconds from any start, or a date with the time of day.
    pub(super) fn moment(&self, column: usize) -> Result<f64, Wrong> {
        if let Some(seconds) = date_and_time(self.text(column)) {
            return Ok(seconds);
        }
        let allowed = "seconds from 0 to 10^12, or a date and time such as 2017-10-01 12:30:00";
        self.number(column, allowed, |seconds| (0.0..=1e12).contains(&seconds))
    }
}

/// Seconds since 1970 of `2017-10-01 12:30:00`, with a blank or a `T`; fractions of a second and `Z` may follow.
fn date_and_time(text: &str) -> Option<f64> {
    let (date, time) = text.trim_end_matches('Z').split_once([' ', 'T'])?;
    let mut date = date.splitn(3, '-').map(str::parse::<i64>);
    let (year, month, day) = (date.next()?.ok()?, date.next()?.ok()?, date.next()?.ok()?);
    let mut time = time.splitn(3, ':');
    let (hour, minute): (i64, i64) = (time.next()?.parse().ok()?, time.next()?.parse().ok()?);
    let second: f64 = time.next().map_or(Some(0.0), |second| second.parse().ok())?;
    let sensible = (1..=9999).contains(&year)
        && (1..=12).contains(&month)
        && (1..=31).contains(&day)
        && (0..24).contains(&hour)
        && (0..60).contains(&minute)
        && (0.0..61.0).contains(&second);
    if !sensible {
        return None;
    }
    // Days since 1970. Years begin in March, so that a leap day is the last of its year.
    let (year, month) = if month > 2 { (year, month - 3) } else { (year - 1, month + 9) };
    let days = 365 * year + year.div_euclid(4) - year.div_euclid(100) + year.div_euclid(400);
    let days = days + (153 * month + 2) / 5 + day - 1 - 719_468;
    Some((days * 86_400 + hour * 3600 + minute * 60) as f64 + second)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn dates_are_those_of_the_calendar() {
        assert_eq!(date_and_time("1970-01-01 00:00:00"), Some(0.0));
        assert_eq!(date_and_time("2000-03-01T00:00:01Z"), Some(951_868_801.0));
        assert_eq!(date_and_time("2017-10-01 12:30:00.5"), Some(1_506_861_000.5));
        assert_eq!(date_and_time("2016-02-29 23:59").map(|at| at + 60.0), date_and_time("2016-03-01 00:00"));
        for wrong in ["2017-13-01 00:00:00", "2017-10-01", "soon", "1 2", "2017-10-01 25:00:00"] {
            assert_eq!(date_and_time(wrong), None, "{wrong}");
        }
    }
}

//! Access to measured curves, for the tests of the fits.

#![allow(dead_code, unreachable_pub)] // each test uses its own part
#![allow(clippy::disallowed_macros, clippy::disallowed_methods)] // tests read files and print what they measure

use std::path::PathBuf;

/// Path of measured data beside a development checkout. `None` without data; the reason is printed.
///
/// # Panics
///
/// Under CI=true if there is no data.
pub fn shared(relative: &str) -> Option<PathBuf> {
    let path = PathBuf::from(concat!(env!("CARGO_MANIFEST_DIR"), "/../../shared/data")).join(relative);
    if path.exists() {
        return Some(path);
    }
    assert!(std::env::var("CI").as_deref() != Ok("true"), "{} is missing", path.display());
    skipped(&format!("{} is not there", path.display()));
    None
}

/// Reports a skipped test: on its output, and in the file that `make test` counts.
fn skipped(reason: &str) {
    use std::io::Write;
    println!("skipped: {reason}");
    if let Some(file) = std::env::var_os("TRAINMASTER_SKIPS") {
        let file = std::fs::OpenOptions::new().append(true).create(true).open(file);
        let _ = file.and_then(|mut file| writeln!(file, "{reason}"));
    }
}

/// The files of a folder whose names start with `prefix`, sorted by name.
pub fn files(folder: &str, prefix: &str) -> Vec<PathBuf> {
    let Some(folder) = shared(folder) else { return Vec::new() };
    let mut out: Vec<PathBuf> = std::fs::read_dir(folder)
        .expect("a readable folder")
        .map(|entry| entry.expect("an entry").path())
        .filter(|path| path.file_name().is_some_and(|name| name.to_string_lossy().starts_with(prefix)))
        .collect();
    out.sort();
    out
}

/// Columns of a CSV file by name, as text, in the order of the rows.
pub fn columns<const N: usize>(path: &PathBuf, names: [&str; N]) -> Vec<[String; N]> {
    let mut reader = csv::Reader::from_path(path).expect("a readable file");
    let header = reader.headers().expect("a header").clone();
    let places = names.map(|name| header.iter().position(|h| h == name).unwrap_or_else(|| panic!("no column {name}")));
    reader
        .records()
        .map(|row| {
            let row = row.expect("a row");
            places.map(|place| row[place].to_owned())
        })
        .collect()
}

/// A small generator for tests, with the same numbers on every machine.
pub struct Random(pub u64);

impl Random {
    /// Uniform in [0, 1).
    pub fn uniform(&mut self) -> f64 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 11) as f64 / (1_u64 << 53) as f64
    }

    /// Approximately standard normal.
    pub fn normal(&mut self) -> f64 {
        (0..12).map(|_| self.uniform()).sum::<f64>() - 6.0
    }

    /// Uniform in [0, n).
    pub fn below(&mut self, n: usize) -> usize {
        ((self.uniform() * n as f64) as usize).min(n - 1)
    }
}

/// The mean; 0 for an empty list.
pub fn mean(values: &[f64]) -> f64 {
    values.iter().sum::<f64>() / (values.len().max(1)) as f64
}

/// The median; 0 for an empty list.
pub fn median(values: &[f64]) -> f64 {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    sorted.get(sorted.len() / 2).copied().unwrap_or(0.0)
}

//! Slurm's texts for resources: GRES (`gpu:a100:4(S:0-1),shard:8`) and TRES (`cpu=16,mem=62.50G,gres/gpu=4`).

use std::collections::BTreeMap;

/// One entry of a GRES text.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Gres {
    /// The name, such as `gpu`.
    pub name: String,
    /// The type, such as `a100`, if there is one.
    pub kind: Option<String>,
    /// The count.
    pub count: u64,
    /// In texts of used resources, the number of devices. For shards it is smaller than the count.
    pub devices: u64,
}

impl Gres {
    /// Creates a count of a resource with its name in jobs: `gpu`, `gpu:a100`.
    pub fn new(resource: &str, count: u64) -> Self {
        let (name, kind) = resource.split_once(':').map_or((resource, None), |(name, kind)| (name, Some(kind)));
        Self { name: name.into(), kind: kind.map(str::to_owned), count, devices: 0 }
    }

    /// The name of the resource in jobs.
    pub fn resource(&self) -> String {
        self.kind.as_ref().map_or_else(|| self.name.clone(), |kind| format!("{}:{kind}", self.name))
    }
}

impl std::fmt::Display for Gres {
    /// Formats it as in a job's request.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "gres:{}:{}", self.resource(), self.count)
    }
}

/// Reads the resources that nodes have, use or drain, and those that jobs request. Ignores texts that aren't resources
/// (`(null)`, `N/A`).
///
/// ```
/// use trainmaster_adapters::slurm::gres::parse_gres;
/// let gres = parse_gres("gpu:a100:4(S:0-1),gpu:2");
/// assert_eq!((gres[0].resource(), gres[0].count), ("gpu:a100".to_owned(), 4));
/// assert_eq!((gres[1].resource(), gres[1].count), ("gpu".to_owned(), 2));
/// ```
pub fn parse_gres(text: &str) -> Vec<Gres> {
    split_outside(text).into_iter().filter_map(entry).collect()
}

fn entry(text: &str) -> Option<Gres> {
    let text = text.trim();
    let text = text.strip_prefix("gres:").or_else(|| text.strip_prefix("gres/")).unwrap_or(text);
    // Jobs' requests are also printed as gres/gpu=2.
    let text = text.replacen('=', ":", 1).replace("(null):", "");
    let (text, detail) = text.split_once('(').unwrap_or((text.as_str(), ""));
    let mut parts: Vec<&str> = text.split(':').filter(|part| *part != "no_consume").collect();
    let name = parts.first().filter(|name| !name.is_empty() && **name != "N/A")?.to_string();
    let count = if parts.len() > 1 { parts.last().and_then(|last| scaled(last)) } else { None };
    if count.is_some() {
        parts.pop();
    }
    let kind = (parts.len() > 1).then(|| parts[1..].join(":")).filter(|kind| !kind.is_empty());
    Some(Gres { name, kind, count: count.unwrap_or(1), devices: devices(detail.trim_end_matches(')')) })
}

/// Counts the used devices: `IDX:0,2-3` lists devices, and `1/4,0/4` the used parts of each.
fn devices(detail: &str) -> u64 {
    let used = |part: &str| match part.split_once('/') {
        Some((used, _)) => u64::from(used.parse::<u64>().is_ok_and(|used| used > 0)),
        None => {
            let (first, last) = part.split_once('-').unwrap_or((part, part));
            let range = first.parse::<u64>().ok().zip(last.parse::<u64>().ok());
            range.map_or(0, |(first, last)| last.saturating_sub(first).saturating_add(1))
        }
    };
    detail.trim_start_matches("IDX:").split(',').map(used).fold(0, u64::saturating_add)
}

/// Reads a count with Slurm's binary suffixes.
fn scaled(text: &str) -> Option<u64> {
    let digits = text.find(|c: char| !c.is_ascii_digit()).unwrap_or(text.len());
    let shift = match &text[digits..] {
        "" => 0,
        "K" | "k" => 10,
        "M" | "m" => 20,
        "G" | "g" => 30,
        "T" | "t" => 40,
        "P" | "p" => 50,
        _ => return None,
    };
    text[..digits].parse::<u64>().ok()?.checked_mul(1 << shift)
}

/// Splits at commas outside parentheses and brackets.
pub(crate) fn split_outside(text: &str) -> Vec<&str> {
    let mut parts = Vec::new();
    let (mut depth, mut from) = (0_u32, 0);
    for (at, c) in text.char_indices() {
        match c {
            '(' | '[' => depth += 1,
            ')' | ']' => depth = depth.saturating_sub(1),
            ',' if depth == 0 => {
                parts.push(&text[from..at]);
                from = at + 1;
            }
            _ => {}
        }
    }
    parts.push(&text[from..]);
    parts.retain(|part| !part.is_empty());
    parts
}

/// Sums GRES by their names in jobs, without zeros.
pub fn total(gres: &[Gres]) -> BTreeMap<String, u64> {
    let mut sums = BTreeMap::new();
    for entry in gres.iter().filter(|entry| entry.count > 0) {
        let sum = sums.entry(entry.resource()).or_insert(0_u64);
        *sum = sum.saturating_add(entry.count);
    }
    sums
}

/// Reads a TRES text: counts by name, memory in MiB.
///
/// ```
/// use trainmaster_adapters::slurm::gres::parse_tres;
/// let tres = parse_tres("cpu=16,mem=62.50G,billing=16,gres/gpu=4");
/// assert_eq!((tres["cpu"], tres["mem"], tres["gres/gpu"]), (16, 64_000, 4));
/// ```
pub fn parse_tres(text: &str) -> BTreeMap<String, u64> {
    let pairs = text.split(',').filter_map(|pair| pair.trim().split_once('='));
    pairs.filter_map(|(name, value)| Some((name.to_owned(), tres_value(name, value)?))).collect()
}

fn tres_value(name: &str, text: &str) -> Option<u64> {
    let digits = text.find(|c: char| !(c.is_ascii_digit() || c == '.')).unwrap_or(text.len());
    let number: f64 = text[..digits].parse().ok()?;
    let mebi = match &text[digits..] {
        "" if name == "mem" => 1.0,
        "" => return Some(number as u64),
        "K" => 1.0 / 1024.0,
        "M" => 1.0,
        "G" => 1024.0,
        "T" => 1024.0 * 1024.0,
        "P" => 1024.0 * 1024.0 * 1024.0,
        _ => return None,
    };
    // Memory is counted in MiB; other large counts are printed with the same suffixes.
    let scale = if name == "mem" { mebi } else { mebi * 1024.0 * 1024.0 };
    Some((number * scale).round() as u64)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn gres_as_slurm_prints_it() {
        for (text, expected) in [
            ("gpu:4", &[("gpu", 4)][..]),
            ("gpu", &[("gpu", 1)]),
            ("gpu:a100", &[("gpu:a100", 1)]),
            ("gpu:a100:4(S:0-1),gpu:v100:2(S:1)", &[("gpu:a100", 4), ("gpu:v100", 2)]),
            ("gpu:a100:2(IDX:0,3),gpu:v100:0(IDX:N/A)", &[("gpu:a100", 2), ("gpu:v100", 0)]),
            ("gpu:(null):2(IDX:0-1)", &[("gpu", 2)]),
            ("gres:gpu:a100:2", &[("gpu:a100", 2)]),
            ("gres/gpu=2", &[("gpu", 2)]),
            ("gres/gpu:a100=2", &[("gpu:a100", 2)]),
            ("bandwidth:lustre:no_consume:4G,license", &[("bandwidth:lustre", 4 << 30), ("license", 1)]),
            ("", &[]),
            ("(null)", &[]),
            ("N/A", &[]),
        ] {
            let read: Vec<_> = parse_gres(text).iter().map(|gres| (gres.resource(), gres.count)).collect();
            let expected: Vec<_> = expected.iter().map(|(name, count)| ((*name).to_owned(), *count)).collect();
            assert_eq!(read, expected, "{text}");
        }
        for (text, devices) in
            [("shard:3(1/4,0/4,2/4)", 2), ("shard:v100:3(IDX:0,2-3)", 3), ("gpu:0(IDX:N/A)", 0), ("gpu:4", 0)]
        {
            assert_eq!(parse_gres(text)[0].devices, devices, "{text}");
        }
        assert_eq!(Gres::new("gpu:a100", 2).to_string(), "gres:gpu:a100:2");
    }

    #[test]
    fn tres_as_slurm_prints_it() {
        let tres = parse_tres("cpu=18,mem=4000M,node=2,billing=18,gres/gpu=8,gres/gpu:a100=8");
        assert_eq!((tres["cpu"], tres["mem"], tres["gres/gpu:a100"]), (18, 4000, 8));
        assert_eq!(parse_tres("mem=1.50T")["mem"], 1_572_864);
        assert_eq!(parse_tres(""), BTreeMap::new());
        assert_eq!(parse_tres("cpu=x,mem"), BTreeMap::new());
    }
}

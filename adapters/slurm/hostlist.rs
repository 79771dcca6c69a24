//! Slurm's texts for lists of nodes: `node[1-3,7],gpu-[01-02]`.

use super::gres::split_outside;

/// Maximum number of names. No cluster has more.
const MOST: usize = 1 << 17;
/// Maximum bytes of a name, and maximum digits of a number in it.
const LONGEST: usize = 255;
const DIGITS: usize = 20;
/// Maximum number of brackets in a name. Each costs a pass over all names.
const BRACKETS: usize = 4;

/// Returns the names in a list, in its order. Returns `None` if the list can't be read.
///
/// ```
/// use trainmaster_adapters::slurm::hostlist::expand;
/// assert_eq!(expand("node[1-2,5],login").unwrap(), ["node1", "node2", "node5", "login"]);
/// assert_eq!(expand("gpu-[08-10]").unwrap(), ["gpu-08", "gpu-09", "gpu-10"]);
/// ```
pub fn expand(list: &str) -> Option<Vec<String>> {
    let mut names = Vec::new();
    if list == "(null)" {
        return Some(names);
    }
    for part in split_outside(list) {
        let mut heads = vec![String::new()];
        let mut rest = part.trim();
        if rest.matches('[').count() > BRACKETS {
            return None;
        }
        while let Some((before, bracketed)) = rest.split_once('[') {
            let (ranges, after) = bracketed.split_once(']')?;
            let tails = numbers(ranges)?;
            if heads.len().checked_mul(tails.len())? + names.len() > MOST || heads[0].len() + before.len() > LONGEST {
                return None;
            }
            heads =
                heads.iter().flat_map(|head| tails.iter().map(move |tail| format!("{head}{before}{tail}"))).collect();
            rest = after;
        }
        if rest.contains(']') || rest.len() > LONGEST || names.len() >= MOST {
            return None;
        }
        names.extend(heads.into_iter().map(|head| head + rest));
    }
    Some(names)
}

/// Expands `1-3,07` to texts. Leading zeros define the width of a number.
fn numbers(ranges: &str) -> Option<Vec<String>> {
    let mut all = Vec::new();
    for range in ranges.split(',') {
        let (first, last) = range.split_once('-').unwrap_or((range, range));
        let (from, to) = (first.parse::<u64>().ok()?, last.parse::<u64>().ok()?);
        if to < from || to - from >= (MOST - all.len()) as u64 || first.len() > DIGITS {
            return None;
        }
        all.extend((from..=to).map(|number| format!("{number:0width$}", width = first.len())));
    }
    Some(all)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lists_are_expanded_and_nonsense_is_refused() {
        assert_eq!(expand("r[1-2]n[01-02]x").unwrap(), ["r1n01x", "r1n02x", "r2n01x", "r2n02x"]);
        assert_eq!(expand("a,b").unwrap(), ["a", "b"]);
        assert_eq!(expand("").unwrap(), [""; 0]);
        assert_eq!(expand("(null)").unwrap(), [""; 0]);
        for bad in [
            "n[1-",
            "n[2-1]",
            "n]",
            "n[x]",
            "n[0-99999999999]",
            "n[1-2000][1-2000]",
            "n[]",
            "n[0-18446744073709551615]",
            "n[1][1][1][1][0-100000]",
        ] {
            assert_eq!(expand(bad), None, "{bad}");
        }
        let (wide, long) =
            (format!("n[{}1-1000000]", "0".repeat(60_000)), format!("{}[1-1000000]", "n".repeat(60_000)));
        assert_eq!((expand(&wide), expand(&long)), (None, None));
        assert_eq!(expand("n[0-99999999999999999]"), None);
    }
}

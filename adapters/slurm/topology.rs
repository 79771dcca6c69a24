//! Slurm's `topology.conf`: which switches or blocks nodes are in.
//!
//! A leaf switch is a rack and the switch above it a block; a `BlockName` is a block, too. They become the nodes'
//! labels `rack` and `block`. Switches further up aren't told apart.

use std::collections::BTreeMap;

use super::hostlist;

/// Maximum number of lines, and of names in all lists together.
const MOST: usize = 10_000;
const MOST_NAMES: usize = 1 << 18;
/// Maximum bytes of a name.
const LONGEST: usize = 255;

/// Labels of a node, by level.
pub type Path = BTreeMap<&'static str, String>;

/// One line of the file.
#[derive(Default)]
struct Line<'a> {
    switch: Option<&'a str>,
    block: Option<&'a str>,
    nodes: Option<&'a str>,
    switches: Option<&'a str>,
}

/// Reads the file, and returns the path of each node in it. Keys that don't name switches, blocks or nodes are ignored.
/// O(nodes · log nodes).
///
/// # Errors
/// Names the line and the list that can't be read, or the limit that is exceeded.
///
/// ```
/// use trainmaster_adapters::slurm::topology;
/// let nodes = topology::read("SwitchName=s1 Nodes=n[1-2]\nSwitchName=top Switches=s[1-2]").unwrap();
/// assert_eq!((nodes["n2"]["rack"].as_str(), nodes["n2"]["block"].as_str()), ("s1", "top"));
/// ```
pub fn read(text: &str) -> Result<BTreeMap<String, Path>, String> {
    let mut nodes: BTreeMap<String, Path> = BTreeMap::new();
    let mut above: BTreeMap<String, String> = BTreeMap::new();
    // A line that ends with a backslash goes on with the next one.
    let mut names = 0;
    let text = text.replace("\\\n", " ");
    for (number, line) in text.lines().enumerate().filter(|(_, line)| !line.trim().is_empty()) {
        if number >= MOST {
            return Err(format!("topology.conf has more than {MOST} lines"));
        }
        let mut list = |list: &str| {
            let shown: String = list.chars().take(64).collect();
            let list =
                hostlist::expand(list).ok_or_else(|| format!("topology.conf: {shown:?} isn't a list of names"))?;
            names += list.len();
            if names > MOST_NAMES { Err(format!("topology.conf has more than {MOST_NAMES} names")) } else { Ok(list) }
        };
        let line = Line::of(line);
        let name = line.switch.or(line.block).filter(|name| !name.is_empty() && name.len() <= LONGEST);
        let Some(name) = name else { continue };
        let level = if line.switch.is_some() { "rack" } else { "block" };
        for node in line.nodes.map(&mut list).transpose()?.unwrap_or_default() {
            nodes.entry(node).or_default().insert(level, name.to_owned());
        }
        for switch in line.switches.map(&mut list).transpose()?.unwrap_or_default() {
            above.insert(switch, name.to_owned());
        }
    }
    for path in nodes.values_mut() {
        let block = path.get("rack").and_then(|rack| above.get(rack));
        if let Some(block) = block.filter(|_| !path.contains_key("block")) {
            path.insert("block", block.clone());
        }
    }
    Ok(nodes)
}

impl<'a> Line<'a> {
    fn of(line: &'a str) -> Self {
        let mut read = Self::default();
        let line = line.split_once('#').map_or(line, |(line, _)| line);
        for (key, value) in line.split_whitespace().filter_map(|pair| pair.split_once('=')) {
            let place = match key.to_ascii_lowercase().as_str() {
                "switchname" => &mut read.switch,
                "blockname" => &mut read.block,
                "nodes" => &mut read.nodes,
                "switches" => &mut read.switches,
                _ => continue,
            };
            *place = Some(value);
        }
        read
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn path(nodes: &BTreeMap<String, Path>, node: &str) -> Vec<(String, String)> {
        nodes.get(node).into_iter().flatten().map(|(level, name)| ((*level).into(), name.clone())).collect()
    }

    #[test]
    fn trees_and_blocks_are_read() {
        let tree = "# leaves\nSwitchName=s0 Nodes=n[0-1] LinkSpeed=100\nswitchname=s1 \\\n  nodes=n[2-3]\n\n\
                    SwitchName=b0 Switches=s[0-1]\nSwitchName=top Switches=b0\n";
        let nodes = read(tree).unwrap();
        let of = |rack: &str| vec![("block".to_owned(), "b0".to_owned()), ("rack".to_owned(), rack.to_owned())];
        assert_eq!((path(&nodes, "n0"), path(&nodes, "n3")), (of("s0"), of("s1")));
        assert!(path(&nodes, "n4").is_empty());
        let blocks = read("BlockName=b1 Nodes=n[1-18]\nBlockName=b2 Nodes=n19\nBlockSizes=18,36").unwrap();
        assert_eq!(path(&blocks, "n19"), [("block".to_owned(), "b2".to_owned())]);
        // Both, of which the explicit block counts.
        let both = read("BlockName=b1 Nodes=n1\nSwitchName=s Nodes=n1\nSwitchName=t Switches=s").unwrap();
        assert_eq!(path(&both, "n1"), [("block".to_owned(), "b1".to_owned()), ("rack".to_owned(), "s".to_owned())]);
    }

    #[test]
    fn the_worst_files_are_bounded() {
        assert_eq!(read("").unwrap(), BTreeMap::new());
        for (text, words) in [
            ("SwitchName=s Nodes=n[1-", "\"n[1-\" isn't a list"),
            ("SwitchName=s Nodes=n[1-9999999]", "isn't a list"),
            ("SwitchName=s Switches=[", "isn't a list"),
            (&"SwitchName=s Nodes=n\n".repeat(MOST + 1), "more than 10000 lines"),
            (&"SwitchName=s Nodes=n[1-99999]\n".repeat(3), "more than 262144 names"),
        ] {
            let error = read(text).unwrap_err();
            assert!(error.contains(words), "{error}");
        }
        // A switch above itself, a name without an end, and words without a value.
        let odd =
            format!("SwitchName=s Switches=s Nodes=n\nSwitchName={} Nodes=m\nNodes SwitchName\n=\n", "x".repeat(300));
        assert_eq!(path(&read(&odd).unwrap(), "n"), [("block".to_owned(), "s".into()), ("rack".into(), "s".into())]);
    }
}

//! Unchanged output of real Slurm installations (22.05.8). Every text is parsed, and the result matches the cluster.

use trainmaster_adapters::slurm::{gres, hostlist};

#[test]
fn gres_and_tres_of_real_nodes_and_jobs() {
    let lines = include_str!("corpus/texts.txt").lines().filter(|line| !line.is_empty() && !line.starts_with('#'));
    let mut read = 0;
    for line in lines {
        let [kind, text, meaning] = line.split('\t').collect::<Vec<_>>()[..] else { panic!("{line:?}: three columns") };
        let found = match kind {
            "gres" => pairs(gres::total(&gres::parse_gres(text))),
            "tres" => pairs(gres::parse_tres(text)),
            "nodes" => hostlist::expand(text).unwrap().join(" "),
            other => panic!("{other:?} is no kind of text"),
        };
        assert_eq!(found, meaning, "{kind} {text:?}");
        read += 1;
    }
    assert!(read >= 20, "{read} texts");
}

fn pairs(table: std::collections::BTreeMap<String, u64>) -> String {
    table.iter().map(|(name, value)| format!("{name}={value}")).collect::<Vec<_>>().join(" ")
}

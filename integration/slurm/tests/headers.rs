//! The plugins' C headers are those that the sources make.

use std::{collections::HashMap, env, fs, path::Path};

use cbindgen::{Builder, Config, Language, RenameRule, Style};

/// A header, and what it is made from.
struct Header {
    folder: &'static str,
    source: &'static str,
    name: &'static str,
    /// What Rust types are called in C.
    types: &'static [(&'static str, &'static str)],
}

const HEADERS: [Header; 2] = [
    Header {
        folder: "agent",
        source: "src/abi.rs",
        name: "agent.h",
        types: &[
            ("Handle", "trainmaster_agent"),
            ("CNode", "trainmaster_slurm_node"),
            ("CPartition", "trainmaster_slurm_partition"),
            ("CJob", "trainmaster_slurm_job"),
            ("CAction", "trainmaster_slurm_action"),
            ("COrder", "trainmaster_slurm_order"),
        ],
    },
    Header {
        folder: "job_submit",
        source: "src/lib.rs",
        name: "submission.h",
        types: &[
            ("CSubmission", "trainmaster_slurm_submission"),
            ("CHeld", "trainmaster_slurm_held"),
            ("CRandom", "trainmaster_slurm_random"),
            ("Outcome", "trainmaster_slurm_outcome"),
            // A type of trainmaster.h.
            ("trainmaster_message", "struct trainmaster_message"),
        ],
    },
];

#[test]
fn the_committed_headers_are_up_to_date() {
    for Header { folder, source, name, types } in HEADERS {
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("..").join(folder);
        let source = folder.join(source);
        let text = fs::read_to_string(&source).unwrap();
        // The module's own documentation is the head of the header.
        let head: Vec<String> =
            text.lines().map_while(|line| line.strip_prefix("//!")).map(|line| format!("//{line}")).collect();
        let mut config = Config {
            language: Language::C,
            style: Style::Tag,
            header: Some(head.join("\n")),
            include_guard: Some(format!("TRAINMASTER_{}", name.to_uppercase().replace('.', "_"))),
            no_includes: true,
            includes: vec!["trainmaster.h".to_owned()],
            sys_includes: ["stdbool.h", "stddef.h", "stdint.h"].map(str::to_owned).to_vec(),
            usize_is_size_t: true,
            documentation_style: cbindgen::DocumentationStyle::C99,
            line_length: 110,
            tab_width: 4,
            ..Config::default()
        };
        config.enumeration.rename_variants = RenameRule::QualifiedScreamingSnakeCase;
        config.export.rename =
            types.iter().map(|(rust, c)| ((*rust).to_owned(), (*c).to_owned())).collect::<HashMap<_, _>>();
        let mut made = Vec::new();
        Builder::new().with_src(&source).with_config(config).generate().unwrap().write(&mut made);
        let (made, path) = (String::from_utf8(made).unwrap(), folder.join(name));
        if env::var_os("BLESS").is_some_and(|value| value == "1") {
            assert!(env::var_os("CI").is_none(), "headers are not written in CI");
            fs::write(&path, &made).unwrap();
        }
        let committed = fs::read_to_string(&path).unwrap_or_default();
        assert!(
            committed == made,
            "{} differs from its source: BLESS=1 cargo test -p trainmaster-slurm-agent --test headers writes it anew",
            path.display()
        );
    }
}

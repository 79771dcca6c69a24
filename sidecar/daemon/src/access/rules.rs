//! The table of permissions.

use trainmaster_net::Kind as Serves;

use super::Kind;

/// A path, the kind of its service, and its callers.
pub(super) struct Rule {
    pub(super) path: &'static str,
    pub(super) serves: Serves,
    pub(super) allowed: Allowed,
}

/// The callers of a path.
#[derive(Clone, Copy)]
pub(super) enum Allowed {
    Anybody,
    These(&'static [Kind]),
}

use Allowed::{Anybody, These};
use Kind::{Admin, Job, Manager, Metrics, Read, Submit};

const fn rule(path: &'static str, serves: Serves, allowed: Allowed) -> Rule {
    Rule { path, serves, allowed }
}

const CALL: Serves = Serves::Call;

/// All served paths. Nobody may call others.
pub(super) const RULES: &[Rule] = &[
    rule("/trainmaster.v1.Feed/Watch", Serves::Watch, These(&[Job])),
    rule("/trainmaster.v1.Feed/Report", CALL, These(&[Job])),
    rule("/trainmaster.v1.Feed/Acknowledge", CALL, These(&[Job])),
    rule("/trainmaster.v1.Jobs/Submit", CALL, These(&[Submit, Manager, Admin])),
    rule("/trainmaster.v1.Jobs/Cancel", CALL, These(&[Submit, Manager, Admin])),
    rule("/trainmaster.v1.Jobs/Pause", CALL, These(&[Submit, Admin])),
    rule("/trainmaster.v1.Jobs/List", Serves::List, These(&[Read, Submit, Manager, Admin])),
    rule("/trainmaster.v1.Jobs/Watch", Serves::List, These(&[Read, Submit, Manager, Admin])),
    rule("/trainmaster.v1.Jobs/Servers", Serves::List, These(&[Read, Submit, Manager, Admin])),
    // Programs print what they like, also secrets.
    rule("/trainmaster.v1.Jobs/Logs", Serves::Log, These(&[Submit, Admin])),
    rule("/trainmaster.v1.Jobs/Explain", CALL, These(&[Read, Submit, Manager, Admin])),
    rule("/trainmaster.v1.Manager/Attach", Serves::Endless, These(&[Manager, Admin])),
    rule("/trainmaster.v1.Manager/Admit", CALL, These(&[Submit, Manager, Admin])),
    rule("/trainmaster.v1.Admin/SetMode", CALL, These(&[Admin])),
    rule("/trainmaster.v1.Admin/DryRun", CALL, These(&[Admin])),
    rule("/trainmaster.v1.Admin/Status", CALL, These(&[Read, Submit, Manager, Admin])),
    rule("/trainmaster.v1.Admin/CreateToken", CALL, These(&[Admin])),
    rule("/trainmaster.v1.Admin/ListTokens", CALL, These(&[Admin])),
    rule("/trainmaster.v1.Admin/RotateToken", CALL, These(&[Admin])),
    rule("/trainmaster.v1.Admin/RevokeToken", CALL, These(&[Admin])),
    rule("/grpc.health.v1.Health/Check", CALL, Anybody),
    rule("/grpc.health.v1.Health/Watch", CALL, Anybody),
    rule("/grpc.reflection.v1.ServerReflection/ServerReflectionInfo", CALL, Anybody),
    rule("/grpc.reflection.v1alpha.ServerReflection/ServerReflectionInfo", CALL, Anybody),
    rule("/", Serves::Page, Anybody),
    rule("/metrics", Serves::Page, These(&[Metrics, Read, Admin])),
    rule("/jobs", Serves::LongPage, These(&[Read, Submit, Manager, Admin])),
];

pub(super) fn find(path: &str) -> Option<&'static Rule> {
    RULES.iter().find(|rule| rule.path == path)
}

impl Allowed {
    pub(super) fn holds(self, kind: Kind) -> bool {
        match self {
            Anybody => true,
            These(kinds) => kinds.contains(&kind),
        }
    }
}

/// The permissions as docs/security.md shows them: a row per path, and a column per kind of token.
pub fn access_table() -> String {
    let mut lines = vec![
        format!("| | none |{}|", Kind::ALL.map(|kind| format!(" {} ", kind.word())).join("|")),
        format!("|---|---|{}|", Kind::ALL.map(|_| "---").join("|")),
    ];
    for rule in RULES {
        let mark = |allowed: bool| if allowed { " yes " } else { " " };
        let none = mark(matches!(rule.allowed, Anybody));
        let cells = Kind::ALL.map(|kind| mark(rule.allowed.holds(kind))).join("|");
        let path = rule.path.trim_start_matches("/trainmaster.v1.").trim_start_matches("/grpc.");
        lines.push(format!("| `{path}` |{none}|{cells}|"));
    }
    lines.join("\n")
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use prost::Message as _;
    use tonic_reflection::pb::v1::FILE_DESCRIPTOR_SET as REFLECTION;

    use super::*;

    /// Every method in a set of descriptors.
    fn methods(set: &[u8]) -> BTreeSet<String> {
        let set = prost_types::FileDescriptorSet::decode(set).unwrap();
        let services =
            set.file.iter().flat_map(|file| file.service.iter().map(move |service| (file.package(), service)));
        let methods = services.flat_map(|(package, service)| {
            service.method.iter().map(move |method| format!("/{package}.{}/{}", service.name(), method.name()))
        });
        methods.collect()
    }

    #[test]
    fn every_method_has_a_rule_and_every_rule_a_method() {
        let own = methods(trainmaster_proto::DESCRIPTORS);
        let ruled: BTreeSet<String> = RULES.iter().map(|rule| rule.path.to_owned()).collect();
        assert_eq!(own.difference(&ruled).collect::<Vec<_>>(), Vec::<&String>::new());
        let known: BTreeSet<String> =
            [trainmaster_proto::DESCRIPTORS, tonic_health::pb::FILE_DESCRIPTOR_SET, REFLECTION]
                .into_iter()
                .flat_map(methods)
                .chain(["/", "/metrics", "/jobs"].map(str::to_owned))
                .collect();
        let strange: Vec<_> = ruled.difference(&known).filter(|path| !path.contains("v1alpha")).collect();
        assert!(strange.is_empty(), "{strange:?}");
        assert_eq!(ruled.len(), RULES.len(), "a rule stands twice");
    }
}

//! Access: tokens and certificates, the calls that each permits, and the jobs that its holder sees.

mod keeper;
mod rules;
mod tokens;

use std::{net::SocketAddr, sync::Arc, time::Duration};

use serde::{Deserialize, Serialize};
use tokio::time::sleep;
use tonic::{Request, Status};
use trainmaster_core::{Job, JobSpec};
use trainmaster_feed::hash_of;
use trainmaster_net::Standing;
use trainmaster_proto::v1;

pub(crate) use self::{
    keeper::{Keeper, KeeperLimits},
    tokens::{Known, TokenError, Tokens},
};
pub use self::{
    rules::access_table,
    tokens::{ADMIN_TOKEN, check_tokens},
};

/// The permissions of a caller.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "role", rename_all = "lowercase")]
pub enum Role {
    /// Everything.
    Admin,
    /// Submits jobs of these tenants, and controls them.
    Submit {
        /// At least one.
        tenants: Vec<String>,
    },
    /// The calls of one cluster manager's adapter.
    Manager {
        /// The manager's name. None for adapters inside the daemon, which may use any name.
        #[serde(rename = "manager")]
        name: Option<String>,
    },
    /// Reads everything and changes nothing.
    Read,
    /// Reads the metrics.
    Metrics,
}

/// A role without its parameters.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Kind {
    Admin,
    Submit,
    Manager,
    Read,
    Metrics,
    /// A job's own programs, by the job's token.
    Job,
}

impl Kind {
    pub(crate) const ALL: [Self; 6] = [Self::Metrics, Self::Read, Self::Job, Self::Submit, Self::Manager, Self::Admin];

    pub(crate) fn word(self) -> &'static str {
        match self {
            Self::Admin => "admin",
            Self::Submit => "submit",
            Self::Manager => "manager",
            Self::Read => "read",
            Self::Metrics => "metrics",
            Self::Job => "job",
        }
    }
}

impl Role {
    pub(crate) fn kind(&self) -> Kind {
        match self {
            Self::Admin => Kind::Admin,
            Self::Submit { .. } => Kind::Submit,
            Self::Manager { .. } => Kind::Manager,
            Self::Read => Kind::Read,
            Self::Metrics => Kind::Metrics,
        }
    }

    /// An administrator or an adapter inside the daemon.
    pub(crate) fn is_trusted(&self) -> bool {
        matches!(self, Self::Admin | Self::Manager { name: None })
    }

    /// Parses a role from a request.
    ///
    /// # Errors
    /// A parameter is missing, or doesn't belong to the role.
    pub fn of(role: v1::TokenRole, mut tenants: Vec<String>, manager: String) -> Result<Self, String> {
        use v1::TokenRole as Wire;
        let plain = |what: &str, name: &String| {
            let problem = || format!("{what} {name:.100?} must be 1 to 128 letters, digits, '.', '_' or '-'");
            is_name(name).then_some(()).ok_or_else(problem)
        };
        tenants.iter().try_for_each(|tenant| plain("tenant", tenant))?;
        tenants.sort();
        tenants.dedup();
        if tenants.len() > MOST_TENANTS {
            return Err(format!("{} tenants must be at most {MOST_TENANTS}", tenants.len()));
        }
        if !tenants.is_empty() && role != Wire::Submit {
            return Err("tenants belong to the role submit".into());
        }
        if !manager.is_empty() && role != Wire::Manager {
            return Err("a manager's name belongs to the role manager".into());
        }
        match role {
            Wire::Admin => Ok(Self::Admin),
            Wire::Submit if tenants.is_empty() => Err("the role submit needs a tenant".into()),
            Wire::Submit => Ok(Self::Submit { tenants }),
            Wire::Manager if manager.is_empty() => Err("the role manager needs the manager's name".into()),
            Wire::Manager => {
                plain("manager", &manager)?;
                Ok(Self::Manager { name: Some(manager) })
            }
            Wire::Read => Ok(Self::Read),
            Wire::Metrics => Ok(Self::Metrics),
            Wire::Unspecified => Err("role: must be admin, submit, manager, read or metrics".into()),
        }
    }

    /// Parses the name in a client's certificate: `trainmaster://submit/NAME?tenant=A&tenant=B`.
    pub(crate) fn of_uri(uri: &str) -> Option<(Self, &str)> {
        let rest = uri.strip_prefix("trainmaster://")?;
        let (path, query) = rest.split_once('?').unwrap_or((rest, ""));
        let (role, name) = path.split_once('/')?;
        let pairs = || query.split('&').filter_map(|pair| pair.split_once('='));
        let tenants: Vec<String> = pairs().filter(|(key, _)| *key == "tenant").map(|(_, of)| of.to_owned()).collect();
        let role = match role {
            "admin" => v1::TokenRole::Admin,
            "submit" => v1::TokenRole::Submit,
            "manager" => v1::TokenRole::Manager,
            "read" => v1::TokenRole::Read,
            "metrics" => v1::TokenRole::Metrics,
            _ => return None,
        };
        let manager = if role == v1::TokenRole::Manager { name.to_owned() } else { String::new() };
        let known = is_name(name).then(|| Self::of(role, tenants, manager).ok())??;
        Some((known, name))
    }

    /// The name in a client's certificate.
    pub fn uri(&self, name: &str) -> String {
        let tenants = match self {
            Self::Submit { tenants } => tenants.iter().map(|tenant| format!("tenant={tenant}")).collect::<Vec<_>>(),
            _ => Vec::new(),
        };
        let query = if tenants.is_empty() { String::new() } else { format!("?{}", tenants.join("&")) };
        format!("trainmaster://{}/{name}{query}", self.kind().word())
    }
}

/// Whether a name of a tenant or manager is valid: letters, digits, `.`, `_` and `-`.
pub fn is_name(name: &str) -> bool {
    (1..=128).contains(&name.len()) && name.chars().all(|c| c.is_ascii_alphanumeric() || "._-".contains(c))
}

/// The caller of a request.
#[derive(Clone, Debug)]
pub(crate) struct Who {
    /// Its permissions.
    pub(crate) role: Role,
    /// The text for audits: its address and its token or certificate.
    pub(crate) words: Arc<str>,
    /// The hash of its token.
    shown: Option<(Tokens, [u8; 32])>,
}

/// The separator between the address and the token or certificate.
const WITH: &str = " with ";
/// The token or certificate in a text for audits.
pub(crate) fn whose(words: &str) -> &str {
    words.split_once(WITH).map_or(words, |(_, whose)| whose)
}

/// Maximum number of tenants per token.
const MOST_TENANTS: usize = 256;
/// Interval of checks whether the token of an open stream is still valid.
const LOOK: Duration = Duration::from_secs(1);

impl Who {
    pub(crate) fn new(role: Role, address: SocketAddr, name: &str) -> Self {
        let words = format!("{address}{WITH}{name} ({})", role.kind().word()).into();
        Self { role, words, shown: None }
    }

    /// An adapter in this process.
    pub(crate) fn inside(adapter: &str) -> Self {
        let role = Role::Manager { name: None };
        let words = format!("this process{WITH}adapter {adapter} ({})", role.kind().word()).into();
        Self { role, words, shown: None }
    }

    /// Its token or certificate, without its address.
    pub(crate) fn whose(&self) -> &str {
        whose(&self.words)
    }

    /// Adds the token of the caller.
    pub(crate) fn with(self, tokens: Tokens, token: &str) -> Self {
        Self { shown: Some((tokens, hash_of(token))), ..self }
    }

    /// The check whether its token is still valid, for its connection.
    pub(crate) fn standing(&self) -> Option<Standing> {
        let (tokens, hash) = self.shown.clone()?;
        Some(Standing::new(move || tokens.counts(hash)))
    }

    /// Waits until its access ends: its token is revoked, rotated or expired. A certificate is valid as long as its
    /// connection.
    pub(crate) async fn over(&self) -> Status {
        let Some((tokens, hash)) = &self.shown else { return std::future::pending().await };
        while tokens.find_hash(*hash).is_some() {
            sleep(LOOK).await;
        }
        Status::unauthenticated("the token of this stream was revoked or rotated, or has run out")
    }

    /// The caller of a request.
    ///
    /// # Errors
    /// The access check didn't run, which only a bug can cause.
    pub(crate) fn of<T>(request: &Request<T>) -> Result<Self, Status> {
        let who = request.extensions().get::<Self>().cloned();
        who.ok_or_else(|| Status::internal("nobody asked who calls"))
    }

    /// The jobs that it sees.
    pub(crate) fn scope(&self) -> Scope {
        match &self.role {
            Role::Submit { tenants } => Scope::Tenants(tenants.clone().into()),
            Role::Manager { name: Some(name) } => Scope::Cluster(name.as_str().into()),
            _ => Scope::All,
        }
    }

    /// Sets the tenant and the cluster of a submission to the submitter's.
    ///
    /// # Errors
    /// The submission names another tenant or cluster.
    pub(crate) fn own(&self, spec: &mut JobSpec, cluster: Option<&str>) -> Result<(), Status> {
        match &self.role {
            Role::Submit { tenants } => {
                let unsaid = spec.tenant == "default" && !tenants.contains(&spec.tenant);
                match &tenants[..] {
                    [one] if unsaid => spec.tenant.clone_from(one),
                    _ if tenants.contains(&spec.tenant) => {}
                    _ if unsaid => {
                        let allowed = tenants.join(", ");
                        let problem =
                            format!("tenant: the job has to name one of {allowed}, for whom this token submits");
                        return Err(Status::permission_denied(problem));
                    }
                    _ => {
                        let (given, allowed) = (&spec.tenant, tenants.join(", "));
                        let problem = format!("tenant: {given:?} must be {allowed}: this token submits for no other");
                        return Err(Status::permission_denied(problem));
                    }
                }
                Ok(())
            }
            Role::Manager { name: Some(name) } if cluster != Some(name) => {
                let cluster = cluster.map_or("no cluster".to_owned(), |cluster| format!("{cluster:?}"));
                let problem = format!(
                    "the job is from {cluster} (external.cluster) and must be from {name:?}, the manager whose token \
                     this is"
                );
                Err(Status::permission_denied(problem))
            }
            _ => Ok(()),
        }
    }
}

/// The jobs that a caller sees.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Scope {
    All,
    /// The jobs of these tenants.
    Tenants(Arc<[String]>),
    /// The jobs that came from this cluster.
    Cluster(Arc<str>),
}

impl Scope {
    pub(crate) fn sees(&self, tenant: &str, cluster: Option<&str>) -> bool {
        match self {
            Self::All => true,
            Self::Tenants(tenants) => tenants.iter().any(|of| of == tenant),
            Self::Cluster(name) => cluster == Some(name),
        }
    }

    pub(crate) fn sees_job(&self, job: &Job) -> bool {
        self.sees(&job.spec.tenant, job.external.as_ref().map(|external| external.cluster.as_str()))
    }

    pub(crate) fn sees_status(&self, status: &v1::JobStatus) -> bool {
        self.sees(&status.tenant, status.external.as_ref().map(|external| external.cluster.as_str()))
    }

    /// The text for a job that isn't found in it.
    pub(crate) fn words(&self) -> String {
        match self {
            Self::All => String::new(),
            Self::Tenants(tenants) => format!(" of tenant {}", tenants.join(", ")),
            Self::Cluster(name) => format!(" from {name}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn submit(tenants: &[&str]) -> Role {
        Role::Submit { tenants: tenants.iter().map(|tenant| (*tenant).to_owned()).collect() }
    }

    #[test]
    fn a_certificates_name_says_what_its_holder_may() {
        for (role, name) in [
            (Role::Admin, "alice"),
            (submit(&["vision"]), "ci"),
            (submit(&["nlp", "vision"]), "ci"),
            (Role::Manager { name: Some("yarn-a".into()) }, "yarn-a"),
            (Role::Read, "bob"),
            (Role::Metrics, "prometheus"),
        ] {
            assert_eq!(Role::of_uri(&role.uri(name)), Some((role.clone(), name)));
        }
        for strange in [
            "",
            "https://admin/alice",
            "trainmaster://admin",
            "trainmaster://admin/",
            "trainmaster://admin/a b",
            "trainmaster://root/alice",
            "trainmaster://submit/ci",
            "trainmaster://submit/ci?tenant=",
            "trainmaster://submit/ci?tenant=a b",
            "trainmaster://admin/alice?tenant=a",
            "trainmaster://ADMIN/alice",
        ] {
            assert_eq!(Role::of_uri(strange), None, "{strange}");
        }
    }

    #[test]
    fn nobody_submits_for_another_tenant_or_cluster() {
        let who = |role: Role| Who::new(role, "127.0.0.1:1".parse().unwrap(), "token a");
        let own = |role: Role, tenant: &str, cluster: Option<&str>| {
            let mut spec = JobSpec { tenant: tenant.into(), ..JobSpec::minimal("a") };
            who(role).own(&mut spec, cluster).map(|()| spec.tenant).map_err(|status| status.code())
        };
        let denied = Err(tonic::Code::PermissionDenied);
        assert_eq!(own(submit(&["vision"]), "default", None), Ok("vision".into()));
        assert_eq!(own(submit(&["vision"]), "vision", None), Ok("vision".into()));
        assert_eq!(own(submit(&["vision"]), "nlp", None), denied);
        assert_eq!(own(submit(&["vision", "nlp"]), "default", None), denied);
        assert_eq!(own(submit(&["default", "nlp"]), "default", None), Ok("default".into()));
        let yarn = || Role::Manager { name: Some("yarn".into()) };
        assert_eq!(own(yarn(), "anybody", Some("yarn")), Ok("anybody".into()));
        assert_eq!(own(yarn(), "anybody", Some("ray")), denied);
        assert_eq!(own(yarn(), "anybody", None), denied);
        assert_eq!(own(Role::Manager { name: None }, "anybody", Some("ray")), Ok("anybody".into()));
        assert_eq!(own(Role::Admin, "anybody", None), Ok("anybody".into()));
    }

    #[test]
    fn a_scope_shows_its_own() {
        let tenants = who_scope(submit(&["a", "b"]));
        assert!(tenants.sees("a", None) && !tenants.sees("c", Some("a")));
        let cluster = who_scope(Role::Manager { name: Some("yarn".into()) });
        assert!(cluster.sees("a", Some("yarn")) && !cluster.sees("a", None) && !cluster.sees("yarn", Some("ray")));
        assert!(who_scope(Role::Read).sees("a", None));
    }

    fn who_scope(role: Role) -> Scope {
        Who::new(role, "127.0.0.1:1".parse().unwrap(), "a").scope()
    }
}

//! `trainmaster token`: the tokens of callers.

use std::path::{Path, PathBuf};

use anyhow::{anyhow, bail};
use clap::{Args, Subcommand};
use serde::Serialize;
use trainmaster_core::amount::parse_span;
use trainmaster_net::secret;
use trainmaster_proto::v1::{
    CreateTokenReply, CreateTokenRequest, ListTokensRequest, RevokeTokenRequest, RotateTokenRequest, Token, TokenRole,
};
use trainmaster_terminal::{
    Answered, Failure, Output, Paper, Show,
    client::{Daemon, ServerArgs},
    output::left,
    sheet::{Column, Entry, Sheet},
};

use super::{act::unwritten, certs::RoleName};

/// The commands for tokens.
#[derive(Subcommand, Debug)]
pub(crate) enum TokenCommand {
    /// Make a token; its secret is shown once, and only its hash is kept
    Create(Answered<CreateArgs>),
    /// List the tokens without their secrets
    List(Answered<ListArgs>),
    /// Replace the secret of a token; `admin` is the administrator's own
    Rotate(Answered<RotateArgs>),
    /// Revoke a token at once
    Revoke(Answered<RevokeArgs>),
}

#[derive(Args, Debug)]
pub(crate) struct CreateArgs {
    /// Name of the token
    name: String,
    /// Role of the token
    #[arg(long, value_enum)]
    role: RoleName,
    /// Tenant whose jobs it may submit, with the role submit; may be repeated
    #[arg(long, value_name = "TENANT")]
    tenant: Vec<String>,
    /// Name of the manager, with the role manager
    #[arg(long, value_name = "NAME")]
    manager: Option<String>,
    /// Lifetime, such as 90d [default: unlimited]
    #[arg(long, value_name = "TIME", value_parser = life)]
    lasts: Option<i64>,
    #[command(flatten)]
    secret: SecretArgs,
}

#[derive(Args, Debug)]
pub(crate) struct RotateArgs {
    /// Name of the token
    name: String,
    /// Time for which the old secret stays valid, such as 1h
    #[arg(long, value_name = "TIME", value_parser = span)]
    overlap: Option<i64>,
    #[command(flatten)]
    secret: SecretArgs,
}

#[derive(Args, Debug)]
pub(crate) struct RevokeArgs {
    /// Name of the token
    name: String,
}

#[derive(Args, Debug)]
pub(crate) struct ListArgs {}

/// Source and destination of a secret.
#[derive(Args, Debug)]
pub(crate) struct SecretArgs {
    /// Write the secret into this file, readable by its owner alone, instead of printing it
    #[arg(long, value_name = "FILE")]
    out: Option<PathBuf>,
    /// Read the secret from this file, instead of a random one
    #[arg(long, value_name = "FILE", conflicts_with = "out")]
    secret_file: Option<PathBuf>,
}

fn span(text: &str) -> Result<i64, String> {
    parse_span(text).map(|span| span.0).map_err(|error| error.to_string())
}

/// Parses a limited lifetime.
fn life(text: &str) -> Result<i64, String> {
    match span(text)? {
        0 => Err("it would never count; leave it out for a token that counts for good".into()),
        life => Ok(life),
    }
}

impl SecretArgs {
    /// Checks that the secret can be written to its file, before there is a secret.
    fn check_out(&self, is_new: bool) -> anyhow::Result<()> {
        let Some(path) = &self.out else { return Ok(()) };
        let shown = path.display();
        if path.is_dir() {
            bail!("--out {shown}: it is a folder");
        }
        if is_new && path.exists() {
            bail!("--out {shown}: it is there already, and perhaps holds another secret; name a new file");
        }
        let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."));
        let there = tempfile::Builder::new().prefix(".token-").tempfile_in(folder);
        there.map(drop).map_err(|error| anyhow!("--out {shown}: {error}"))
    }

    fn given(&self) -> anyhow::Result<String> {
        let read = |path: &PathBuf| secret::read(path).map_err(|problem| anyhow!("--secret-file {problem}"));
        Ok(self.secret_file.as_ref().map(read).transpose()?.unwrap_or_default())
    }

    /// Shows the new token. The secret goes to its destination.
    fn show(&self, reply: CreateTokenReply, output: Output) -> Result<(), Failure> {
        let CreateTokenReply { token, secret } = reply;
        let name = token.map(|token| token.name).unwrap_or_default();
        let file = self.out.as_ref().or(self.secret_file.as_ref());
        if let Some(path) = &self.out {
            let written = secret::write(path, &format!("{secret}\n"));
            written.map_err(|error| anyhow!("--out {}: {error}; rotate {name} to try again", path.display()))?;
        }
        let secret = if file.is_some() { None } else { Some(secret) };
        output.show(&Shown { name, secret, file: file.cloned() })
    }
}

/// Runs the command.
///
/// # Errors
/// The daemon's.
pub(crate) async fn run(
    command: &TokenCommand,
    server: &ServerArgs,
    output: impl Fn(bool) -> Output,
) -> Result<(), Failure> {
    let daemon = Daemon::connect(server).await?;
    let failure = |status| daemon.failure(&status);
    let mut admin = daemon.admin();
    match command {
        TokenCommand::Create(Answered { args, json }) => {
            args.secret.check_out(true)?;
            let request = CreateTokenRequest {
                name: args.name.clone(),
                role: TokenRole::from(args.role).into(),
                tenants: args.tenant.clone(),
                manager: args.manager.clone().unwrap_or_default(),
                lasts_ms: args.lasts.unwrap_or(0),
                secret: args.secret.given()?,
            };
            args.secret.show(admin.create_token(request).await.map_err(failure)?.into_inner(), output(*json))
        }
        TokenCommand::Rotate(Answered { args, json }) => {
            args.secret.check_out(false)?;
            let request = RotateTokenRequest {
                name: args.name.clone(),
                overlap_ms: args.overlap.unwrap_or(0),
                secret: args.secret.given()?,
            };
            args.secret.show(admin.rotate_token(request).await.map_err(failure)?.into_inner(), output(*json))
        }
        TokenCommand::Revoke(Answered { args, json }) => {
            let request = RevokeTokenRequest { name: args.name.clone() };
            let not_written = admin.revoke_token(request).await.map_err(failure)?.into_inner().not_written;
            output(*json).show(&Revoked { name: args.name.clone(), not_written })
        }
        TokenCommand::List(Answered { args: ListArgs {}, json }) => {
            let reply = admin.list_tokens(ListTokensRequest {}).await.map_err(failure)?;
            output(*json).show(&List(reply.into_inner().tokens.into_iter().map(Row::from).collect()))
        }
    }
}

#[derive(Serialize)]
struct Shown {
    name: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    secret: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    file: Option<PathBuf>,
}

impl Show for Shown {
    fn text(&self, _: &Paper) -> String {
        match (&self.secret, &self.file) {
            // Alone on its line, for `$(…)`.
            (Some(secret), _) => secret.clone(),
            (None, file) => {
                let file = file.as_ref().map(|file| file.display().to_string()).unwrap_or_default();
                format!("token {}: its secret is in {file}", self.name)
            }
        }
    }
}

#[derive(Serialize)]
struct Revoked {
    name: String,
    #[serde(skip_serializing_if = "String::is_empty")]
    not_written: String,
}

impl Show for Revoked {
    fn text(&self, _: &Paper) -> String {
        format!("token {} revoked{}", self.name, unwritten(&self.not_written))
    }
}

#[derive(Serialize)]
#[serde(transparent)]
struct List(Vec<Row>);

#[derive(Serialize)]
struct Row {
    name: String,
    role: String,
    tenants: Vec<String>,
    manager: Option<String>,
    created_ms: i64,
    expires_ms: Option<i64>,
    used_ms: Option<i64>,
}

impl From<Token> for Row {
    fn from(token: Token) -> Self {
        let role = token.role().as_str_name().trim_start_matches("TOKEN_ROLE_").to_lowercase();
        let Token { name, tenants, manager, created_ms, expires_ms, used_ms, .. } = token;
        let manager = Some(manager).filter(|manager| !manager.is_empty());
        Self { name, role, tenants, manager, created_ms, expires_ms, used_ms }
    }
}

impl Show for List {
    fn text(&self, paper: &Paper) -> String {
        let mut sheet = Sheet::new([
            Column::key("NAME"),
            Column::key("ROLE"),
            Column::key("FOR"),
            Column::spare("EXPIRES", 2),
            Column::spare("USED", 1),
        ]);
        for row in &self.0 {
            let whose = row.manager.clone().unwrap_or_else(|| row.tenants.join(", "));
            let expires = row.expires_ms.map_or_else(
                || "–".into(),
                |at| left(at).map_or_else(|| "expired".into(), |left| format!("in {left}")),
            );
            let used = row.used_ms.map_or_else(|| "–".into(), trainmaster_terminal::output::ago);
            sheet.row([&row.name, &row.role, &whose, &expires, &used].map(Entry::from));
        }
        sheet.on(paper)
    }
}

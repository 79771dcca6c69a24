//! The ResourceManager's REST API.

use std::time::Duration;

use bytes::Bytes;
use reqwest::{
    Method, RequestBuilder,
    header::{ACCEPT, CONTENT_TYPE},
};
use serde::{Deserialize, de::DeserializeOwned};
use thiserror::Error;
use tokio::time::timeout;

use crate::http::{self, Site};

const ANSWER: Duration = Duration::from_secs(10);
/// The same for a single request. Whoever made it would have to repeat it.
const SINGLE: Duration = Duration::from_secs(60);
/// Maximum size of an answer. Ten thousand nodes need about 40 MiB.
const MOST_BYTES: usize = 128 << 20;
/// Maximum number of characters of a refusal's text.
const MOST_SAID: usize = 300;

/// A ResourceManager's description of itself.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Found {
    pub(crate) version: String,
    /// The state: started, standby, …
    pub(crate) state: String,
    /// Its settings, by name; empty if they can't be read.
    pub(crate) settings: Vec<(String, String)>,
}

impl Found {
    /// A setting's value.
    pub(crate) fn setting(&self, name: &str) -> Option<&str> {
        self.settings.iter().find(|(known, _)| known == name).map(|(_, value)| value.as_str())
    }
}

/// Queries a ResourceManager for its version and its settings.
///
/// # Errors
/// There is no answer, or it isn't a ResourceManager's.
pub(crate) async fn look(site: Site) -> Result<Found, String> {
    let mut client = Client::new(site);
    let Info { cluster_info } = client.read("/ws/v1/cluster/info").await.map_err(|error| error.to_string())?;
    let settings = client.settings().await;
    Ok(Found { version: cluster_info.hadoop_version, state: cluster_info.state, settings })
}

/// Sends JSON to the ResourceManager. Returns the answer.
///
/// # Errors
/// There is no answer, or the ResourceManager refuses, with its reason.
pub(crate) async fn call(site: Site, method: Method, path: &str, json: String) -> Result<Bytes, RestError> {
    let mut client = Client { patience: SINGLE, ..Client::new(site) };
    client.call(method, path, json).await
}

/// Whether a text is an application's id, such as `application_1700000000000_0001`.
pub(crate) fn is_application(id: &str) -> bool {
    let numbers = id.strip_prefix("application_").and_then(|rest| rest.split_once('_'));
    let is_number = |text: &str| !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
    numbers.is_some_and(|(started, number)| is_number(started) && is_number(number))
}

/// Why there is no usable answer.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub(crate) enum RestError {
    /// The ResourceManager refuses, with its reason.
    #[error("{reason}")]
    Refused { reason: String },
    /// There is no answer, or it is invalid.
    #[error("{at}: {problem}")]
    Away { at: String, problem: String },
}

impl RestError {
    /// A refusal by this adapter itself.
    pub(crate) fn refused(reason: String) -> Self {
        Self::Refused { reason }
    }

    pub(crate) fn is_refused(&self) -> bool {
        matches!(self, Self::Refused { .. })
    }
}

/// A client of a ResourceManager. Requests are sent one after another. Those that only read may be sent twice.
pub(crate) struct Client {
    http: http::Client,
    /// Maximum wait for an answer.
    pub(crate) patience: Duration,
}

impl Client {
    pub(crate) fn new(site: Site) -> Self {
        Self { http: http::Client::new(site), patience: ANSWER }
    }

    /// Sends a GET request and parses the answer.
    ///
    /// # Errors
    /// There is no answer, the ResourceManager refuses, or the answer is invalid.
    pub(crate) async fn read<T: DeserializeOwned>(&mut self, path: &str) -> Result<T, RestError> {
        let body = self.call(Method::GET, path, String::new()).await?;
        serde_json::from_slice(&body).map_err(|error| self.away(path, error.to_string()))
    }

    /// Reads the settings, by name. Returns none if access rules hide them.
    pub(crate) async fn settings(&mut self) -> Vec<(String, String)> {
        let Configuration { properties } = self.read("/conf").await.unwrap_or_default();
        properties.into_iter().map(|property| (property.key, property.value.unwrap_or_default())).collect()
    }

    /// Sends JSON. Returns the answer.
    ///
    /// # Errors
    /// There is no answer, or the ResourceManager refuses, with its reason.
    pub(crate) async fn call(&mut self, method: Method, path: &str, json: String) -> Result<Bytes, RestError> {
        let is_put = method == Method::PUT;
        let fill = |request: RequestBuilder| {
            request.header(ACCEPT, "application/json").header(CONTENT_TYPE, "application/json").body(json.clone())
        };
        let sent = timeout(self.patience, self.http.send(method, path, fill, MOST_BYTES)).await;
        let sent = sent.map_err(|_| self.away(path, format!("no answer within {:?}", self.patience)))?;
        let (status, body) = sent.map_err(|error| self.away(path, error.to_string()))?;
        if status.is_success() {
            return Ok(body);
        }
        // If the answer is the ResourceManager's own, its reason is returned.
        if let Ok(Refused { remote_exception: RemoteException { message, exception } }) = serde_json::from_slice(&body)
        {
            let reason = message.or(exception).unwrap_or_else(|| status.to_string());
            return Err(RestError::Refused { reason });
        }
        // A missing permission or an invalid state is reported in plain text.
        if is_put && status.is_client_error() {
            let said: String = String::from_utf8_lossy(&body).trim().chars().take(MOST_SAID).collect();
            return Err(RestError::Refused { reason: format!("{status}: {said}") });
        }
        Err(self.away(path, status.to_string()))
    }

    fn away(&self, path: &str, problem: String) -> RestError {
        RestError::Away { at: format!("{}{path}", self.http.site), problem }
    }
}

#[derive(Deserialize)]
struct Refused {
    #[serde(rename = "RemoteException")]
    remote_exception: RemoteException,
}

#[derive(Deserialize)]
struct RemoteException {
    message: Option<String>,
    exception: Option<String>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Info {
    cluster_info: ClusterInfo,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct ClusterInfo {
    state: String,
    hadoop_version: String,
}

#[derive(Deserialize, Default)]
struct Configuration {
    properties: Vec<Property>,
}

#[derive(Deserialize)]
struct Property {
    key: String,
    value: Option<String>,
}

#[cfg(test)]
mod tests {
    use tokio::{
        io::{AsyncReadExt, AsyncWriteExt},
        net::TcpListener,
    };

    use super::*;

    async fn serve(answers: Vec<(&'static str, &'static str)>) -> String {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap().to_string();
        tokio::spawn(async move {
            loop {
                let (mut stream, _) = listener.accept().await.unwrap();
                let mut asked = Vec::new();
                while !asked.ends_with(b"\r\n\r\n") {
                    asked.push(stream.read_u8().await.unwrap());
                }
                let asked = String::from_utf8(asked).unwrap();
                let found = answers.iter().find(|(path, _)| asked.starts_with(&format!("GET {path} ")));
                let (status, body) = found.map_or(("403 Forbidden", ""), |(_, body)| ("200 OK", body));
                let answer = format!("HTTP/1.1 {status}\r\ncontent-length: {}\r\n\r\n{body}", body.len());
                stream.write_all(answer.as_bytes()).await.unwrap();
            }
        });
        address
    }

    const INFO: (&str, &str) = (
        "/ws/v1/cluster/info",
        r#"{"clusterInfo": {"id": 1, "state": "STARTED", "haState": "ACTIVE", "hadoopVersion": "3.5.0"}}"#,
    );

    #[tokio::test]
    async fn version_and_settings_are_found() {
        let settings = r#"{"properties": [{"key": "a", "value": "1", "isFinal": false}, {"key": "b"}]}"#;
        let found = look(Site::plain(serve(vec![INFO, ("/conf", settings)]).await)).await.unwrap();
        assert_eq!((found.version.as_str(), found.state.as_str()), ("3.5.0", "STARTED"));
        assert_eq!((found.setting("a"), found.setting("b"), found.setting("c")), (Some("1"), Some(""), None));
        let hidden = look(Site::plain(serve(vec![INFO]).await)).await.unwrap();
        assert_eq!(hidden.settings, []);
    }

    #[tokio::test]
    async fn troubles_say_where_and_what() {
        let forbidden = serve(vec![]).await;
        let other = serve(vec![("/ws/v1/cluster/info", "<html>")]).await;
        for (address, part) in [(forbidden, "403"), (other, "expected value"), ("127.0.0.1:1".into(), "refused")] {
            let error = look(Site::plain(address.clone())).await.unwrap_err();
            assert!(error.contains(&format!("http://{address}/ws/v1/cluster/info")), "{error}");
            assert!(error.contains(part), "{error}");
        }
    }
}

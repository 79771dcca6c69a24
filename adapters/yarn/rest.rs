//! The ResourceManager's REST API.

use std::time::Duration;

use http_body_util::{BodyExt, Full, Limited};
use hyper::{
    Method, Request, StatusCode,
    body::Bytes,
    client::conn::http1,
    header::{ACCEPT, CONTENT_TYPE, HOST},
};
use hyper_util::rt::TokioIo;
use serde::{Deserialize, de::DeserializeOwned};
use tokio::{net::TcpStream, time::timeout};

const ANSWER: Duration = Duration::from_secs(10);
const MOST_BYTES: usize = 16 << 20;

/// What a ResourceManager says of itself.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Found {
    pub(crate) version: String,
    /// Started, standby, …
    pub(crate) state: String,
    /// Its settings, by name; empty where they can't be seen.
    pub(crate) settings: Vec<(String, String)>,
}

impl Found {
    /// A setting's value.
    pub(crate) fn setting(&self, name: &str) -> Option<&str> {
        self.settings.iter().find(|(known, _)| known == name).map(|(_, value)| value.as_str())
    }
}

/// Asks a ResourceManager at `host:port` for its version and its settings.
///
/// # Errors
/// Nobody answers, or not as a ResourceManager.
pub(crate) async fn look(address: &str) -> Result<Found, String> {
    let Info { cluster_info } = ask(address, "/ws/v1/cluster/info").await?;
    // Hidden behind access rules at some sites.
    let Configuration { properties } = ask(address, "/conf").await.unwrap_or_default();
    Ok(Found {
        version: cluster_info.hadoop_version,
        state: cluster_info.state,
        settings: properties.into_iter().map(|property| (property.key, property.value.unwrap_or_default())).collect(),
    })
}

async fn ask<T: DeserializeOwned>(address: &str, path: &str) -> Result<T, String> {
    let body = call(address, Method::GET, path, String::new()).await?;
    serde_json::from_slice(&body).map_err(|error| format!("http://{address}{path}: {error}"))
}

/// Sends JSON to the ResourceManager at `host:port`; what it answers.
///
/// # Errors
/// Nobody answers, or it refuses, with its reason.
pub(crate) async fn call(address: &str, method: Method, path: &str, json: String) -> Result<Bytes, String> {
    let fail = |problem: String| format!("http://{address}{path}: {problem}");
    let sent = timeout(ANSWER, send(address, method, path, json)).await;
    let (status, body) =
        sent.map_err(|_| fail(format!("no answer within {ANSWER:?}")))?.map_err(|error| fail(error.to_string()))?;
    if status.is_success() {
        return Ok(body);
    }
    // Where it is the ResourceManager's own answer, its reason is what matters.
    match serde_json::from_slice(&body) {
        Ok(Refused { remote_exception: RemoteException { message } }) => Err(message),
        Err(_) => Err(fail(status.to_string())),
    }
}

async fn send(
    address: &str,
    method: Method,
    path: &str,
    json: String,
) -> Result<(StatusCode, Bytes), Box<dyn std::error::Error + Send + Sync>> {
    let stream = TcpStream::connect(address).await?;
    let (mut sender, connection) = http1::handshake(TokioIo::new(stream)).await?;
    // It ends with the sender.
    tokio::spawn(connection);
    let request = Request::builder().method(method).uri(path).header(HOST, address);
    let request = request.header(ACCEPT, "application/json").header(CONTENT_TYPE, "application/json");
    let answer = sender.send_request(request.body(Full::new(Bytes::from(json)))?).await?;
    let status = answer.status();
    Ok((status, Limited::new(answer.into_body(), MOST_BYTES).collect().await?.to_bytes()))
}

#[derive(Deserialize)]
struct Refused {
    #[serde(rename = "RemoteException")]
    remote_exception: RemoteException,
}

#[derive(Deserialize)]
struct RemoteException {
    message: String,
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
        let found = look(&serve(vec![INFO, ("/conf", settings)]).await).await.unwrap();
        assert_eq!((found.version.as_str(), found.state.as_str()), ("3.5.0", "STARTED"));
        assert_eq!((found.setting("a"), found.setting("b"), found.setting("c")), (Some("1"), Some(""), None));
        let hidden = look(&serve(vec![INFO]).await).await.unwrap();
        assert_eq!(hidden.settings, []);
    }

    #[tokio::test]
    async fn troubles_say_where_and_what() {
        let forbidden = serve(vec![]).await;
        let other = serve(vec![("/ws/v1/cluster/info", "<html>")]).await;
        for (address, part) in [(forbidden, "403"), (other, "expected value"), ("127.0.0.1:1".into(), "refused")] {
            let error = look(&address).await.unwrap_err();
            assert!(error.contains(&format!("http://{address}/ws/v1/cluster/info")), "{error}");
            assert!(error.contains(part), "{error}");
        }
    }
}

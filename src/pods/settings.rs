//! Where the API server is and who asks: the service account of the pod that this runs in, or a kubeconfig.
//!
//! | looked at, in this order | when |
//! |---|---|
//! | `--kubeconfig` | it is given; it must be there |
//! | `KUBECONFIG`, files with `:` between them | it is set; the first file that has an entry wins, files that are not there are skipped |
//! | the service account (`/var/run/secrets/kubernetes.io/serviceaccount`) | `KUBERNETES_SERVICE_HOST` is set, and no `--context` is asked for |
//! | `~/.kube/config` | it is there |
//!
//! Refused, each with a text: what would let somebody else answer (`insecure-skip-tls-verify`, `http://` to another host,
//! no certificate authority), for a wrong answer frees addresses; and what is not done here (`username`,
//! `auth-provider`, `proxy-url`). A proxy of the environment (`HTTPS_PROXY`) is not used.

use std::{
    ffi::OsString,
    fmt, fs, io,
    path::{Path, PathBuf},
};

use base64::{Engine, engine::general_purpose::STANDARD as BASE64};
use hyper::Uri;
use serde::Deserialize;

use super::ApiError;
use crate::pem::{self, Fault};

/// Where Kubernetes puts a pod's credentials.
const SERVICE_ACCOUNT: &str = "/var/run/secrets/kubernetes.io/serviceaccount";

/// What a person chose.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub struct Choice {
    /// `--kubeconfig`.
    pub kubeconfig: Option<PathBuf>,
    /// `--context`.
    pub context: Option<String>,
}

/// What the surroundings say.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Surroundings {
    /// `KUBECONFIG`.
    pub kubeconfig: Option<OsString>,
    /// `HOME`.
    pub home: Option<PathBuf>,
    /// `KUBERNETES_SERVICE_HOST`: a name or an address, IPv6 without brackets.
    pub service_host: Option<String>,
    /// `KUBERNETES_SERVICE_PORT`; 443 without it.
    pub service_port: Option<String>,
    /// The folder of `token` and `ca.crt`.
    pub service_account: PathBuf,
}

impl Surroundings {
    /// Those of this process.
    #[must_use]
    pub fn of_process() -> Self {
        let text = |name| std::env::var_os(name).filter(|value| !value.is_empty());
        Self {
            kubeconfig: text("KUBECONFIG"),
            home: text("HOME").map(PathBuf::from),
            service_host: text("KUBERNETES_SERVICE_HOST").and_then(|host| host.into_string().ok()),
            service_port: text("KUBERNETES_SERVICE_PORT").and_then(|port| port.into_string().ok()),
            service_account: PathBuf::from(SERVICE_ACCOUNT),
        }
    }
}

/// A token or a key; it shows itself to nobody by accident.
#[derive(Clone, Eq, PartialEq)]
pub(super) struct Secret(String);

impl Secret {
    pub(super) fn new(text: impl Into<String>) -> Self {
        Self(text.into())
    }

    pub(super) fn expose(&self) -> &str {
        &self.0
    }
}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Secret(…)")
    }
}

/// Certificates or a key, in a file or in the kubeconfig itself.
#[derive(Clone, Eq, PartialEq)]
pub(super) enum Pem {
    /// Read anew for each connection, for they are renewed in place.
    File(PathBuf),
    /// What a fault calls it, and its text.
    Inline(String, Vec<u8>),
}

impl fmt::Debug for Pem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Pem").field(&self.place()).finish()
    }
}

impl Pem {
    /// The file, or the field.
    pub(super) fn place(&self) -> String {
        match self {
            Self::File(path) => path.display().to_string(),
            Self::Inline(field, _) => field.clone(),
        }
    }

    /// Its text.
    pub(super) fn load(&self) -> Result<Vec<u8>, Fault> {
        match self {
            Self::File(path) => pem::load(path),
            Self::Inline(_, bytes) => Ok(bytes.clone()),
        }
    }
}

/// A client certificate and its key.
pub(super) type Identity = (Pem, Pem);

/// Who asks, if not a client certificate.
#[derive(Clone, Debug, Eq, PartialEq)]
pub(super) enum Auth {
    /// Nobody: a client certificate says it, or the server asks nobody.
    Nothing,
    /// A token.
    Token(Secret),
    /// A file that holds one, and is renewed.
    TokenFile(PathBuf),
    /// A program that prints one.
    Exec(Box<Exec>),
}

/// A program that prints credentials (`client.authentication.k8s.io`).
#[derive(Clone, Eq, PartialEq)]
pub(super) struct Exec {
    /// The kubeconfig and the user, for a fault.
    pub(super) place: String,
    /// `client.authentication.k8s.io/v1` or `/v1beta1`.
    pub(super) version: String,
    pub(super) command: PathBuf,
    pub(super) arguments: Vec<String>,
    pub(super) environment: Vec<(String, String)>,
    /// What it is told of the cluster, as JSON, if it asked to be.
    pub(super) cluster: Option<serde_json::Value>,
    /// What a person does who does not have it.
    pub(super) hint: Option<String>,
}

impl fmt::Debug for Exec {
    /// Arguments and variables may hold secrets.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Exec").field("command", &self.command).finish_non_exhaustive()
    }
}

/// Where an API server is.
#[derive(Clone, Debug, Eq, PartialEq)]
pub(super) struct Server {
    pub(super) secure: bool,
    /// A name or an address, IPv6 without brackets.
    pub(super) host: String,
    pub(super) port: u16,
    /// What stands before `/api`: empty, or `/k8s/clusters/c-1`, without a slash at its end.
    pub(super) path: String,
}

impl Server {
    /// `host:port`, as a URL and the header `Host` have it.
    pub(super) fn authority(&self) -> String {
        match self.host.contains(':') {
            true => format!("[{}]:{}", self.host, self.port),
            false => format!("{}:{}", self.host, self.port),
        }
    }
}

impl fmt::Display for Server {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let scheme = if self.secure { "https" } else { "http" };
        write!(f, "{scheme}://{}{}", self.authority(), self.path)
    }
}

/// How an API server is reached. Its files are read when it is.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Settings {
    pub(super) server: Server,
    /// The name in the server's certificate, if not the host's.
    pub(super) name: Option<String>,
    /// Who signs it; always there with https.
    pub(super) authority: Option<Pem>,
    pub(super) identity: Option<Identity>,
    pub(super) auth: Auth,
    origin: String,
}

impl fmt::Display for Settings {
    /// `https://10.0.0.1:6443 (/root/.kube/config, context admin)`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} ({})", self.server, self.origin)
    }
}

fn settings<T>(text: impl Into<String>) -> Result<T, ApiError> {
    Err(ApiError::Settings(text.into()))
}

impl Settings {
    /// The settings that the module's table finds.
    ///
    /// # Errors
    /// [`ApiError::Settings`]: the file, the field, and what to do.
    pub fn find(choice: &Choice, around: &Surroundings) -> Result<Self, ApiError> {
        let context = choice.context.as_deref();
        if let Some(path) = &choice.kubeconfig {
            return Self::of_files(std::slice::from_ref(path), true, context);
        }
        if let Some(list) = around.kubeconfig.as_ref().filter(|list| !list.is_empty()) {
            let paths: Vec<_> =
                std::env::split_paths(list).filter(|path| !path.as_os_str().is_empty()).collect();
            return Self::of_files(&paths, false, context);
        }
        if let (Some(host), None) = (&around.service_host, context) {
            return Self::of_service_account(host, around);
        }
        let own = around.home.as_ref().map(|home| home.join(".kube/config"));
        match own {
            Some(path) if path.exists() => Self::of_files(&[path], true, context),
            _ => settings(
                "no Kubernetes API is configured: use --kubeconfig, set KUBECONFIG, or run it as a pod with a service \
                 account",
            ),
        }
    }

    fn of_service_account(host: &str, around: &Surroundings) -> Result<Self, ApiError> {
        let host = host.trim_start_matches('[').trim_end_matches(']').to_owned();
        let port = around.service_port.as_deref().unwrap_or("443");
        let Ok(port) = port.parse::<u16>() else {
            return settings(format!("KUBERNETES_SERVICE_PORT is {port:?}, which is no port"));
        };
        let token = around.service_account.join("token");
        if !token.exists() {
            return settings(format!(
                "{}: no such file, and KUBERNETES_SERVICE_HOST is set: give the pod a service account \
                 (automountServiceAccountToken), or use --kubeconfig",
                token.display()
            ));
        }
        Ok(Self {
            server: Server { secure: true, host, port, path: String::new() },
            name: None,
            authority: Some(Pem::File(around.service_account.join("ca.crt"))),
            identity: None,
            auth: Auth::TokenFile(token),
            origin: "the pod's service account".to_owned(),
        })
    }

    fn of_files(paths: &[PathBuf], needed: bool, context: Option<&str>) -> Result<Self, ApiError> {
        let mut files = Vec::new();
        for path in paths {
            let text = match fs::read_to_string(path) {
                Ok(text) => text,
                Err(error) if error.kind() == io::ErrorKind::NotFound && !needed => continue,
                Err(error) => return settings(format!("kubeconfig {}: {error}", path.display())),
            };
            files.push((path.clone(), text));
        }
        if files.is_empty() {
            return settings("KUBECONFIG names no file that is there");
        }
        Self::of_texts(&files, context)
    }

    /// From kubeconfigs, the first of which wins. Relative paths in one are relative to its folder.
    ///
    /// # Errors
    /// [`ApiError::Settings`]: the file, the field, and what to do.
    pub fn of_texts(files: &[(PathBuf, String)], context: Option<&str>) -> Result<Self, ApiError> {
        let mut read = Vec::new();
        for (path, text) in files {
            // By way of a value, which is read elsewhere, too: the reader for a type of its own is large.
            let value = match serde_saphyr::from_str::<serde_json::Value>(text) {
                Ok(value) => value,
                // Its words show lines of the text around the fault, and those hold keys.
                Err(error) => {
                    let place =
                        error.location().map_or_else(String::new, |at| format!(", line {}", at.line()));
                    return settings(format!("{}{place}: this is no YAML", path.display()));
                }
            };
            match serde_json::from_value::<Option<Kubeconfig>>(value) {
                Ok(file) => read.push((path.as_path(), file.unwrap_or_default())),
                // Its words may show what is secret.
                Err(_) => return settings(format!("{}: this is no kubeconfig", path.display())),
            }
        }
        let all = read.iter().map(|(path, _)| path.display().to_string()).collect::<Vec<_>>().join(", ");
        let current =
            read.iter().find_map(|(_, file)| file.current_context.as_deref().filter(|s| !s.is_empty()));
        let Some(name) = context.or(current) else {
            return settings(format!(
                "{all}: no current-context is set: use --context, one of {}",
                contexts(&read)
            ));
        };
        let found = find(&read, |file| &file.contexts, name);
        let Some((path, Some(entry))) = found.map(|(path, entry)| (path, entry.context.as_ref())) else {
            return settings(format!("{all}: no context {name:?}; there is {}", contexts(&read)));
        };
        let Some(wanted) = entry.cluster.as_deref() else {
            return settings(format!("{}: context {name:?} names no cluster", path.display()));
        };
        let found = find(&read, |file| &file.clusters, wanted);
        let Some((path, Some(cluster))) = found.map(|(path, entry)| (path, entry.cluster.as_ref())) else {
            return settings(format!("{all}: no cluster {wanted:?}, which context {name:?} names"));
        };
        let (server, authority, place) = cluster_of(path, wanted, cluster)?;
        let (identity, auth) = match entry.user.as_deref().filter(|user| !user.is_empty()) {
            None => (None, Auth::Nothing),
            Some(wanted) => {
                let found = find(&read, |file| &file.users, wanted);
                let Some((path, Some(user))) = found.map(|(path, entry)| (path, entry.user.as_ref())) else {
                    return settings(format!("{all}: no user {wanted:?}, which context {name:?} names"));
                };
                user_of(path, wanted, user, || cluster_info(&server, cluster, authority.as_ref()))?
            }
        };
        if !server.secure && (identity.is_some() || !matches!(auth, Auth::Nothing)) {
            return settings(format!("{place}, server: credentials are not sent over http://: use https://"));
        }
        let origin = format!("{}, context {name}", path.display());
        Ok(Self { server, name: cluster.tls_server_name.clone(), authority, identity, auth, origin })
    }
}

/// What a program is told of the cluster.
fn cluster_info(server: &Server, cluster: &Cluster, authority: Option<&Pem>) -> serde_json::Value {
    let mut info = serde_json::json!({ "server": server.to_string() });
    if let Some(name) = &cluster.tls_server_name {
        info["tls-server-name"] = name.as_str().into();
    }
    if let Some(bytes) = authority.and_then(|pem| pem.load().ok()) {
        info["certificate-authority-data"] = BASE64.encode(bytes).into();
    }
    info
}

fn cluster_of(path: &Path, name: &str, cluster: &Cluster) -> Result<(Server, Option<Pem>, String), ApiError> {
    let place = format!("{}, cluster {name:?}", path.display());
    if cluster.insecure_skip_tls_verify == Some(true) {
        return settings(format!(
            "{place}, insecure-skip-tls-verify: whoever answers would decide which addresses are free; name the \
             certificate-authority instead"
        ));
    }
    if cluster.proxy_url.as_deref().is_some_and(|url| !url.is_empty()) {
        return settings(format!(
            "{place}, proxy-url: proxies are not supported; name a server that is reached directly"
        ));
    }
    let server = server_of(&place, cluster.server.as_deref().unwrap_or_default())?;
    let authority = pem_of(
        path,
        &place,
        ("certificate-authority", cluster.certificate_authority.as_deref()),
        ("certificate-authority-data", cluster.certificate_authority_data.as_ref()),
    )?;
    if server.secure && authority.is_none() {
        return settings(format!(
            "{place}: certificate-authority is missing: name the file of the CA that signs the server's certificate (the \
             system's CAs are not used)"
        ));
    }
    Ok((server, authority, place))
}

fn server_of(place: &str, text: &str) -> Result<Server, ApiError> {
    let bad = |why: &str| ApiError::Settings(format!("{place}, server: {text:?} {why}"));
    let shape = "is no URL such as https://10.0.0.1:6443";
    if text.contains('@') {
        return Err(ApiError::Settings(format!(
            "{place}, server: there is a user name in the URL; name a user instead"
        )));
    }
    let uri: Uri = text.trim().parse().map_err(|_| bad(shape))?;
    let secure = match uri.scheme_str() {
        Some("https") => true,
        Some("http") => false,
        _ => return Err(bad(shape)),
    };
    let host = uri.host().ok_or_else(|| bad(shape))?.trim_start_matches('[').trim_end_matches(']').to_owned();
    if host.is_empty() || uri.query().is_some() {
        return Err(bad(shape));
    }
    let here =
        host == "localhost" || host.parse::<std::net::IpAddr>().is_ok_and(|address| address.is_loopback());
    if !secure && !here {
        return Err(bad(
            "is http:// to another host: whoever is in between would decide which addresses are free; use https://",
        ));
    }
    let port = uri.port_u16().unwrap_or(if secure { 443 } else { 80 });
    Ok(Server { secure, host, port, path: uri.path().trim_end_matches('/').to_owned() })
}

fn user_of(
    path: &Path,
    name: &str,
    user: &User,
    cluster: impl Fn() -> serde_json::Value,
) -> Result<(Option<Identity>, Auth), ApiError> {
    let place = format!("{}, user {name:?}", path.display());
    let some = |text: &Option<String>| text.clone().filter(|text| !text.is_empty());
    if some(&user.username).is_some() || some(&user.password).is_some() {
        return settings(format!(
            "{place}, username: Kubernetes has no passwords any more; use a token or a client certificate"
        ));
    }
    if user.auth_provider.is_some() {
        return settings(format!(
            "{place}, auth-provider: was removed from Kubernetes; use exec, a token or a certificate"
        ));
    }
    if [&user.as_user, &user.as_uid].into_iter().any(|text| some(text).is_some()) {
        return settings(format!(
            "{place}, as: impersonation is not supported; use the credentials of that user"
        ));
    }
    let cert = pem_of(
        path,
        &place,
        ("client-certificate", user.client_certificate.as_deref()),
        ("client-certificate-data", user.client_certificate_data.as_ref()),
    )?;
    let key = pem_of(
        path,
        &place,
        ("client-key", user.client_key.as_deref()),
        ("client-key-data", user.client_key_data.as_ref()),
    )?;
    let identity = match (cert, key) {
        (Some(cert), Some(key)) => Some((cert, key)),
        (None, None) => None,
        (Some(_), None) => {
            return settings(format!("{place}: there is a client-certificate, and no client-key for it"));
        }
        (None, Some(_)) => {
            return settings(format!("{place}: there is a client-key, and no client-certificate for it"));
        }
    };
    let auth = if let Some(file) = some(&user.token_file) {
        Auth::TokenFile(beside(path, &file))
    } else if let Some(token) = user.token.as_ref().filter(|token| !token.expose().trim().is_empty()) {
        Auth::Token(Secret::new(token.expose().trim()))
    } else if let Some(exec) = &user.exec {
        Auth::Exec(Box::new(exec_of(path, &place, exec, cluster)?))
    } else {
        Auth::Nothing
    };
    Ok((identity, auth))
}

fn exec_of(
    path: &Path,
    place: &str,
    exec: &ExecEntry,
    cluster: impl Fn() -> serde_json::Value,
) -> Result<Exec, ApiError> {
    let place = format!("{place}, exec");
    let version = exec.api_version.clone().unwrap_or_default();
    if !["client.authentication.k8s.io/v1", "client.authentication.k8s.io/v1beta1"]
        .contains(&version.as_str())
    {
        return settings(format!(
            "{place}, apiVersion: {version:?} is not client.authentication.k8s.io/v1 or /v1beta1: update the program and \
             its entry"
        ));
    }
    if exec.interactive_mode.as_deref() == Some("Always") {
        return settings(format!("{place}, interactiveMode: Always: nobody sits here to answer it"));
    }
    let command = exec.command.as_deref().filter(|command| !command.is_empty());
    let Some(command) = command else { return settings(format!("{place}, command: is missing")) };
    Ok(Exec {
        place,
        version,
        // A bare name is looked for in PATH, as kubectl does.
        command: if command.contains('/') { beside(path, command) } else { PathBuf::from(command) },
        arguments: exec.args.clone().unwrap_or_default(),
        environment: exec
            .env
            .iter()
            .flatten()
            .map(|entry| (entry.name.clone(), entry.value.clone()))
            .collect(),
        cluster: (exec.provide_cluster_info == Some(true)).then(cluster),
        hint: exec.install_hint.clone(),
    })
}

/// The text in the kubeconfig before the file, as kubectl has it.
fn pem_of(
    path: &Path,
    place: &str,
    (_, file): (&str, Option<&str>),
    (field, data): (&str, Option<&Secret>),
) -> Result<Option<Pem>, ApiError> {
    if let Some(data) = data.filter(|data| !data.expose().is_empty()) {
        let text: String = data.expose().split_ascii_whitespace().collect();
        let place = format!("{place}, {field}");
        return match BASE64.decode(text) {
            Ok(bytes) => Ok(Some(Pem::Inline(place, bytes))),
            Err(_) => settings(format!("{place}: is not base64")),
        };
    }
    Ok(file.filter(|file| !file.is_empty()).map(|file| Pem::File(beside(path, file))))
}

fn beside(kubeconfig: &Path, file: &str) -> PathBuf {
    kubeconfig.parent().unwrap_or_else(|| Path::new("")).join(file)
}

type Files<'a> = [(&'a Path, Kubeconfig)];

fn find<'a, T: Named>(
    files: &'a Files<'_>,
    list: impl Fn(&Kubeconfig) -> &Option<Vec<T>>,
    name: &str,
) -> Option<(&'a Path, &'a T)> {
    files.iter().find_map(|(path, file)| {
        let entry = list(file).iter().flatten().find(|entry| entry.name() == name)?;
        Some((*path, entry))
    })
}

fn contexts(files: &Files<'_>) -> String {
    let names: Vec<&str> =
        files.iter().flat_map(|(_, file)| file.contexts.iter().flatten().map(Named::name)).collect();
    if names.is_empty() { "none".to_owned() } else { names.join(", ") }
}

trait Named {
    fn name(&self) -> &str;
}

// They hold keys: none of them has a Debug.

macro_rules! entries {
    ($($name:ident: $field:ident, $kind:ty;)*) => {$(
        #[derive(Deserialize)]
        struct $name {
            name: String,
            $field: Option<$kind>,
        }

        impl Named for $name {
            fn name(&self) -> &str {
                &self.name
            }
        }
    )*};
}

entries! {
    NamedContext: context, Context;
    NamedCluster: cluster, Cluster;
    NamedUser: user, User;
}

impl<'de> Deserialize<'de> for Secret {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        String::deserialize(deserializer).map(Self)
    }
}

#[derive(Default, Deserialize)]
#[serde(rename_all = "kebab-case")]
struct Kubeconfig {
    current_context: Option<String>,
    contexts: Option<Vec<NamedContext>>,
    clusters: Option<Vec<NamedCluster>>,
    users: Option<Vec<NamedUser>>,
}

#[derive(Deserialize)]
struct Context {
    cluster: Option<String>,
    user: Option<String>,
}

#[derive(Deserialize)]
#[serde(rename_all = "kebab-case")]
struct Cluster {
    server: Option<String>,
    tls_server_name: Option<String>,
    insecure_skip_tls_verify: Option<bool>,
    certificate_authority: Option<String>,
    certificate_authority_data: Option<Secret>,
    proxy_url: Option<String>,
}

#[derive(Deserialize)]
#[serde(rename_all = "kebab-case")]
struct User {
    client_certificate: Option<String>,
    client_certificate_data: Option<Secret>,
    client_key: Option<String>,
    client_key_data: Option<Secret>,
    token: Option<Secret>,
    #[serde(rename = "tokenFile")]
    token_file: Option<String>,
    #[serde(rename = "as")]
    as_user: Option<String>,
    as_uid: Option<String>,
    username: Option<String>,
    password: Option<String>,
    auth_provider: Option<serde::de::IgnoredAny>,
    exec: Option<ExecEntry>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct ExecEntry {
    api_version: Option<String>,
    command: Option<String>,
    args: Option<Vec<String>>,
    env: Option<Vec<Variable>>,
    install_hint: Option<String>,
    provide_cluster_info: Option<bool>,
    interactive_mode: Option<String>,
}

#[derive(Deserialize)]
struct Variable {
    name: String,
    value: String,
}

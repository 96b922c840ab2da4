//! Which store a command talks to: flags over environment over host file. With `--endpoints` or `--local` no host file
//! is needed.

use std::{path::PathBuf, time::Duration};

use super::{
    FAILED, Failure,
    args::{Global, KubernetesArgs},
};
use crate::{
    admin::Scope,
    config::{AuthSettings, CONFIG_VARIABLE, EtcdSettings, Password, StoreSettings, TlsSettings},
    host::{self, Host, HostError},
    pods::{Api, Choice, Settings, Surroundings},
    store::{
        any::AnyStore,
        etcd::{Endpoint, Secret},
    },
    trail::Trail,
};

/// How long a local store waits for another process.
const LOCAL_WAIT: Duration = Duration::from_secs(10);
const NO_PASSWORD: &str =
    "--user must be USER:PASSWORD, or ETCDCTL_PASSWORD be set (neither that nor ETCDCTL_USER shows in `ps`)";
/// As in the host file.
const PREFIX: &str = "/leasehold";

/// Where a command works.
pub(crate) struct Site {
    /// The store.
    pub(crate) store: AnyStore,
    /// The audit trail of this host.
    pub(crate) trail: Trail,
    /// The host file, if one was needed or found.
    pub(crate) host: Option<Host>,
    /// Where the command looks.
    pub(crate) scope: Scope,
}

/// The host file: that of `--config`, or found.
pub(crate) fn host_file(global: &Global) -> Result<Host, HostError> {
    let named = global.config.clone().map(PathBuf::into_os_string);
    host::read(named.or_else(|| std::env::var_os(CONFIG_VARIABLE)))
}

/// Which store.
pub(crate) fn settings(global: &Global, host: Option<&Host>) -> Result<StoreSettings, Failure> {
    if let Some(folder) = &global.local {
        return Ok(StoreSettings::Local(folder.clone()));
    }
    let of_file = match host.map(|host| &host.config.store) {
        Some(StoreSettings::Etcd(etcd)) => Some(etcd.clone()),
        Some(StoreSettings::Local(folder)) if global.endpoints.is_empty() => {
            return Ok(StoreSettings::Local(folder.clone()));
        }
        Some(StoreSettings::Local(_)) | None => None,
    };
    let mut etcd = of_file.unwrap_or(EtcdSettings {
        endpoints: Vec::new(),
        prefix: PREFIX.into(),
        tls: None,
        auth: None,
    });
    if !global.endpoints.is_empty() {
        let secure = global.cacert.is_some() || etcd.tls.is_some();
        etcd.endpoints =
            global.endpoints.iter().map(|text| endpoint(text.trim(), secure)).collect::<Result<_, _>>()?;
    }
    if let Some(prefix) = &global.prefix {
        etcd.prefix = format!("/{}", prefix.trim_matches('/'));
    }
    let identity = match (&global.cert, &global.key) {
        (Some(cert), Some(key)) => Some((cert.clone(), key.clone())),
        (None, None) => etcd.tls.as_ref().and_then(|tls| tls.identity.clone()),
        (Some(_), None) => return Err(Failure::usage("--cert needs --key")),
        (None, Some(_)) => return Err(Failure::usage("--key needs --cert")),
    };
    let cacert = global.cacert.clone().or_else(|| etcd.tls.as_ref().map(|tls| tls.cacert.clone()));
    etcd.tls = match (cacert, identity) {
        (Some(cacert), identity) => Some(TlsSettings { cacert, identity }),
        (None, Some(_)) => return Err(Failure::usage("--cert needs --cacert: no system roots are bundled")),
        (None, None) => None,
    };
    if let Some(user) = &global.user {
        // As etcdctl: the password may stand apart.
        let apart = || std::env::var_os("ETCDCTL_PASSWORD").and_then(|text| text.into_string().ok());
        let (username, password) = match user.split_once(':') {
            Some((username, password)) => (username, password.to_owned()),
            None => (user.as_str(), apart().ok_or_else(|| Failure::usage(NO_PASSWORD))?),
        };
        let password = Password::Inline(Secret::new(password));
        etcd.auth = Some(AuthSettings { username: username.to_owned(), password });
    }
    Ok(StoreSettings::Etcd(etcd))
}

/// As etcdctl takes them: also without a scheme.
pub(crate) fn endpoint(text: &str, secure: bool) -> Result<Endpoint, Failure> {
    if text.contains('@') {
        return Err(Failure::usage("--endpoints must not hold credentials: give them in ETCDCTL_USER"));
    }
    let whole = if text.contains("://") {
        text.to_owned()
    } else {
        format!("http{}://{text}", if secure { "s" } else { "" })
    };
    Endpoint::parse(&whole).map_err(|problem| Failure::usage(&format!("--endpoints: {problem}")))
}

/// Opens the store of a command.
pub(crate) async fn open(global: &Global) -> Result<Site, Failure> {
    let needed = global.endpoints.is_empty() && global.local.is_none();
    let host = match host_file(global) {
        Ok(host) => Some(host),
        Err(error) if needed || global.config.is_some() => return Err(Failure::host(&error)),
        Err(_) => None,
    };
    let settings = settings(global, host.as_ref())?;
    let store = host::open_store(&settings, LOCAL_WAIT).await.map_err(|error| Failure::of(error.into()))?;
    let local = matches!(settings, StoreSettings::Local(_));
    let home = match &host {
        Some(host) => Some(host.config.cluster.clone()),
        None if local => crate::domain::names::ClusterName::new(host::LOCAL_CLUSTER).ok(),
        None => None,
    };
    let scope = Scope {
        cluster: global.cluster.clone(),
        home,
        namespace: global.namespace.clone(),
        domain: global.domain.clone(),
    };
    Ok(Site { store, trail: Trail::of(host.as_ref()), host, scope })
}

/// The Kubernetes API of a command.
pub(crate) fn api(args: &KubernetesArgs) -> Result<Api, Failure> {
    let choice = Choice { kubeconfig: args.kubeconfig.clone(), context: args.context.clone() };
    let settings = Settings::find(&choice, &Surroundings::of_process());
    settings.map(Api::new).map_err(|error| Failure { text: error.to_string(), hint: None, code: FAILED })
}

//! What an installed node has: a host file, a folder for state, a log.

use std::{
    fs,
    os::unix::fs::PermissionsExt,
    path::{Path, PathBuf},
};

use serde_json::{Value, json};

use super::{etcd::Etcd, folder::Folder};

/// The host file and what it points to, in a temporary folder of mode 0700.
#[derive(Debug)]
pub(crate) struct HostFile {
    folder: Folder,
    /// Where its state is, if not there.
    memory: Option<Folder>,
    document: Value,
}

impl HostFile {
    /// Node `n1` of cluster `prod-a`, on this etcd.
    pub(crate) fn on(etcd: &Etcd) -> Self {
        Self::with_store(json!({ "etcd": etcd.settings() })).with("cluster", "prod-a")
    }

    /// Node `n1` of cluster `local`, on an embedded store in this node's folder.
    pub(crate) fn local() -> Self {
        let mut file = Self::with_store(Value::Null);
        file.document["store"] = json!({ "local": file.folder.path().join("store") });
        file.with("cluster", "local")
    }

    /// Sets a top-level field.
    pub(crate) fn with(mut self, field: &str, value: impl Into<Value>) -> Self {
        self.document[field] = value.into();
        self.write(&self.document.to_string());
        self
    }

    /// Another node of the same cluster and store, with state of its own.
    pub(crate) fn node(&self, name: &str) -> Self {
        let mut file = Self::with_store(self.document["store"].clone());
        for (field, value) in self.document.as_object().unwrap() {
            if !["store", "node", "stateDir", "log"].contains(&field.as_str()) {
                file.document[field] = value.clone();
            }
        }
        file.with("node", name)
    }

    /// Has its state where no disk is waited for that others keep busy.
    pub(crate) fn in_memory(mut self) -> Self {
        self.memory = Some(Folder::in_memory());
        let state = self.state();
        self.with("stateDir", state.to_str().unwrap())
    }

    /// Sets a field of `store.etcd`.
    pub(crate) fn etcd(mut self, field: &str, value: impl Into<Value>) -> Self {
        self.document["store"]["etcd"][field] = value.into();
        self.write(&self.document.to_string());
        self
    }

    /// The same settings by way of other endpoints, such as proxies.
    pub(crate) fn endpoints<S: Into<String>>(self, urls: impl IntoIterator<Item = S>) -> Self {
        self.etcd("endpoints", urls.into_iter().map(Into::into).collect::<Vec<_>>())
    }

    /// Changes what stands in the file, while others may be reading it.
    pub(crate) fn change(&self, change: impl FnOnce(&mut Value)) {
        let mut document = serde_json::from_slice(&fs::read(self.path()).unwrap()).unwrap();
        change(&mut document);
        self.write(&document.to_string());
    }

    /// Puts any text into the file, JSON or not.
    pub(crate) fn write(&self, text: &str) {
        // In one step, as an installer does: somebody may be reading it.
        let fresh = self.folder.path().join("config.json.new");
        fs::write(&fresh, text).unwrap();
        fs::set_permissions(&fresh, fs::Permissions::from_mode(0o600)).unwrap();
        fs::rename(fresh, self.path()).unwrap();
    }

    pub(crate) fn path(&self) -> PathBuf {
        self.folder.path().join("config.json")
    }

    pub(crate) fn folder(&self) -> &Path {
        self.folder.path()
    }

    pub(crate) fn state(&self) -> PathBuf {
        self.memory.as_ref().unwrap_or(&self.folder).path().join("state")
    }

    /// What was logged so far.
    pub(crate) fn log(&self) -> String {
        fs::read_to_string(self.log_path()).unwrap_or_default()
    }

    fn log_path(&self) -> PathBuf {
        self.folder.path().join("leasehold.log")
    }

    fn with_store(store: Value) -> Self {
        let mut file = Self { folder: Folder::new(), memory: None, document: Value::Null };
        file.document = json!({
            "v": 1,
            "store": store,
            "node": "n1",
            "stateDir": file.state(),
            "log": { "file": file.log_path(), "level": "info" },
        });
        file.write(&file.document.to_string());
        file
    }
}

#[test]
fn a_host_file_is_for_root_alone() {
    let file = HostFile::local().with("inlineRanges", "allow");
    let mode = |path: &Path| fs::metadata(path).unwrap().permissions().mode() & 0o777;
    assert_eq!((mode(file.folder()), mode(&file.path())), (0o700, 0o600));
    let read =
        |file: &HostFile| -> Value { serde_json::from_slice(&fs::read(file.path()).unwrap()).unwrap() };
    let (one, other) = (file.node("n2"), file.node("n3"));
    let (one_text, other_text) = (read(&one), read(&other));
    assert_eq!((&one_text["node"], &one_text["inlineRanges"]), (&json!("n2"), &json!("allow")));
    assert_eq!(one_text["store"], other_text["store"]);
    assert_ne!(one.state(), other.state());
    assert_eq!(one_text["stateDir"], json!(one.state()));
    let other = other.in_memory();
    assert_eq!(read(&other)["stateDir"], json!(other.state()));
    assert_ne!(other.state().parent(), Some(other.folder()));
    assert_eq!(one.log(), "");
    fs::write(one.log_path(), "line\n").unwrap();
    assert_eq!(one.log(), "line\n");
    let remote = HostFile::with_store(json!({ "etcd": {} })).endpoints(["http://127.0.0.1:1"]);
    assert_eq!(read(&remote)["store"]["etcd"]["endpoints"], json!(["http://127.0.0.1:1"]));
}

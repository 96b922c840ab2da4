//! What a node keeps on its own disk: DELs that the store did not take yet; what it remembers of the store ([`memory`]); and
//! whose turn it is to count ([`turn`]).
//!
//! A journal entry is one file per attachment, written to the disk before it counts, and locked while somebody
//! works on it. It only says that a container is gone; replaying it compares the container, so an old entry harms
//! nobody. It is tied to the store's ID: after a restore with a new one it means nothing.

mod files;
mod memory;
mod turn;

use std::{
    fs::{self, File},
    io,
    os::unix::fs::MetadataExt,
    path::{Path, PathBuf},
    thread,
    time::Duration,
};

use serde_json::{Value, json};
use sha2::{Digest, Sha256};

use self::files::{hex, is_same, make_folder, replace, try_lock};
use crate::domain::{
    lease::Holder,
    names::{ClusterName, ContainerId, IfName, Namespace, NetworkName, NodeName, PodName, StoreId},
};

pub use self::{
    memory::{LookedAt, Memory, Sight, Sighting, Spares},
    turn::Turn,
};

/// The version of the files.
const VERSION: u64 = 1;
/// How often a lock is tried, and how long between: a replayer holds it for one store call.
const LOCK_TRIES: u32 = 250;
const LOCK_PAUSE: Duration = Duration::from_millis(10);

/// A container whose lease is to be ended.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Entry {
    /// The cluster.
    pub cluster: ClusterName,
    /// The store's ID, if this node ever saw it.
    pub store: Option<StoreId>,
    /// The node.
    pub node: NodeName,
    /// The CNI network's name.
    pub network: NetworkName,
    /// `CNI_CONTAINERID`.
    pub container: ContainerId,
    /// `CNI_IFNAME`.
    pub ifname: IfName,
    /// Whose lease it was, if the caller said.
    pub holder: Option<Holder>,
    /// Why it is here.
    pub why: String,
    /// When, as RFC 3339.
    pub at: String,
}

impl Entry {
    /// Reads a file of the journal. `None`: it is none of ours, or newer.
    #[must_use]
    pub fn parse(text: &str) -> Option<Self> {
        let value: Value = serde_json::from_str(text).ok()?;
        if value.get("v")?.as_u64()? > VERSION {
            return None;
        }
        let text = |field: &str| value.get(field).and_then(Value::as_str);
        let holder = match text("holder") {
            None => None,
            Some(holder) => {
                let (namespace, name) = holder.split_once('/')?;
                Some(if namespace == "_" {
                    Holder::Container(ContainerId::new(name).ok()?)
                } else {
                    Holder::Pod { namespace: Namespace::new(namespace).ok()?, name: PodName::new(name).ok()? }
                })
            }
        };
        Some(Self {
            cluster: ClusterName::new(text("cluster")?).ok()?,
            store: text("store").and_then(|id| StoreId::new(id).ok()),
            node: NodeName::new(text("node")?).ok()?,
            network: NetworkName::new(text("network")?).ok()?,
            container: ContainerId::new(text("container")?).ok()?,
            ifname: IfName::new(text("ifname")?).ok()?,
            holder,
            why: text("why").unwrap_or_default().to_owned(),
            at: text("at").unwrap_or_default().to_owned(),
        })
    }

    /// The file.
    #[must_use]
    pub fn text(&self) -> String {
        let text = json!({
            "v": VERSION,
            "cluster": self.cluster.as_str(),
            "store": self.store.as_ref().map(StoreId::as_str),
            "node": self.node.as_str(),
            "network": self.network.as_str(),
            "container": self.container.as_str(),
            "ifname": self.ifname.as_str(),
            "holder": self.holder.as_ref().map(ToString::to_string),
            "why": self.why,
            "at": self.at,
        });
        format!("{text}\n")
    }
}

/// What a replay needs of a journal.
pub trait Entries {
    /// An entry that one process works on; others do not get it meanwhile.
    type Held: Held;

    /// The files of all entries, oldest first.
    ///
    /// # Errors
    /// The file system's; a folder that does not exist holds nothing.
    fn list(&self) -> io::Result<Vec<PathBuf>>;

    /// Locks one entry. `None`: it is gone, or somebody else works on it.
    ///
    /// # Errors
    /// The file system's.
    fn lock(&self, path: &Path) -> io::Result<Option<Self::Held>>;

    /// Is there nothing to be told?
    fn is_empty(&self) -> bool {
        self.list().is_ok_and(|files| files.is_empty())
    }
}

/// An entry of [`Entries`] that this process works on.
pub trait Held {
    /// What it says; `None`: it cannot be read.
    fn entry(&self) -> Option<&Entry>;

    /// How long ago it was written.
    fn age(&self) -> Duration;

    /// It is done.
    ///
    /// # Errors
    /// The file system's.
    fn remove(self) -> io::Result<()>;
}

/// The journal of a node: a folder.
#[derive(Clone, Debug)]
pub struct Journal {
    folder: PathBuf,
}

/// The file of an entry that this process works on.
#[derive(Debug)]
pub struct Locked {
    entry: Option<Entry>,
    path: PathBuf,
    lock: File,
}

impl Held for Locked {
    fn entry(&self) -> Option<&Entry> {
        self.entry.as_ref()
    }

    /// One of the future is as old as can be: the clock was set back.
    fn age(&self) -> Duration {
        let written = self.lock.metadata().and_then(|meta| meta.modified());
        written.ok().and_then(|written| written.elapsed().ok()).unwrap_or(Duration::MAX)
    }

    fn remove(self) -> io::Result<()> {
        fs::remove_file(&self.path)
    }
}

impl Journal {
    /// The journal in a node's state folder. Nothing is made before the first entry.
    #[must_use]
    pub fn new(state: &Path) -> Self {
        Self { folder: state.join("journal") }
    }

    /// Its folder.
    #[must_use]
    pub fn folder(&self) -> &Path {
        &self.folder
    }

    fn path(&self, network: &NetworkName, container: &ContainerId, ifname: &IfName) -> PathBuf {
        let mut hash = Sha256::new();
        for part in [network.as_str(), container.as_str(), ifname.as_str()] {
            hash.update(part.as_bytes());
            hash.update([0]);
        }
        self.folder.join(format!("{}.json", hex(&hash.finalize(), 20)))
    }

    /// Writes an entry; it is on the disk when this returns.
    ///
    /// # Errors
    /// The file system's: then nothing was promised.
    pub fn write(&self, entry: &Entry) -> io::Result<()> {
        make_folder(&self.folder)?;
        let path = self.path(&entry.network, &entry.container, &entry.ifname);
        replace(&path, entry.text().as_bytes(), true)
    }

    /// Removes the entry of an attachment that is added again: its last life's DEL must not end this one. Waits for
    /// whoever replays it.
    ///
    /// # Errors
    /// The file system's, or the lock could not be had.
    pub fn cancel(
        &self,
        network: &NetworkName,
        container: &ContainerId,
        ifname: &IfName,
    ) -> io::Result<bool> {
        let path = self.path(network, container, ifname);
        for _ in 0..LOCK_TRIES {
            if !path.exists() {
                return Ok(false);
            }
            if let Some(locked) = self.lock(&path)? {
                locked.remove()?;
                return Ok(true);
            }
            thread::sleep(LOCK_PAUSE);
        }
        Err(io::Error::new(
            io::ErrorKind::TimedOut,
            format!("{} is locked by another process", path.display()),
        ))
    }
}

impl Entries for Journal {
    type Held = Locked;

    fn list(&self) -> io::Result<Vec<PathBuf>> {
        let entries = match fs::read_dir(&self.folder) {
            Ok(entries) => entries,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
            Err(error) => return Err(error),
        };
        let mut files = Vec::new();
        for entry in entries {
            let entry = entry?;
            let path = entry.path();
            if path.extension().is_some_and(|extension| extension == "json") {
                let written =
                    entry.metadata().map(|meta| (meta.mtime(), meta.mtime_nsec())).unwrap_or_default();
                files.push((written, path));
            }
        }
        files.sort();
        Ok(files.into_iter().map(|(_, path)| path).collect())
    }

    fn lock(&self, path: &Path) -> io::Result<Option<Self::Held>> {
        let file = match File::open(path) {
            Ok(file) => file,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            Err(error) => return Err(error),
        };
        if !try_lock(&file)? {
            return Ok(None);
        }
        // Removed or written anew between open and lock: this lock is of a file that is no entry any more.
        if !is_same(&file, path)? {
            return Ok(None);
        }
        let entry = fs::read_to_string(path).ok().and_then(|text| Entry::parse(&text));
        Ok(Some(Locked { entry, path: path.to_owned(), lock: file }))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::store::Revision;

    /// A folder of a test's own, which is not there.
    pub(super) fn folder(name: &str) -> PathBuf {
        let path = std::env::temp_dir().join(format!("leasehold-journal-{}-{name}", std::process::id()));
        let _ = fs::remove_dir_all(&path);
        path
    }

    fn entry(container: &str) -> Entry {
        Entry {
            cluster: ClusterName::new("prod").unwrap(),
            store: Some(StoreId::new("s1").unwrap()),
            node: NodeName::new("n1").unwrap(),
            network: NetworkName::new("lan").unwrap(),
            container: ContainerId::new(container).unwrap(),
            ifname: IfName::new("eth0").unwrap(),
            holder: Some(Holder::Pod {
                namespace: Namespace::new("shop").unwrap(),
                name: PodName::new("db-0").unwrap(),
            }),
            why: "the store was down".into(),
            at: "2026-01-01T00:00:00.000Z".into(),
        }
    }

    #[test]
    fn an_entry_comes_back_as_it_was_and_is_removed_once() {
        let state = folder("back");
        let journal = Journal::new(&state);
        assert!(journal.is_empty());
        journal.write(&entry("c1")).unwrap();
        journal.write(&entry("c1")).unwrap();
        let long = "x".repeat(500);
        journal.write(&entry(&long)).unwrap();
        let files = journal.list().unwrap();
        assert_eq!(files.len(), 2);
        let locked = journal.lock(&files[0]).unwrap().unwrap();
        assert_eq!(locked.entry, Some(entry("c1")));
        assert!(journal.lock(&files[0]).unwrap().is_none(), "it is locked");
        locked.remove().unwrap();
        assert!(journal.lock(&files[0]).unwrap().is_none(), "it is gone");
        assert_eq!(journal.list().unwrap().len(), 1);
        fs::remove_dir_all(&state).unwrap();
    }

    #[test]
    fn an_add_of_the_same_attachment_cancels_and_waits_for_a_replayer() {
        let state = folder("cancel");
        let journal = Journal::new(&state);
        let it = entry("c1");
        assert!(!journal.cancel(&it.network, &it.container, &it.ifname).unwrap());
        journal.write(&it).unwrap();
        let locked = journal.lock(&journal.list().unwrap()[0]).unwrap().unwrap();
        let other = journal.clone();
        let (network, container, ifname) = (it.network.clone(), it.container.clone(), it.ifname.clone());
        let waiting = thread::spawn(move || other.cancel(&network, &container, &ifname).unwrap());
        thread::sleep(Duration::from_millis(50));
        assert!(!waiting.is_finished());
        drop(locked);
        assert!(waiting.join().unwrap());
        assert!(journal.is_empty());
        fs::remove_dir_all(&state).unwrap();
    }

    #[test]
    fn an_entry_that_cannot_be_read_is_shown_and_kept() {
        let state = folder("bad");
        let journal = Journal::new(&state);
        journal.write(&entry("c1")).unwrap();
        let file = journal.list().unwrap().remove(0);
        fs::write(&file, "{").unwrap();
        assert_eq!(journal.lock(&file).unwrap().unwrap().entry, None);
        assert!(file.exists());
        fs::remove_dir_all(&state).unwrap();
    }

    #[test]
    fn what_a_killed_writer_left_goes_and_nothing_else() {
        let state = folder("killed");
        let (journal, sight) = (Journal::new(&state), Sight::new(&state));
        let seen = |revision| Memory {
            store: Some(StoreId::new("s1").unwrap()),
            revision: Revision(revision),
            ..Memory::default()
        };
        journal.write(&entry("c1")).unwrap();
        sight.save(&seen(1)).unwrap();
        let age = |path: &Path| File::open(path).unwrap().set_modified(std::time::UNIX_EPOCH).unwrap();
        fs::write(state.join("store.json"), "{}").unwrap(); // of a version that wrote such files
        let left = [journal.folder().join("aa.tmp1"), state.join("store.tmp1")];
        let young = [journal.folder().join("aa.tmp2"), state.join("store.tmp2")];
        for path in left.iter().chain(&young) {
            fs::write(path, "{").unwrap();
        }
        left.iter().chain(&journal.list().unwrap()).for_each(|path| age(path));
        journal.write(&entry("c2")).unwrap();
        sight.save(&seen(2)).unwrap();
        assert!(!left.iter().any(|path| path.exists()));
        assert!(young.iter().all(|path| path.exists()));
        assert_eq!(journal.list().unwrap().len(), 2);
        fs::remove_dir_all(&state).unwrap();
    }
}

//! What a node keeps on its own disk: DELs that the store did not take yet, how far it has seen the store, the names of
//! the pools that it used last, and what was free in those that are crowded. And whose turn it is to count.
//!
//! A journal entry is one file per attachment, written to the disk before it counts, and locked while somebody
//! works on it. It only says that a container is gone; replaying it compares the container, so an old entry harms
//! nobody. It is tied to the store's ID: after a restore with a new one it means nothing.

use std::{
    cell::RefCell,
    fs::{self, File, OpenOptions, TryLockError},
    io::{self, Write},
    net::IpAddr,
    os::unix::fs::{DirBuilderExt, FileExt, MetadataExt, OpenOptionsExt},
    path::{Path, PathBuf},
    thread,
    time::Duration,
};

use serde_json::{Value, json};
use sha2::{Digest, Sha256};

use crate::{
    domain::{
        lease::Holder,
        names::{
            BootId, ClusterName, ContainerId, DomainName, IfName, Namespace, NetworkName, NodeName, PodName,
            PoolName, StoreId,
        },
    },
    store::Revision,
};

/// The version of the files.
const VERSION: u64 = 1;
/// How often a lock is tried, and how long between: a replayer holds it for one store call.
const LOCK_TRIES: u32 = 250;
const LOCK_PAUSE: Duration = Duration::from_millis(10);
/// The extension of a file that is being written; the process's number follows.
const TEMPORARY: &str = "tmp";
/// Nobody writes a file for so long: who left it half was killed.
const ABANDONED: Duration = Duration::from_secs(3600);

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
        let name: String = hash.finalize().iter().take(20).map(|byte| format!("{byte:02x}")).collect();
        self.folder.join(format!("{name}.json"))
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
        match file.try_lock() {
            Ok(()) => {}
            Err(TryLockError::WouldBlock) => return Ok(None),
            Err(TryLockError::Error(error)) => return Err(error),
        }
        // Removed or written anew between open and lock: this lock is of a file that is no entry any more.
        if !is_same(&file, path)? {
            return Ok(None);
        }
        let entry = fs::read_to_string(path).ok().and_then(|text| Entry::parse(&text));
        Ok(Some(Locked { entry, path: path.to_owned(), lock: file }))
    }
}

fn is_same(file: &File, path: &Path) -> io::Result<bool> {
    let ours = file.metadata()?;
    match fs::metadata(path) {
        Ok(now) => Ok((now.dev(), now.ino()) == (ours.dev(), ours.ino())),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(false),
        Err(error) => Err(error),
    }
}

/// A folder that only root reads: what stands in it decides about addresses.
fn make_folder(folder: &Path) -> io::Result<()> {
    fs::DirBuilder::new().recursive(true).mode(0o700).create(folder)
}

/// Writes a file whole or not at all, and takes away what others that were killed at this left in its folder.
fn replace(path: &Path, bytes: &[u8], durable: bool) -> io::Result<()> {
    let temporary = path.with_extension(format!("{TEMPORARY}{}", std::process::id()));
    let write = || {
        let mut file =
            OpenOptions::new().write(true).create(true).truncate(true).mode(0o600).open(&temporary)?;
        file.write_all(bytes)?;
        if durable {
            file.sync_all()?;
        }
        fs::rename(&temporary, path)?;
        if durable && let Some(folder) = path.parent() {
            File::open(folder)?.sync_all()?;
        }
        Ok(())
    };
    path.parent().map(sweep);
    write().inspect_err(|_: &io::Error| {
        let _ = fs::remove_file(&temporary);
    })
}

fn sweep(folder: &Path) {
    for entry in fs::read_dir(folder).into_iter().flatten().flatten() {
        let path = entry.path();
        let extension = path.extension().unwrap_or_default().as_encoded_bytes();
        let written = || entry.metadata().and_then(|meta| meta.modified()).ok();
        if extension.starts_with(TEMPORARY.as_bytes())
            && written().and_then(|at| at.elapsed().ok()).is_some_and(|age| age > ABANDONED)
        {
            let _ = fs::remove_file(path); // another may have been faster
        }
    }
}

/// What a node remembers of the store. A store of the same ID that is behind it was restored from a snapshot.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub struct Memory {
    /// The ID that was seen last.
    pub store: Option<StoreId>,
    /// The highest revision that was seen of it.
    pub revision: Revision,
    /// The pools that its ADDs looked at last, the latest first. Their documents are asked for in an ADD's first read,
    /// and one that the ADD turns out not to need is not looked at: a wrong name costs a question, a missing one a read.
    pub pools: Vec<PoolName>,
    /// When it was seen, the latest first, a second apart: a lease whose revision was seen long ago was not written
    /// just now, whatever the clocks of others say.
    pub sightings: Vec<Sighting>,
    /// What was free in pools that are crowded, the pool used last first. It is asked for in an ADD's first read, and only
    /// what is free by that answer is taken, under the same compares as any address: a wrong one costs two questions.
    pub spares: Vec<Spares>,
}

/// Addresses of a crowded pool that this node saw free.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Spares {
    /// The network on which they were looked for: who is on another does not ask for them.
    pub network: NetworkName,
    /// The pool.
    pub pool: PoolName,
    /// The domain in which they were free.
    pub domain: DomainName,
    /// They; perhaps none.
    pub addresses: Vec<IpAddr>,
    /// So many ADDs more may rest on this; then one has to look again whether the pool is crowded.
    pub uses: u64,
}

/// The store had come this far when this node looked.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Sighting {
    /// So far.
    pub revision: Revision,
    /// The boot of the node.
    pub boot: BootId,
    /// The boot-time clock after the answer came, microseconds.
    pub at: u64,
}

impl Memory {
    /// Reads the file, as far as it goes: what it says of the rest is nothing.
    #[must_use]
    pub fn parse(text: &str) -> Self {
        let value: Value = serde_json::from_str(text).unwrap_or_default();
        let list = |field: &str| value.get(field).and_then(Value::as_array).into_iter().flatten();
        let sighting = |value: &Value| {
            Some(Sighting {
                revision: Revision(value.get("revision")?.as_i64()?),
                boot: BootId::new(value.get("boot")?.as_str()?).ok()?,
                at: value.get("at")?.as_u64()?,
            })
        };
        let spares = |value: &Value| {
            let addresses = value.get("addresses")?.as_array()?;
            Some(Spares {
                network: NetworkName::new(value.get("network")?.as_str()?).ok()?,
                pool: PoolName::new(value.get("pool")?.as_str()?).ok()?,
                domain: DomainName::new(value.get("domain")?.as_str()?).ok()?,
                addresses: addresses.iter().filter_map(|address| address.as_str()?.parse().ok()).collect(),
                uses: value.get("uses")?.as_u64()?,
            })
        };
        Self {
            store: value.get("store").and_then(Value::as_str).and_then(|id| StoreId::new(id).ok()),
            revision: Revision(value.get("revision").and_then(Value::as_i64).unwrap_or(0)),
            pools: list("pools").filter_map(|name| PoolName::new(name.as_str()?).ok()).collect(),
            sightings: list("sightings").filter_map(sighting).collect(),
            spares: list("spares").filter_map(spares).collect(),
        }
    }

    /// The file; `None`: no store was seen.
    #[must_use]
    pub fn text(&self) -> Option<String> {
        let sighting = |sighting: &Sighting| json!({"revision": sighting.revision.0, "boot": sighting.boot.as_str(), "at": sighting.at});
        let spares = |spares: &Spares| json!({"network": spares.network.as_str(), "pool": spares.pool.as_str(), "domain": spares.domain.as_str(), "addresses": spares.addresses, "uses": spares.uses});
        let text = json!({
            "v": VERSION,
            "store": self.store.as_ref()?.as_str(),
            "revision": self.revision.0,
            "pools": self.pools.iter().map(PoolName::as_str).collect::<Vec<_>>(),
            "sightings": self.sightings.iter().map(sighting).collect::<Vec<_>>(),
            "spares": self.spares.iter().map(spares).collect::<Vec<_>>(),
        });
        Some(format!("{text}\n"))
    }
}

/// The file of a node's [`Memory`]. It is written in place: a new one that takes the place of the last is six more calls of
/// the file system, in every ADD. So what is read says by its sum whether it is whole.
#[derive(Clone, Debug)]
pub struct Sight {
    path: PathBuf,
    /// What was read last: mostly it stands there still when it is to be written.
    read: RefCell<Option<(String, Content)>>,
}

/// What the file begins with; the sum of all that follows its quote and comma is next.
const SEAL: &str = "{\"sum\":\"";
/// The file's length is a multiple of this, so that mostly a write covers all of what was there.
const BLOCK: usize = 512;
/// How often a file is read that somebody writes at this moment, how often its lock is tried, and how long between: it is
/// held for a read and a write.
const READS: u32 = 3;
const SAVES: u32 = 20;
const WRITE_PAUSE: Duration = Duration::from_millis(1);

/// What is in a file of a [`Sight`].
#[derive(Clone, Debug, Eq, PartialEq)]
enum Content {
    /// Whole.
    Whole(Memory),
    /// Of a version that wrote no sum, and whole files only.
    Unsealed(Memory),
    /// Half written, or by somebody else.
    Torn,
}

fn sum(text: &str) -> String {
    Sha256::digest(text.as_bytes()).iter().take(8).map(|byte| format!("{byte:02x}")).collect()
}

/// A file of this text, which is a JSON object.
fn seal(text: &str) -> Vec<u8> {
    let rest = text.trim_end().trim_start_matches('{');
    let mut bytes = format!("{SEAL}{}\",{rest}", sum(rest)).into_bytes();
    bytes.resize((bytes.len() + 1).next_multiple_of(BLOCK), b' ');
    bytes.pop();
    bytes.push(b'\n');
    bytes
}

fn unseal(text: &str) -> Content {
    let Some(sealed) = text.strip_prefix(SEAL) else { return Content::Unsealed(Memory::parse(text)) };
    let padding = sealed.bytes().rev().take_while(u8::is_ascii_whitespace).count();
    match sealed[..sealed.len() - padding].split_once("\",") {
        Some((expected, rest)) if sum(rest) == expected => {
            Content::Whole(Memory::parse(&text[..text.len() - padding]))
        }
        Some(_) | None => Content::Torn,
    }
}

impl Sight {
    /// The sight in a node's state folder.
    #[must_use]
    pub fn new(state: &Path) -> Self {
        Self { path: state.join("store.json"), read: RefCell::default() }
    }

    /// What was seen last; nothing, if nothing was, or the file cannot be read.
    #[must_use]
    pub fn load(&self) -> Memory {
        match self.content() {
            Some(Content::Whole(memory) | Content::Unsealed(memory)) => memory,
            Some(Content::Torn) | None => Memory::default(),
        }
    }

    /// `None`: there is no file, or it is no text.
    fn content(&self) -> Option<Content> {
        for _ in 0..READS {
            let text = fs::read_to_string(&self.path).ok()?;
            let mut read = self.read.borrow_mut();
            let (_, content) = match read.take().filter(|(known, _)| *known == text) {
                Some(same) => read.insert(same),
                None => {
                    let content = unseal(&text);
                    read.insert((text, content))
                }
            };
            if *content != Content::Torn {
                return Some(content.clone());
            }
            drop(read);
            thread::sleep(WRITE_PAUSE);
        }
        Some(Content::Torn)
    }

    /// Remembers. Not made durable: after a crash the node knows a little less, which is safe. Of two runs at once one may
    /// forget the other's pools or spares, which costs the next one a read, or its sightings, a wait; how far it saw only if
    /// the file is replaced at that moment.
    /// Nothing is written for a mere change of the pools' order, nor while others have the lock all the time.
    ///
    /// # Errors
    /// The file system's.
    pub fn save(&self, memory: &Memory) -> io::Result<()> {
        if memory.store.is_none() {
            return Ok(());
        }
        let file = create(&self.path)?;
        for _ in 0..SAVES {
            match file.try_lock() {
                Ok(()) => return self.save_locked(&file, memory.clone()),
                Err(TryLockError::WouldBlock) => thread::sleep(WRITE_PAUSE),
                Err(TryLockError::Error(error)) => return Err(error),
            }
        }
        Ok(())
    }

    fn save_locked(&self, file: &File, mut memory: Memory) -> io::Result<()> {
        let content = self.content();
        if let Some(Content::Whole(known) | Content::Unsealed(known)) = &content
            && known.store == memory.store
        {
            memory.revision = memory.revision.max(known.revision);
            if memory.revision == known.revision
                && memory.sightings == known.sightings
                && memory.spares == known.spares
                && memory.pools.iter().all(|name| known.pools.contains(name))
            {
                return Ok(());
            }
        }
        let Some(text) = memory.text() else { return Ok(()) };
        let mut bytes = seal(&text);
        let length = usize::try_from(file.metadata()?.len()).unwrap_or(0);
        if let (Some(Content::Unsealed(_)), 1..) = (content, length) {
            // Whoever reads a part of it would not know.
            return replace(&self.path, &bytes, false);
        }
        // Over all that was there, at once: whoever is killed leaves the one or the other, if it is not longer than a page.
        if bytes.len() < length {
            bytes.resize(length, b' ');
        }
        file.write_all_at(&bytes, 0)
    }
}

/// One call of a node at a time counts: while etcd counts the keys of a range, nobody's write gets through.
#[derive(Clone, Debug)]
pub struct Turn {
    path: PathBuf,
}

impl Turn {
    /// The turn in a node's state folder.
    #[must_use]
    pub fn new(state: &Path) -> Self {
        Self { path: state.join("counting.lock") }
    }

    /// It is ours until the file is closed. `None`: another has it.
    ///
    /// # Errors
    /// The file system's.
    pub fn take(&self) -> io::Result<Option<File>> {
        let file = create(&self.path)?;
        match file.try_lock() {
            Ok(()) => Ok(Some(file)),
            Err(TryLockError::WouldBlock) => Ok(None),
            Err(TryLockError::Error(error)) => Err(error),
        }
    }
}

/// Opens a file of the state folder as it is, or makes both.
fn create(path: &Path) -> io::Result<File> {
    let open = || OpenOptions::new().write(true).create(true).truncate(false).mode(0o600).open(path);
    match open() {
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            path.parent().map_or(Ok(()), make_folder)?;
            open()
        }
        other => other,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn folder(name: &str) -> PathBuf {
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

    fn memory(store: &str, revision: i64, pools: &[&str]) -> Memory {
        Memory {
            store: Some(StoreId::new(store).unwrap()),
            revision: Revision(revision),
            pools: pools.iter().map(|name| PoolName::new(*name).unwrap()).collect(),
            sightings: Vec::new(),
            spares: Vec::new(),
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
        journal.write(&entry("c1")).unwrap();
        sight.save(&memory("s1", 1, &[])).unwrap();
        let age = |path: &Path| File::open(path).unwrap().set_modified(std::time::UNIX_EPOCH).unwrap();
        fs::write(&sight.path, "{}").unwrap(); // of a version that wrote such files
        let left = [journal.folder().join("aa.tmp1"), state.join("store.tmp1")];
        let young = [journal.folder().join("aa.tmp2"), state.join("store.tmp2")];
        for path in left.iter().chain(&young) {
            fs::write(path, "{").unwrap();
        }
        left.iter().chain(&journal.list().unwrap()).for_each(|path| age(path));
        journal.write(&entry("c2")).unwrap();
        sight.save(&memory("s1", 2, &[])).unwrap();
        assert!(!left.iter().any(|path| path.exists()));
        assert!(young.iter().all(|path| path.exists()));
        assert_eq!(journal.list().unwrap().len(), 2);
        fs::remove_dir_all(&state).unwrap();
    }

    #[test]
    fn the_sight_never_goes_back_for_one_store() {
        let state = folder("sight");
        let sight = Sight::new(&state);
        assert_eq!(sight.load(), Memory::default());
        sight.save(&Memory::default()).unwrap();
        assert!(!sight.path.exists(), "a store that was not seen");
        sight.save(&memory("s1", 5, &[])).unwrap();
        sight.save(&memory("s1", 3, &["lan"])).unwrap();
        assert_eq!(sight.load(), memory("s1", 5, &["lan"]));
        sight.save(&memory("s2", 1, &["lan"])).unwrap();
        assert_eq!(sight.load(), memory("s2", 1, &["lan"]));
        fs::remove_dir_all(&state).unwrap();
    }

    #[test]
    fn the_sight_is_written_for_a_new_pool_or_sighting_and_not_for_another_order() {
        let state = folder("order");
        let sight = Sight::new(&state);
        sight.save(&memory("s1", 5, &["lan", "db"])).unwrap();
        sight.save(&memory("s1", 5, &["db", "lan"])).unwrap();
        assert_eq!(sight.load(), memory("s1", 5, &["lan", "db"]));
        sight.save(&memory("s1", 5, &["web", "db", "lan"])).unwrap();
        assert_eq!(sight.load(), memory("s1", 5, &["web", "db", "lan"]));
        sight.save(&memory("s1", 6, &["lan", "db"])).unwrap();
        assert_eq!(sight.load(), memory("s1", 6, &["lan", "db"]));
        let mut seen = memory("s1", 6, &["lan", "db"]);
        seen.sightings.push(sighting(5, 7_000_000));
        sight.save(&seen).unwrap();
        assert_eq!(sight.load(), seen);
        seen.spares.push(spares("lan", &["10.0.0.1", "fd00::1"]));
        sight.save(&seen).unwrap();
        assert_eq!(sight.load(), seen);
        fs::remove_dir_all(&state).unwrap();
    }

    fn spares(pool: &str, addresses: &[&str]) -> Spares {
        Spares {
            network: NetworkName::new("lan100").unwrap(),
            pool: PoolName::new(pool).unwrap(),
            domain: DomainName::new("default").unwrap(),
            addresses: addresses.iter().map(|address| address.parse().unwrap()).collect(),
            uses: 3,
        }
    }

    #[test]
    fn one_at_a_time_has_its_turn() {
        let state = folder("turn");
        let turn = Turn::new(&state);
        let first = turn.take().unwrap();
        assert!(first.is_some());
        assert!(turn.take().unwrap().is_none());
        drop(first);
        assert!(turn.take().unwrap().is_some());
        fs::remove_dir_all(&state).unwrap();
    }

    /// Its reader sees a half of it at worst, and knows.
    #[test]
    fn a_sight_that_is_half_written_says_nothing_and_is_written_whole_again() {
        let state = folder("torn");
        let sight = Sight::new(&state);
        let names: Vec<String> = (0..60).map(|number| format!("pool-{number}")).collect();
        let long = memory("s1", 7, &names.iter().map(String::as_str).collect::<Vec<_>>());
        let short = memory("s1", 8, &["lan"]);
        sight.save(&long).unwrap();
        assert_eq!(sight.load(), long);
        let longer = fs::read(&sight.path).unwrap();
        assert_eq!(longer.len(), 2 * BLOCK);
        fs::remove_file(&sight.path).unwrap();
        sight.save(&short).unwrap();
        let shorter = fs::read(&sight.path).unwrap();
        assert_eq!(shorter.len(), BLOCK);
        for cut in 0..BLOCK {
            let torn = [&shorter[..cut], &longer[cut..]].concat();
            fs::write(&sight.path, &torn).unwrap();
            let seen = sight.load();
            // As long as nothing that differs was written, it is the one before.
            assert!(seen == Memory::default() || seen == long && cut <= SEAL.len() + 16, "{cut}");
            fs::write(&sight.path, &shorter[..cut]).unwrap();
            let seen = sight.load();
            assert!(seen == Memory::default() || seen == short && cut > 60, "{cut}");
        }
        fs::write(&sight.path, [&shorter[..], &longer[BLOCK..]].concat()).unwrap();
        assert_eq!(sight.load(), Memory::default());
        sight.save(&short).unwrap();
        assert_eq!(fs::read(&sight.path).unwrap().len(), longer.len());
        assert_eq!(sight.load(), short);
        // Of an older version: replaced whole.
        fs::write(&sight.path, long.text().unwrap()).unwrap();
        let before = fs::metadata(&sight.path).unwrap().ino();
        sight.save(&memory("s1", 9, &["lan"])).unwrap();
        assert_ne!(fs::metadata(&sight.path).unwrap().ino(), before);
        assert_eq!(sight.load(), memory("s1", 9, &["lan"]));
        let before = fs::metadata(&sight.path).unwrap().ino();
        sight.save(&memory("s1", 10, &["lan"])).unwrap();
        assert_eq!(fs::metadata(&sight.path).unwrap().ino(), before);
        fs::remove_dir_all(&state).unwrap();
    }

    fn sighting(revision: i64, at: u64) -> Sighting {
        Sighting { revision: Revision(revision), boot: BootId::new("b1").unwrap(), at }
    }

    #[test]
    fn the_sight_of_another_version_and_rubbish_in_it_are_read_as_far_as_they_go() {
        let state = folder("versions");
        let sight = Sight::new(&state);
        let mut seen = memory("s1", 5, &["lan"]);
        seen.sightings = vec![sighting(4, 9), sighting(3, 2)];
        seen.spares = vec![spares("lan", &["10.0.0.1"]), spares("db", &[])];
        sight.save(&seen).unwrap();
        // An older version knows no more than `store`, `revision` and `pools`, or `sightings`.
        let mut written: Value = serde_json::from_slice(&fs::read(&sight.path).unwrap()).unwrap();
        assert!(written.as_object_mut().unwrap().shift_remove("sum").is_some());
        let sightings =
            json!([{"revision": 4, "boot": "b1", "at": 9}, {"revision": 3, "boot": "b1", "at": 2}]);
        let spares = json!([
            {"network": "lan100", "pool": "lan", "domain": "default", "addresses": ["10.0.0.1"], "uses": 3},
            {"network": "lan100", "pool": "db", "domain": "default", "addresses": [], "uses": 3},
        ]);
        let expected = json!({"v": 1, "store": "s1", "revision": 5, "pools": ["lan"], "sightings": sightings, "spares": spares});
        assert_eq!(written, expected);
        let case = |text: &str, expected: &[&str]| {
            fs::write(&sight.path, text).unwrap();
            assert_eq!(sight.load(), memory("s1", 5, expected), "{text}");
        };
        case(r#"{"v":1,"store":"s1","revision":5}"#, &[]);
        case(r#"{"v":1,"store":"s1","revision":5,"pools":"lan"}"#, &[]);
        case(r#"{"v":1,"store":"s1","revision":5,"pools":[7,"../x","",null,["lan"],"db"]}"#, &["db"]);
        case(
            r#"{"v":1,"store":"s1","revision":5,"sightings":[7,{},{"revision":4,"at":9},{"revision":"4","boot":"b1","at":9}]}"#,
            &[],
        );
        case(
            r#"{"v":1,"store":"s1","revision":5,"spares":[7,{},{"network":"n","pool":"lan","domain":"d"},{"network":"n","pool":"../x","domain":"d","addresses":[],"uses":1}]}"#,
            &[],
        );
        case(r#"{"v":2,"store":"s1","revision":5,"pools":["lan"],"more":{}}"#, &["lan"]);
        for text in ["", "{", "[]", "7"] {
            fs::write(&sight.path, text).unwrap();
            assert_eq!(sight.load(), Memory::default(), "{text}");
        }
        fs::remove_dir_all(&state).unwrap();
    }
}

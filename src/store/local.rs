//! A store in one folder of one host: a redb database, opened for each call and closed after it.
//!
//! Why redb: it is pure Rust (no `unsafe` of ours, no C in a static build), a commit is checksummed and on the disk
//! before it is answered, and its format is stable. LMDB is as fast and opens for many processes, but `heed` cannot
//! be opened without `unsafe`; SQLite is C, too. redb's own mode for many writers at once is new, and mended with
//! every release; the old exclusive one is used here, and processes take turns:
//!
//! - The only lock is redb's, on the file itself. The kernel gives it back when its process dies, however it dies.
//!   Who finds it taken tries again, for a bounded time; then the error names the file and the time.
//! - A commit saves redb's allocator state, too, so that a file whose process was killed opens at once instead of
//!   being walked through.
//! - Nothing waits between opening and closing: a call that is dropped has been made or has not begun.
//! - A file is written aside and linked into place when it has everything that a new store has. A file that is
//!   there is never made anew, not even an empty one.
//!
//! Within the contract of [`super`]: only the present can be read, so a read `at` any other revision is
//! [`StoreError::Compacted`]; read an interval in one call, or begin again. An I/O error while the commit is written
//! is `Unanswered`; everything before it is `NotReached`. The limits are etcd's, so that what works here works there.

use std::{
    collections::BTreeSet,
    fs::{self, DirBuilder, File, OpenOptions},
    io,
    ops::ControlFlow,
    os::unix::fs::{DirBuilderExt, OpenOptionsExt},
    panic::{AssertUnwindSafe, catch_unwind},
    path::{Path, PathBuf},
    sync::atomic::{AtomicBool, Ordering},
    time::Duration,
};

use redb::{Builder, Database, ReadableDatabase, ReadableTable, TableDefinition, WriteTransaction};
use tokio::time::{Instant, sleep};

use super::{
    Compare, Entry, Found, Key, Outcome, Read, Revision, Snapshot, Span, Store, StoreError, Txn, Write,
};

/// The database's file in the folder.
pub const FILE: &str = "leases.redb";
/// How long to wait for the others, unless told: 100 calls of theirs, and a disk that stutters.
pub const WAIT: Duration = Duration::from_secs(5);

/// The layout of the tables below.
const FORMAT: i64 = 1;
/// Key to (revision of its last write, value).
const KEYS: TableDefinition<'_, &str, (i64, &[u8])> = TableDefinition::new("keys");
/// "format" and "revision".
const NUMBERS: TableDefinition<'_, &str, i64> = TableDefinition::new("numbers");

/// The most compares, writes or reads in one transaction, as etcd has it.
const MAX_OPERATIONS: usize = 128;
/// The most bytes in one transaction, as etcd has it.
const MAX_BYTES: usize = 1_572_864;
/// redb would take a GiB.
const CACHE: usize = 32 << 20;
/// Between two tries for the lock. A call takes some milliseconds.
const PAUSE: Duration = Duration::from_millis(1);

/// The store of one host.
#[derive(Clone, Debug)]
pub struct LocalStore {
    file: PathBuf,
    wait: Duration,
}

impl LocalStore {
    /// The store in a folder, and whether it was created by this call. Folder and file are made where there are
    /// none, with what `initial` says in it: no process ever sees the store without.
    ///
    /// # Errors
    /// [`StoreError::NotReached`] if the folder or the file cannot be made, or the file cannot be read or is none of
    /// ours.
    pub async fn open(
        dir: &Path,
        wait: Duration,
        initial: impl FnOnce() -> Vec<(Key, Vec<u8>)> + Send,
    ) -> Result<(Self, bool), StoreError> {
        let store = Self { file: dir.join(FILE), wait };
        if store.file.exists() {
            // What is wrong with the file is said now, and not in the middle of an ADD.
            store.read(&[], None).await?;
            return Ok((store, false));
        }
        let created = catch(|| create(dir, &store.file, initial())).map_err(|error| {
            StoreError::NotReached { reason: format!("{}: {error}", store.file.display()) }
        })?;
        Ok((store, created))
    }

    /// Its file.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.file
    }

    fn not_reached(&self, trouble: &Trouble, waited: Duration) -> StoreError {
        let file = self.file.display();
        let reason = match trouble {
            Trouble::Busy => {
                format!("{file}: held by other processes; waited {} ms for it", waited.as_millis())
            }
            Trouble::Other(reason) => format!("{file}: {reason}"),
        };
        StoreError::NotReached { reason }
    }

    /// Tries until the others let the file go, or the time is over.
    async fn patiently<T>(
        &self,
        attempt: impl Fn() -> Result<T, Trouble> + Send,
    ) -> (Result<T, Trouble>, Duration) {
        let begun = Instant::now();
        loop {
            let result = catch(&attempt);
            let waited = begun.elapsed();
            if !matches!(result, Err(Trouble::Busy)) || waited >= self.wait {
                return (result, waited);
            }
            sleep(PAUSE).await;
        }
    }

    fn try_read(
        &self,
        reads: &[Read],
        at: Option<Revision>,
    ) -> Result<Result<Snapshot, StoreError>, Trouble> {
        let db = match builder().open_read_only(&self.file) {
            // Its last writer was killed: only one who may write can mend that, by opening it.
            Err(redb::DatabaseError::RepairAborted) => {
                builder().open(&self.file)?.close()?;
                builder().open_read_only(&self.file)?
            }
            other => other?,
        };
        let found = {
            let txn = db.begin_read()?;
            let revision = revision_of(&txn.open_table(NUMBERS)?)?;
            if let Some(at) = at.filter(|at| *at != revision) {
                return Ok(Err(StoreError::Compacted(at)));
            }
            answers(&txn.open_table(KEYS)?, reads, revision)?
        };
        db.close()?;
        Ok(Ok(found))
    }

    fn try_commit(&self, txn: &Txn, doubt: &AtomicBool) -> Result<Outcome, Trouble> {
        let db = builder().open(&self.file)?;
        let outcome = match prepare(&db, txn)? {
            ControlFlow::Break(outcome) => outcome,
            ControlFlow::Continue((ready, revision)) => {
                doubt.store(true, Ordering::Relaxed);
                ready.commit()?;
                Outcome::Applied(revision)
            }
        };
        // What was committed is on the disk; the next one to open the file mends what closing left.
        let _ = db.close();
        Ok(outcome)
    }
}

impl Store for LocalStore {
    async fn read(&self, reads: &[Read], at: Option<Revision>) -> Result<Snapshot, StoreError> {
        self.refuse(check_reads(reads))?;
        let (result, waited) = self.patiently(|| self.try_read(reads, at)).await;
        result.map_err(|trouble| self.not_reached(&trouble, waited))?
    }

    async fn commit(&self, txn: &Txn) -> Result<Outcome, StoreError> {
        self.refuse(check_txn(txn))?;
        let doubt = AtomicBool::new(false);
        let (result, waited) = self.patiently(|| self.try_commit(txn, &doubt)).await;
        result.map_err(|trouble| match trouble {
            Trouble::Other(reason) if doubt.load(Ordering::Relaxed) => {
                StoreError::Unanswered { endpoint: self.file.display().to_string(), waited, reason }
            }
            Trouble::Busy | Trouble::Other(_) => self.not_reached(&trouble, waited),
        })
    }
}

impl LocalStore {
    fn refuse(&self, checked: Result<(), String>) -> Result<(), StoreError> {
        checked.map_err(|reason| StoreError::Refused { endpoint: self.file.display().to_string(), reason })
    }
}

// ---- limits

fn check_reads(reads: &[Read]) -> Result<(), String> {
    if reads.len() > MAX_OPERATIONS {
        return Err(format!("{} reads in one call, at most {MAX_OPERATIONS} are taken", reads.len()));
    }
    Ok(())
}

fn check_txn(txn: &Txn) -> Result<(), String> {
    check_reads(&txn.otherwise)?;
    for (what, count) in [("compares", txn.compares.len()), ("writes", txn.writes.len())] {
        if count > MAX_OPERATIONS {
            return Err(format!("{count} {what} in one transaction, at most {MAX_OPERATIONS} are taken"));
        }
    }
    let (mut written, mut bytes) = (BTreeSet::new(), 0);
    for write in txn.writes.iter().flat_map(Write::parts) {
        let (key, value) = match write {
            Write::Put(key, value) => (key, value.as_slice()),
            Write::Delete(key) => (key, &[][..]),
            Write::If(..) => return Err("a condition inside a condition".into()),
        };
        if !written.insert(key) {
            return Err(format!("{key} is written twice in one transaction"));
        }
        bytes += key.as_str().len() + value.len();
    }
    if bytes > MAX_BYTES {
        return Err(format!("{bytes} bytes in one transaction, at most {MAX_BYTES} are taken"));
    }
    Ok(())
}

// ---- what goes wrong

#[derive(Debug)]
enum Trouble {
    /// Another process has the file.
    Busy,
    /// Anything else.
    Other(String),
}

impl std::fmt::Display for Trouble {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Busy => f.write_str("held by another process"),
            Self::Other(reason) => f.write_str(reason),
        }
    }
}

impl From<redb::DatabaseError> for Trouble {
    fn from(error: redb::DatabaseError) -> Self {
        if matches!(error, redb::DatabaseError::DatabaseAlreadyOpen) {
            Self::Busy
        } else {
            Self::Other(error.to_string())
        }
    }
}

impl From<redb::TableError> for Trouble {
    fn from(error: redb::TableError) -> Self {
        Self::Other(format!("not a store of ours: {error}"))
    }
}

macro_rules! other {
    ($($error:ty),+) => {
        $(impl From<$error> for Trouble {
            fn from(error: $error) -> Self {
                Self::Other(error.to_string())
            }
        })+
    };
}
other!(redb::TransactionError, redb::StorageError, redb::CommitError, io::Error);

/// redb trusts a file that was closed; one that was changed behind its back can make it panic.
fn catch<T>(act: impl FnOnce() -> Result<T, Trouble>) -> Result<T, Trouble> {
    catch_unwind(AssertUnwindSafe(act)).unwrap_or_else(|panic| {
        let text = panic.downcast_ref::<String>().map(String::as_str);
        let text = text.or_else(|| panic.downcast_ref::<&str>().copied()).unwrap_or("no reason given");
        Err(Trouble::Other(format!("corrupt: {text}")))
    })
}

// ---- the database

fn builder() -> Builder {
    let mut builder = Builder::new();
    builder.set_cache_size(CACHE);
    builder
}

/// Makes the folder and the file. False if another process made it first.
fn create(dir: &Path, file: &Path, initial: Vec<(Key, Vec<u8>)>) -> Result<bool, Trouble> {
    DirBuilder::new().recursive(true).mode(0o700).create(dir)?;
    let aside = dir.join(format!("{FILE}.{}.new", std::process::id()));
    // One of a process that had the same number and was killed.
    match fs::remove_file(&aside) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error.into()),
        Ok(()) | Err(_) => {}
    }
    OpenOptions::new().write(true).create_new(true).mode(0o600).open(&aside)?;
    let db = builder().create(&aside)?;
    let txn = begin(&db)?;
    {
        let mut numbers = txn.open_table(NUMBERS)?;
        numbers.insert("format", FORMAT)?;
        numbers.insert("revision", 1)?;
        let mut keys = txn.open_table(KEYS)?;
        for (key, value) in &initial {
            keys.insert(key.as_str(), (1, value.as_slice()))?;
        }
    }
    txn.commit()?;
    db.close()?;
    let linked = fs::hard_link(&aside, file);
    fs::remove_file(&aside)?;
    File::open(dir)?.sync_all()?;
    match linked {
        Ok(()) => Ok(true),
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => Ok(false),
        Err(error) => Err(error.into()),
    }
}

fn begin(db: &Database) -> Result<WriteTransaction, Trouble> {
    let mut txn = db.begin_write()?;
    txn.set_quick_repair(true);
    Ok(txn)
}

/// The store's revision; an error where the layout is not the one that this program knows.
fn revision_of(numbers: &impl ReadableTable<&'static str, i64>) -> Result<Revision, Trouble> {
    let number = |name| numbers.get(name).map(|found| found.map(|found| found.value()));
    match (number("format")?, number("revision")?) {
        (Some(FORMAT), Some(revision)) => Ok(Revision(revision)),
        (Some(format), Some(_)) => {
            Err(Trouble::Other(format!("written in format {format}, this program knows {FORMAT}")))
        }
        (_, None) | (None, _) => Err(Trouble::Other("not a store of ours: it has no revision".into())),
    }
}

/// Writes, if all compares hold, and says at which revision; else, or if there is nothing to write, the outcome.
fn prepare(db: &Database, txn: &Txn) -> Result<ControlFlow<Outcome, (WriteTransaction, Revision)>, Trouble> {
    let ready = begin(db)?;
    let mut changed = false;
    let revision = {
        let mut numbers = ready.open_table(NUMBERS)?;
        let mut keys = ready.open_table(KEYS)?;
        let revision = revision_of(&numbers)?;
        for compare in &txn.compares {
            if !holds(&keys, compare)? {
                return Ok(ControlFlow::Break(Outcome::Conflict(answers(&keys, &txn.otherwise, revision)?)));
            }
        }
        let next = revision.0 + 1;
        for write in &txn.writes {
            if let Write::If(compare, _) = write
                && !holds(&keys, compare)?
            {
                continue;
            }
            for part in write.parts() {
                changed |= match part {
                    Write::Put(key, value) => {
                        keys.insert(key.as_str(), (next, value.as_slice()))?;
                        true
                    }
                    Write::Delete(key) => keys.remove(key.as_str())?.is_some(),
                    Write::If(..) => false,
                };
            }
        }
        if !changed {
            return Ok(ControlFlow::Break(Outcome::Applied(revision)));
        }
        numbers.insert("revision", next)?;
        Revision(next)
    };
    Ok(ControlFlow::Continue((ready, revision)))
}

trait Keys: ReadableTable<&'static str, (i64, &'static [u8])> {}
impl<T: ReadableTable<&'static str, (i64, &'static [u8])>> Keys for T {}

/// The entries of an interval, until `meet` breaks.
fn walk(
    keys: &impl Keys,
    span: &Span,
    mut meet: impl FnMut(&str, i64, &[u8]) -> ControlFlow<()>,
) -> Result<(), redb::StorageError> {
    if span.from >= span.to {
        return Ok(());
    }
    for entry in keys.range::<&str>(span.from.as_str()..span.to.as_str())? {
        let (key, held) = entry?;
        let (revision, value) = held.value();
        if meet(key.value(), revision, value).is_break() {
            break;
        }
    }
    Ok(())
}

fn holds(keys: &impl Keys, compare: &Compare) -> Result<bool, redb::StorageError> {
    Ok(match compare {
        Compare::Absent(key) => keys.get(key.as_str())?.is_none(),
        Compare::Unchanged(key, revision) => {
            keys.get(key.as_str())?.is_some_and(|held| held.value().0 == revision.0)
        }
        Compare::Value(key, value) => keys.get(key.as_str())?.is_some_and(|held| held.value().1 == value),
        Compare::NoneSince(span, since) => {
            let mut none = true;
            walk(keys, span, |_, revision, _| {
                none = revision <= since.0;
                if none { ControlFlow::Continue(()) } else { ControlFlow::Break(()) }
            })?;
            none
        }
    })
}

fn answers(keys: &impl Keys, reads: &[Read], revision: Revision) -> Result<Snapshot, redb::StorageError> {
    let found = reads.iter().map(|read| answer(keys, read)).collect::<Result<_, _>>()?;
    Ok(Snapshot { revision, found })
}

fn answer(keys: &impl Keys, read: &Read) -> Result<Found, redb::StorageError> {
    Ok(match read {
        Read::Get(key) => {
            let found = keys.get(key.as_str())?.map(|held| {
                let (revision, value) = held.value();
                Entry { key: key.clone(), value: value.to_vec(), revision: Revision(revision) }
            });
            Found::Entries(found.into_iter().collect())
        }
        Read::List { span, keys_only, limit } => {
            let limit = limit.map_or(usize::MAX, |limit| limit as usize);
            let mut entries = Vec::new();
            walk(keys, span, |key, revision, value| {
                if entries.len() >= limit {
                    return ControlFlow::Break(());
                }
                let value = if *keys_only { Vec::new() } else { value.to_vec() };
                entries.push(Entry { key: Key::new(key), value, revision: Revision(revision) });
                ControlFlow::Continue(())
            })?;
            Found::Entries(entries)
        }
        Read::Count(span) => {
            let mut count = 0;
            walk(keys, span, |_, _, _| {
                count += 1;
                ControlFlow::Continue(())
            })?;
            Found::Count(count)
        }
    })
}

#[cfg(test)]
mod tests {
    use std::{
        io::{BufRead, BufReader, Write as _},
        os::unix::fs::PermissionsExt,
        process::{Child, Command, Stdio},
        sync::atomic::AtomicUsize,
    };

    use super::*;
    use crate::store::testing::Fixture;

    /// A folder that is removed after its test.
    struct Folder(PathBuf);

    impl Folder {
        fn new() -> Self {
            static COUNT: AtomicUsize = AtomicUsize::new(0);
            let count = COUNT.fetch_add(1, Ordering::Relaxed);
            let name = format!("leasehold-local-{}-{count}", std::process::id());
            let path = std::env::temp_dir().join(name);
            let _ = fs::remove_dir_all(&path);
            fs::create_dir(&path).unwrap();
            Self(path)
        }

        fn store(&self) -> PathBuf {
            self.0.join("store")
        }
    }

    impl Drop for Folder {
        fn drop(&mut self) {
            let _ = fs::remove_dir_all(&self.0);
        }
    }

    async fn fresh() -> Option<Fixture<LocalStore>> {
        let folder = Folder::new();
        let (store, created) = open(&folder.store()).await;
        assert!(created);
        Some(Fixture { store, keep: Box::new(folder) })
    }

    crate::suite!(local_store, super::fresh);

    async fn open(dir: &Path) -> (LocalStore, bool) {
        LocalStore::open(dir, Duration::from_secs(60), Vec::new).await.unwrap()
    }

    fn key(text: &str) -> Key {
        Key::new(text)
    }

    fn put(text: &str, value: u64) -> Write {
        Write::Put(key(text), value.to_string().into_bytes())
    }

    fn number(snapshot: &Snapshot, index: usize) -> u64 {
        snapshot.entry(index).map_or(0, |entry| String::from_utf8_lossy(&entry.value).parse().unwrap())
    }

    fn put_txn(text: &str) -> Txn {
        Txn { writes: vec![put(text, 1)], ..Txn::default() }
    }

    #[tokio::test]
    async fn folder_and_file_are_for_their_owner_only() {
        let folder = Folder::new();
        let dir = folder.0.join("a/b");
        let (store, created) = open(&dir).await;
        assert!(created);
        let mode = |path: &Path| fs::metadata(path).unwrap().permissions().mode() & 0o777;
        assert_eq!((mode(&dir), mode(store.path())), (0o700, 0o600));
        // Nothing else is left in the folder.
        assert_eq!(fs::read_dir(&dir).unwrap().count(), 1);
    }

    #[tokio::test]
    async fn a_new_store_has_its_first_records_and_an_old_one_keeps_its_own() {
        let folder = Folder::new();
        let first = |text: &'static str| move || vec![(key("v1/meta"), text.into())];
        for (text, expected) in [("one", true), ("two", false)] {
            let (store, created) = LocalStore::open(&folder.store(), WAIT, first(text)).await.unwrap();
            assert_eq!(created, expected);
            let found = store.read(&[Read::Get(key("v1/meta"))], None).await.unwrap();
            assert_eq!(found.entry(0).unwrap().value, b"one");
            assert_eq!(found.entry(0).unwrap().revision, found.revision);
        }
    }

    #[tokio::test]
    async fn what_was_written_is_there_after_opening_again() {
        let folder = Folder::new();
        let (store, _) = open(&folder.store()).await;
        let Outcome::Applied(revision) = store.commit(&put_txn("k")).await.unwrap() else {
            panic!("conflict")
        };
        let (store, created) = open(&folder.store()).await;
        assert!(!created);
        let found = store.read(&[Read::Get(key("k"))], None).await.unwrap();
        assert_eq!(found.entry(0).unwrap().revision, revision);
    }

    #[tokio::test]
    async fn only_the_present_can_be_read() {
        let folder = Folder::new();
        let (store, _) = open(&folder.store()).await;
        let past = store.read(&[], None).await.unwrap().revision;
        let _ = store.commit(&put_txn("k")).await.unwrap();
        let now = store.read(&[], None).await.unwrap().revision;
        assert_eq!(store.read(&[], Some(past)).await, Err(StoreError::Compacted(past)));
        assert!(store.read(&[], Some(now)).await.is_ok());
        let future = Revision(now.0 + 1);
        assert_eq!(store.read(&[], Some(future)).await, Err(StoreError::Compacted(future)));
    }

    /// A commit, and how it is refused.
    async fn refused(txn: Txn) -> String {
        let folder = Folder::new();
        let (store, _) = open(&folder.store()).await;
        let result = store.commit(&txn).await;
        let Err(StoreError::Refused { endpoint, reason }) = result else { panic!("{result:?}") };
        assert_eq!(endpoint, store.path().display().to_string());
        reason
    }

    #[tokio::test]
    async fn the_limits_are_those_of_etcd() {
        let many = || (0..129).map(|n| key(&n.to_string()));
        let none = Txn::default;
        let twice = vec![Write::Delete(key("k")), put("k", 1)];
        let big = vec![Write::Put(key("k"), vec![0; MAX_BYTES])];
        for (txn, expected) in [
            (
                Txn { compares: many().map(Compare::Absent).collect(), ..none() },
                "129 compares in one transaction, at most 128 are taken",
            ),
            (
                Txn { writes: many().map(Write::Delete).collect(), ..none() },
                "129 writes in one transaction, at most 128 are taken",
            ),
            (
                Txn { otherwise: many().map(Read::Get).collect(), ..none() },
                "129 reads in one call, at most 128 are taken",
            ),
            (Txn { writes: twice, ..none() }, "k is written twice in one transaction"),
            (Txn { writes: big, ..none() }, "1572865 bytes in one transaction, at most 1572864 are taken"),
        ] {
            assert_eq!(refused(txn).await, expected);
        }
    }

    #[tokio::test]
    async fn a_file_that_another_holds_is_waited_for_and_named() {
        let folder = Folder::new();
        open(&folder.store()).await;
        let wait = Duration::from_millis(50);
        let (store, _) = LocalStore::open(&folder.store(), wait, Vec::new).await.unwrap();
        let holder = builder().open(store.path()).unwrap();
        for result in [store.read(&[], None).await.map(|_| ()), store.commit(&put_txn("k")).await.map(|_| ())]
        {
            let Err(StoreError::NotReached { reason }) = result else { panic!("{result:?}") };
            let before = format!("{}: held by other processes; waited ", store.path().display());
            let waited = reason.strip_prefix(&before).and_then(|rest| rest.strip_suffix(" ms for it"));
            let waited: u128 = waited.unwrap_or_else(|| panic!("{reason}")).parse().unwrap();
            assert!((50..5000).contains(&waited), "{waited}");
        }
        let (result, ()) = tokio::join!(
            async {
                LocalStore::open(&folder.store(), WAIT, Vec::new).await.unwrap().0.commit(&put_txn("k")).await
            },
            async {
                sleep(Duration::from_millis(30)).await;
                drop(holder);
            }
        );
        assert!(matches!(result, Ok(Outcome::Applied(_))), "{result:?}");
    }

    #[tokio::test]
    async fn a_file_that_is_none_of_ours_is_named_and_left_alone() {
        let folder = Folder::new();
        let (store, _) = open(&folder.store()).await;
        let good = fs::read(store.path()).unwrap();
        let foreign = folder.0.join("foreign");
        drop(Database::create(&foreign).unwrap());
        let later = folder.0.join("later");
        fs::copy(store.path(), &later).unwrap();
        {
            let db = Database::open(&later).unwrap();
            let txn = db.begin_write().unwrap();
            txn.open_table(NUMBERS).unwrap().insert("format", 2).unwrap();
            txn.commit().unwrap();
        }
        for (bytes, expected) in [
            (Vec::new(), ""),
            (b"text, and no database at all".to_vec(), ""),
            (good[..good.len() / 2].to_vec(), ""),
            (vec![0; good.len()], ""),
            (good.iter().map(|byte| byte ^ 0x55).collect(), ""),
            (fs::read(&foreign).unwrap(), "not a store of ours: "),
            (fs::read(&later).unwrap(), "written in format 2, this program knows 1"),
        ] {
            fs::write(store.path(), &bytes).unwrap();
            let opened = LocalStore::open(&folder.store(), WAIT, Vec::new).await.map(|_| ());
            for result in [opened, store.commit(&put_txn("k")).await.map(|_| ())] {
                let Err(StoreError::NotReached { reason }) = result else { panic!("{result:?}") };
                let text = reason.strip_prefix(&format!("{}: ", store.path().display()));
                assert!(text.is_some_and(|text| text.starts_with(expected) && !text.is_empty()), "{reason}");
            }
            if expected.is_empty() {
                assert!(fs::read(store.path()).unwrap() == bytes, "the file was changed");
            }
        }
        fs::write(store.path(), &good).unwrap();
        assert!(store.commit(&put_txn("k")).await.is_ok());
    }

    #[tokio::test]
    async fn a_folder_that_cannot_be_made_is_named() {
        let folder = Folder::new();
        fs::write(folder.store(), "a file").unwrap();
        let result = LocalStore::open(&folder.store(), WAIT, Vec::new).await;
        let Err(StoreError::NotReached { reason }) = result else { panic!("{result:?}") };
        assert!(reason.starts_with(&folder.store().join(FILE).display().to_string()), "{reason}");
    }

    // ---- many processes

    /// What a child of these tests does: the store's folder, its own number, how many commits (0: without end).
    const ORDERS: &str = "LEASEHOLD_TEST_LOCAL_STORE";

    /// A process of its own that commits.
    fn child(dir: &Path, me: usize, commits: u64) -> Child {
        Command::new(std::env::current_exe().unwrap())
            .args(["store::local::tests::in_a_process_of_its_own", "--exact", "--ignored", "--nocapture"])
            .env(ORDERS, format!("{}\n{me}\n{commits}", dir.display()))
            .stdout(Stdio::piped())
            .stderr(Stdio::inherit())
            .spawn()
            .unwrap()
    }

    /// The answers that a child sees, by number. The harness writes into the same lines.
    fn answers_of(child: &mut Child) -> impl Iterator<Item = u64> + use<> {
        let lines = BufReader::new(child.stdout.take().unwrap()).lines();
        lines.map_while(Result::ok).filter_map(|line| {
            line.split_once("answered ").and_then(|(_, number)| number.strip_suffix('.')?.parse().ok())
        })
    }

    #[tokio::test]
    #[ignore = "a child of the tests below, not a test"]
    async fn in_a_process_of_its_own() {
        let Some(orders) = std::env::var_os(ORDERS) else { return };
        let orders = orders.into_string().unwrap();
        let mut orders = orders.lines();
        let dir = PathBuf::from(orders.next().unwrap());
        let own = format!("own/{}", orders.next().unwrap());
        let commits: u64 = orders.next().unwrap().parse().unwrap();
        let (store, _) = open(&dir).await;
        let reads = [Read::Get(key("sum")), Read::Get(key(&own))];
        let mut done = 0;
        while commits == 0 || done < commits {
            let seen = store.read(&reads, None).await.unwrap();
            let txn = Txn {
                compares: vec![match seen.entry(0) {
                    None => Compare::Absent(key("sum")),
                    Some(entry) => Compare::Unchanged(key("sum"), entry.revision),
                }],
                writes: vec![put("sum", number(&seen, 0) + 1), put(&own, number(&seen, 1) + 1)],
                otherwise: vec![],
            };
            if let Outcome::Applied(_) = store.commit(&txn).await.unwrap() {
                done += 1;
                println!("answered {}.", number(&seen, 1) + 1);
                std::io::stdout().flush().unwrap();
            }
        }
    }

    /// The sum, and what each child added to it.
    async fn sums(dir: &Path) -> (u64, Vec<u64>) {
        let (store, _) = open(dir).await;
        let found =
            store.read(&[Read::Get(key("sum")), Read::list(Span::prefix("own/"))], None).await.unwrap();
        let own = found.entries(1).iter().map(|entry| String::from_utf8_lossy(&entry.value).parse().unwrap());
        (number(&found, 0), own.collect())
    }

    #[tokio::test]
    async fn sixteen_processes_lose_no_update() {
        let folder = Folder::new();
        // They create the store, too.
        let children: Vec<_> = (0..16).map(|me| child(&folder.store(), me, 50)).collect();
        for mut child in children {
            assert_eq!(answers_of(&mut child).last(), Some(50));
            assert!(child.wait().unwrap().success());
        }
        assert_eq!(sums(&folder.store()).await, (800, vec![50; 16]));
    }

    #[tokio::test]
    async fn a_killed_process_takes_nothing_with_it_and_leaves_nothing_half_done() {
        let folder = Folder::new();
        let mut random: u64 = 0x9E37_79B9_7F4A_7C15;
        let mut least = [0; 2];
        for round in 0..50 {
            let mut children = [0, 1].map(|me| child(&folder.store(), me, 0));
            let mut answers = children.each_mut().map(answers_of);
            // Both are at it.
            for (least, answers) in least.iter_mut().zip(&mut answers) {
                *least = answers.next().unwrap();
            }
            random ^= random << 13;
            random ^= random >> 7;
            random ^= random << 17;
            sleep(Duration::from_micros(random % 20_000)).await;
            for child in &mut children {
                child.kill().unwrap();
                child.wait().unwrap();
            }
            for (least, answers) in least.iter_mut().zip(answers) {
                *least = answers.last().unwrap_or(0).max(*least);
            }
            let (sum, own) = sums(&folder.store()).await;
            assert_eq!(own.iter().sum::<u64>(), sum, "round {round}: half a transaction");
            for (own, least) in own.iter().zip(least) {
                assert!(*own >= least, "round {round}: {least} was answered, {own} is there");
            }
        }
    }
}

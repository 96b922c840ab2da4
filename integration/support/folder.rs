//! Temporary folders.

use std::{
    fs,
    fs::DirBuilder,
    os::unix::fs::DirBuilderExt,
    path::{Path, PathBuf},
    process,
    process::Command,
    sync::{
        Once, OnceLock,
        atomic::{AtomicU32, Ordering},
    },
};

/// A folder of mode 0700 that goes away with this value.
#[derive(Debug)]
pub(crate) struct Folder(PathBuf);

impl Folder {
    pub(crate) fn new() -> Self {
        Self::inside(&std::env::temp_dir())
    }

    /// In memory where there is room (in a container /dev/shm may have 64 MiB): for data whose fate in a power loss
    /// is not the subject.
    pub(crate) fn in_memory() -> Self {
        static ROOMY: OnceLock<bool> = OnceLock::new();
        const ENOUGH_KIB: u64 = 4 << 20;
        let roomy = *ROOMY.get_or_init(|| {
            let df = Command::new("df").args(["-k", "--output=avail", "/dev/shm"]).output();
            let text =
                df.map(|output| String::from_utf8_lossy(&output.stdout).into_owned()).unwrap_or_default();
            text.lines().nth(1).and_then(|free| free.trim().parse::<u64>().ok()).unwrap_or(0) >= ENOUGH_KIB
        });
        if roomy { Self::inside(Path::new("/dev/shm")) } else { Self::new() }
    }

    pub(crate) fn path(&self) -> &Path {
        &self.0
    }

    fn inside(parent: &Path) -> Self {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        static SWEEP: Once = Once::new();
        SWEEP.call_once(|| {
            sweep(&std::env::temp_dir());
            sweep(Path::new("/dev/shm"));
        });
        let name = format!("{PREFIX}{}-{}", process::id(), NEXT.fetch_add(1, Ordering::Relaxed));
        let path = parent.join(name);
        DirBuilder::new().mode(0o700).create(&path).unwrap();
        Self(path)
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        // LEASEHOLD_KEEP: somebody wants to look at what a failing test left
        if std::env::var_os("LEASEHOLD_KEEP").is_none() {
            let _ = fs::remove_dir_all(&self.0); // it may hold what another user or a mount made: not worth a failure
        }
    }
}

const PREFIX: &str = "leasehold-test-";

/// Takes away what runs that were killed could not.
fn sweep(parent: &Path) {
    for entry in fs::read_dir(parent).into_iter().flatten().flatten() {
        let name = entry.file_name();
        let owner =
            name.to_str().and_then(|name| name.strip_prefix(PREFIX)).and_then(|rest| rest.split('-').next());
        if owner.is_some_and(|pid| !Path::new("/proc").join(pid).exists()) {
            let _ = fs::remove_dir_all(entry.path());
        }
    }
}

#[test]
fn a_folder_goes_with_its_value() {
    let folder = Folder::new();
    let path = folder.path().to_owned();
    fs::write(path.join("file"), "x").unwrap();
    drop(folder);
    assert!(!path.exists());
    assert!(Folder::in_memory().path().is_dir());
}

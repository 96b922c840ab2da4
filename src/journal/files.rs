//! Files of the state folder: whole or not at all, for root alone, and locked.

use std::{
    fs::{self, File, OpenOptions, TryLockError},
    io::{self, Write},
    os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt},
    path::Path,
    time::Duration,
};

/// The extension of a file that is being written; the process's number follows.
const TEMPORARY: &str = "tmp";
/// Nobody writes a file for so long: who left it half was killed.
const ABANDONED: Duration = Duration::from_secs(3600);

pub(super) fn is_same(file: &File, path: &Path) -> io::Result<bool> {
    let ours = file.metadata()?;
    match fs::metadata(path) {
        Ok(now) => Ok((now.dev(), now.ino()) == (ours.dev(), ours.ino())),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(false),
        Err(error) => Err(error),
    }
}

/// A folder that only root reads: what stands in it decides about addresses.
pub(super) fn make_folder(folder: &Path) -> io::Result<()> {
    fs::DirBuilder::new().recursive(true).mode(0o700).create(folder)
}

/// Writes a file whole or not at all, and takes away what others that were killed at this left in its folder.
pub(super) fn replace(path: &Path, bytes: &[u8], durable: bool) -> io::Result<()> {
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

/// Opens a file of the state folder as it is, or makes both.
pub(super) fn create(path: &Path) -> io::Result<File> {
    let open = || OpenOptions::new().write(true).create(true).truncate(false).mode(0o600).open(path);
    match open() {
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            path.parent().map_or(Ok(()), make_folder)?;
            open()
        }
        other => other,
    }
}

/// Locks it until it is closed. `false`: another has it.
pub(super) fn try_lock(file: &File) -> io::Result<bool> {
    match file.try_lock() {
        Ok(()) => Ok(true),
        Err(TryLockError::WouldBlock) => Ok(false),
        Err(TryLockError::Error(error)) => Err(error),
    }
}

/// The first bytes of these.
pub(super) fn hex(bytes: &[u8], most: usize) -> String {
    bytes.iter().take(most).map(|byte| format!("{byte:02x}")).collect()
}

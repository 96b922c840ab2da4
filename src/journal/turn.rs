//! Whose turn it is to count.

use std::{
    fs::File,
    io,
    path::{Path, PathBuf},
};

use super::files::{create, try_lock};

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
        Ok(try_lock(&file)?.then_some(file))
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::{super::tests::folder, *};

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
}

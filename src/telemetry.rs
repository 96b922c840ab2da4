//! The node log: one JSON object a line, in a file; and in it the audit trail, a line for every change of a lease.
//!
//! It never writes to stdout or stderr (they are the runtime's), and it never fails its caller: a log that cannot be
//! written is no reason to leave a pod without an address. Many processes append at once: each line is one `write`
//! to a file opened for appending, and only one process turns the file over.

use std::{
    fs::{self, File, OpenOptions},
    io::Write,
    os::unix::fs::{MetadataExt, OpenOptionsExt},
    path::{Path, PathBuf},
};

use serde_json::{Map, Value};

use crate::{
    config::{Level, LogSettings},
    domain::lease::Timestamp,
};

/// Longer lines are cut: one `write` of this size is not split on any local file system.
const LONGEST: usize = 16 << 10;

/// One change: who, what, why.
#[derive(Clone, Copy, Debug)]
pub struct Change<'a> {
    /// What kind: `lease.bound`, `lease.released`, …
    pub event: &'a str,
    /// Whose lease: `shop/db-0 eth0 on lan100`.
    pub who: &'a str,
    /// The addresses.
    pub what: &'a [String],
    /// The reason.
    pub why: &'a str,
    /// Pool, container, node and what else there is.
    pub more: &'a [(&'a str, Value)],
}

/// Where lines go.
#[derive(Clone, Debug)]
pub struct Log(Option<Sink>);

#[derive(Clone, Debug)]
struct Sink {
    file: PathBuf,
    level: Level,
    max_size: u64,
}

impl Log {
    /// Nowhere.
    #[must_use]
    pub const fn quiet() -> Self {
        Self(None)
    }

    /// To the file of the settings, if they name one. Nothing is opened before the first line.
    #[must_use]
    pub fn new(settings: &LogSettings) -> Self {
        let LogSettings { file, level, max_size } = settings;
        Self(file.clone().map(|file| Sink { file, level: *level, max_size: *max_size }))
    }

    /// Would a line of this level be written?
    #[must_use]
    pub fn takes(&self, level: Level) -> bool {
        self.0.as_ref().is_some_and(|sink| level <= sink.level)
    }

    /// Writes a line: `{"ts", "level", "msg", …fields}`.
    pub fn line(&self, now: Timestamp, level: Level, msg: &str, fields: &[(&str, Value)]) {
        if let Some(sink) = &self.0
            && level <= sink.level
        {
            let mut map = Map::new();
            map.insert("ts".into(), time(now).into());
            map.insert("level".into(), level.as_str().into());
            map.insert("msg".into(), msg.into());
            append(sink, with(map, fields));
        }
    }

    /// Writes a line of the audit trail: `{"ts", "level": "info", "event", "who", "what", "why", …}`. It is written
    /// whatever the level, wherever there is a file.
    pub fn change(&self, now: Timestamp, change: &Change<'_>) {
        if let Some(sink) = &self.0 {
            let mut map = Map::new();
            map.insert("ts".into(), time(now).into());
            map.insert("level".into(), Level::Info.as_str().into());
            map.insert("event".into(), change.event.into());
            map.insert("who".into(), change.who.into());
            map.insert("what".into(), change.what.to_vec().into());
            map.insert("why".into(), change.why.into());
            append(sink, with(map, change.more));
        }
    }
}

fn with(mut map: Map<String, Value>, fields: &[(&str, Value)]) -> Map<String, Value> {
    for (name, value) in fields {
        map.entry(*name).or_insert_with(|| value.clone());
    }
    map
}

/// RFC 3339, UTC, milliseconds.
fn time(now: Timestamp) -> String {
    jiff::Timestamp::from_millisecond(now.0).map_or_else(|_| now.0.to_string(), |time| format!("{time:.3}"))
}

fn append(sink: &Sink, map: Map<String, Value>) {
    let mut line = Value::Object(map.clone()).to_string();
    if line.len() >= LONGEST {
        line = Value::Object(shortened(map)).to_string();
    }
    line.push('\n');
    let added = u64::try_from(line.len()).unwrap_or(u64::MAX);
    let Some(mut file) = open(&sink.file) else { return };
    let full =
        |file: &File| file.metadata().is_ok_and(|meta| meta.len().saturating_add(added) > sink.max_size);
    if full(&file) {
        turn_over(&sink.file, &file);
        match open(&sink.file) {
            Some(fresh) => file = fresh,
            None => return,
        }
        // Who turns it over may be stopped: then lines are lost rather than the disk.
        if file.metadata().is_ok_and(|meta| meta.len() / 2 > sink.max_size) {
            return;
        }
    }
    // One call, so that lines of many processes do not mix. A short one (disk full) is ended, for the next to begin.
    if let Ok(written) = file.write(line.as_bytes())
        && written < line.len()
        && written > 0
    {
        file.write_all(b"\n").ok();
    }
}

/// What fits: long texts are cut, everything else that is long is dropped.
fn shortened(map: Map<String, Value>) -> Map<String, Value> {
    let room = LONGEST / 16;
    let mut out = Map::new();
    for (name, value) in map.into_iter().take(12) {
        let value = match value {
            Value::String(text) if text.len() > room => {
                text.chars().take(room / 6).chain(['…']).collect::<String>().into()
            }
            Value::Array(_) | Value::Object(_) if value.to_string().len() > room => "…".into(),
            Value::String(_)
            | Value::Array(_)
            | Value::Object(_)
            | Value::Null
            | Value::Bool(_)
            | Value::Number(_) => value,
        };
        if name.len() <= 64 {
            out.insert(name, value);
        }
    }
    out
}

/// Only a regular file: opening a FIFO would wait for its reader.
fn open(path: &Path) -> Option<File> {
    let attempt = || {
        if fs::metadata(path).is_ok_and(|meta| !meta.is_file()) {
            return None;
        }
        OpenOptions::new().append(true).create(true).mode(0o640).open(path).ok()
    };
    attempt().or_else(|| {
        fs::create_dir_all(path.parent()?).ok()?;
        attempt()
    })
}

/// Makes the file its own `.1`. The lock is on the file itself: who gets it after a turn-over sees that the path
/// names another file by now, and leaves that alone. A lock that somebody holds is not waited for.
fn turn_over(path: &Path, file: &File) {
    if file.try_lock().is_err() {
        return;
    }
    let inode = |meta: fs::Metadata| (meta.dev(), meta.ino());
    if let (Ok(named), Ok(held)) = (fs::metadata(path), file.metadata())
        && inode(named) == inode(held)
    {
        let mut old = path.as_os_str().to_owned();
        old.push(".1");
        fs::rename(path, old).ok();
    }
}

#[cfg(test)]
mod tests {
    use std::{os::unix::fs::PermissionsExt, process, thread};

    use super::*;

    fn folder(name: &str) -> PathBuf {
        let folder = std::env::temp_dir().join(format!("leasehold-log-{}-{name}", process::id()));
        fs::remove_dir_all(&folder).ok();
        fs::create_dir_all(&folder).unwrap();
        folder
    }

    fn log(file: &Path, level: Level, max_size: u64) -> Log {
        Log::new(&LogSettings { file: Some(file.into()), level, max_size })
    }

    const NOW: Timestamp = Timestamp(1_700_000_000_123);

    #[test]
    fn a_line_is_one_json_object() {
        let folder = folder("line");
        let file = folder.join("deep/er/node.log");
        let log = log(&file, Level::Info, 1 << 20);
        log.line(NOW, Level::Info, "started\n\"x\"", &[("took_ms", 3.into()), ("msg", "not this".into())]);
        log.line(NOW, Level::Debug, "not written", &[]);
        log.change(
            NOW,
            &Change {
                event: "lease.bound",
                who: "shop/db-0 eth0 on lan100",
                what: &["10.0.0.1".into()],
                why: "new",
                more: &[("pool", "shop-db".into())],
            },
        );
        assert_eq!(
            fs::read_to_string(&file).unwrap(),
            "{\"ts\":\"2023-11-14T22:13:20.123Z\",\"level\":\"info\",\"msg\":\"started\\n\\\"x\\\"\",\"took_ms\":3}\n\
             {\"ts\":\"2023-11-14T22:13:20.123Z\",\"level\":\"info\",\"event\":\"lease.bound\",\"who\":\"shop/db-0 eth0 on lan100\",\"what\":[\"10.0.0.1\"],\"why\":\"new\",\"pool\":\"shop-db\"}\n"
        );
        assert_eq!(fs::metadata(&file).unwrap().permissions().mode() & 0o7, 0);
        fs::remove_dir_all(folder).ok();
    }

    #[test]
    fn without_a_file_it_is_quiet_and_the_audit_trail_needs_no_level() {
        let log_of = Log::new(&LogSettings { file: None, level: Level::Debug, max_size: 1 << 20 });
        assert!(!log_of.takes(Level::Error) && !Log::quiet().takes(Level::Error));
        let folder = folder("level");
        let file = folder.join("node.log");
        let log = log(&file, Level::Error, 1 << 20);
        assert!(log.takes(Level::Error) && !log.takes(Level::Warn));
        log.change(NOW, &Change { event: "lease.held", who: "a/b", what: &[], why: "DEL", more: &[] });
        assert!(fs::read_to_string(&file).unwrap().contains("lease.held"));
        fs::remove_dir_all(folder).ok();
    }

    #[test]
    fn b130_many_writers_leave_whole_lines_and_two_files_of_the_cap() {
        let folder = folder("many");
        let file = folder.join("node.log");
        let cap = 64 << 10;
        thread::scope(|scope| {
            for writer in 0..16 {
                let log = log(&file, Level::Info, cap);
                scope.spawn(move || {
                    for line in 0..200 {
                        log.line(NOW, Level::Info, &"x".repeat(line), &[("writer", writer.into())]);
                    }
                });
            }
        });
        let mut names: Vec<_> = fs::read_dir(&folder)
            .unwrap()
            .map(|entry| entry.unwrap().file_name().into_string().unwrap())
            .collect();
        names.sort();
        assert_eq!(names, ["node.log", "node.log.1"]);
        for name in names {
            let text = fs::read_to_string(folder.join(&name)).unwrap();
            assert!(text.len() < 3 * usize::try_from(cap).unwrap(), "{name} has {} bytes", text.len());
            assert!(text.ends_with('\n'));
            for line in text.lines() {
                serde_json::from_str::<Map<String, Value>>(line).unwrap();
            }
        }
        fs::remove_dir_all(folder).ok();
    }

    #[test]
    fn b130_a_log_that_cannot_be_written_is_no_failure() {
        let folder = folder("bad");
        let plain = folder.join("file");
        fs::write(&plain, "").unwrap();
        for file in [plain.join("below"), folder.clone(), "/dev/full".into(), "/proc/nothing/here".into()] {
            log(&file, Level::Debug, 1).line(NOW, Level::Error, "x", &[]);
        }
        // A lock that somebody holds is not waited for; the file does not grow for ever either.
        let held = folder.join("held.log");
        fs::write(&held, vec![b'\n'; 1000]).unwrap();
        let holder = File::open(&held).unwrap();
        holder.lock().unwrap();
        let log = log(&held, Level::Debug, 1000);
        for _ in 0..100 {
            log.line(NOW, Level::Error, "y", &[]);
        }
        assert!(fs::metadata(&held).unwrap().len() < 2200);
        fs::remove_dir_all(folder).ok();
    }

    #[test]
    fn a_long_line_is_cut_and_stays_json() {
        let folder = folder("long");
        let file = folder.join("node.log");
        let many: Vec<Value> = (0..9000).map(Value::from).collect();
        log(&file, Level::Info, 1 << 20).line(
            NOW,
            Level::Info,
            &"é\n".repeat(40_000),
            &[("list", many.into())],
        );
        let text = fs::read_to_string(&file).unwrap();
        assert!(text.len() <= LONGEST, "{}", text.len());
        let line: Map<String, Value> = serde_json::from_str(&text).unwrap();
        assert_eq!(line["list"], "…");
        fs::remove_dir_all(folder).ok();
    }
}

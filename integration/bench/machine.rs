//! What it was measured on.

use std::{fs, path::Path, process::Command};

use super::{
    measure::{Bench, Times},
    report::shown,
};
use crate::support::folder::Folder;

/// The data of etcd and of host-local would be in memory, where no write waits.
pub(crate) fn refuse_memory() {
    let folder = std::env::temp_dir();
    let kind = said("stat", &["--file-system", "--format=%T", &folder.display().to_string()]);
    assert!(kind != "tmpfs", "{} is in memory: set TMPDIR to a folder on a disk", folder.display());
}

/// How many processes wanted to run in the last minute.
pub(crate) fn load() -> f64 {
    let text = fs::read_to_string("/proc/loadavg").unwrap();
    text.split(' ').next().unwrap().parse().unwrap()
}

pub(crate) fn facts(bench: &Bench, load_before: f64) -> Vec<(String, String)> {
    let cpus = fs::read_to_string("/proc/cpuinfo").unwrap();
    let models: Vec<&str> = cpus.lines().filter_map(|line| line.strip_prefix("model name")).collect();
    let model = models.first().map_or("", |line| line.trim_start_matches([' ', '\t', ':']));
    let memory = fs::read_to_string("/proc/meminfo").unwrap();
    let memory = memory.lines().next().unwrap().trim_start_matches("MemTotal:").trim().to_owned();
    let commit = said("git", &["describe", "--always", "--dirty", "--abbrev=12"]);
    let busy = if load_before > 0.5 { ": BUSY, so believe no figure but the ratios" } else { "" };
    let fact = |name: &str, value: String| (name.to_owned(), value);
    vec![
        fact("commit", commit),
        fact("when", said("date", &["--utc", "+%Y-%m-%d"])),
        fact("processors", format!("{} of {model}", models.len())),
        fact("memory", memory),
        fact("kernel", said("uname", &["--kernel-release"])),
        fact("a write and fsync on the disk", shown(fsync())),
        fact("load before", format!("{load_before}{busy}")),
        fact("parts", "etcd 3.6 with fsync, host-local 1.10".into()),
        fact(
            "asked for",
            format!("{} runs, {} rounds of {} callers", bench.runs, bench.rounds, bench.callers),
        ),
    ]
}

/// The median of a hundred.
fn fsync() -> std::time::Duration {
    use std::io::Write as _;
    let folder = Folder::new();
    let mut file = fs::File::create(folder.path().join("file")).unwrap();
    let times = (0..100).map(|_| {
        let began = tokio::time::Instant::now();
        file.write_all(&[b'x'; 512]).unwrap();
        file.sync_data().unwrap();
        began.elapsed()
    });
    times.collect::<Times>().median()
}

/// What a program says; nothing if it fails.
fn said(program: &str, arguments: &[&str]) -> String {
    let here = Path::new(env!("CARGO_MANIFEST_DIR"));
    let output = Command::new(program).args(arguments).current_dir(here).output();
    output.map(|output| String::from_utf8_lossy(&output.stdout).trim().to_owned()).unwrap_or_default()
}

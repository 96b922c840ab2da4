//! Whole processes and how long they take, from the start to the last byte of the answer.

use std::{
    io::Write as _,
    net::IpAddr,
    path::PathBuf,
    process::{Command, Output, Stdio},
    time::Duration,
};

use serde_json::Value;
use tokio::time::Instant;

use crate::support::{call::Call, crowd::crowd};

/// What is asked of the whole benchmark.
#[derive(Debug)]
pub(crate) struct Bench {
    /// How often a single call is timed.
    pub(crate) runs: usize,
    /// How often a crowd is.
    pub(crate) rounds: usize,
    /// The processes of a crowd.
    pub(crate) callers: usize,
    /// As little as a process can do: see `bare.rs`.
    pub(crate) bare: PathBuf,
}

/// So many of a crowd run at a time, as a busy cluster's kubelets do together.
pub(crate) const AT_ONCE: usize = 64;

/// A call that has ended.
#[derive(Debug)]
pub(crate) struct Ran {
    pub(crate) took: Duration,
    pub(crate) output: Output,
}

impl Ran {
    #[track_caller]
    pub(crate) fn success(self) -> Self {
        assert!(self.output.status.success(), "{}", self.said());
        self
    }

    /// The only address of an ADD that succeeded.
    #[track_caller]
    pub(crate) fn address(&self) -> IpAddr {
        self.leased().unwrap_or_else(|| panic!("{}", self.said()))
    }

    pub(crate) fn leased(&self) -> Option<IpAddr> {
        let answer: Value = serde_json::from_slice(&self.output.stdout).ok()?;
        answer["ips"][0]["address"].as_str()?.split('/').next()?.parse().ok()
    }

    /// It was told that all of the pool's addresses are taken, and how many these are.
    pub(crate) fn is_told_full(&self, pool: &str, size: usize) -> bool {
        let answer: Value = serde_json::from_slice(&self.output.stdout).unwrap_or_default();
        answer["code"] == 11 && answer["msg"] == format!("pool {pool} is full ({size} of {size})")
    }

    /// All of its answer in one line.
    pub(crate) fn said(&self) -> String {
        let text = [&self.output.stdout[..], &self.output.stderr[..]].concat();
        String::from_utf8_lossy(&text).split_whitespace().collect::<Vec<_>>().join(" ")
    }
}

pub(crate) fn run(call: &Call) -> Ran {
    run_line(call.command_line())
}

/// Runs a command on a standard input. No thread and no waiting by the clock: both would be part of the time.
pub(crate) fn run_line((mut command, input): (Command, Vec<u8>)) -> Ran {
    command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let began = Instant::now();
    let mut child = command.spawn().unwrap_or_else(|error| panic!("{command:?}: {error}"));
    let _ = child.stdin.take().unwrap().write_all(&input); // it may end without reading: its right
    let output = child.wait_with_output().unwrap();
    Ran { took: began.elapsed(), output }
}

/// A crowd and how long it took together.
pub(crate) fn together(
    at_once: usize,
    count: usize,
    line: impl Fn(usize) -> (Command, Vec<u8>) + Sync,
) -> (Duration, Vec<Ran>) {
    let began = Instant::now();
    let all = crowd(at_once, count, |number| run_line(line(number)));
    (began.elapsed(), all)
}

/// Does each of these once, and begins elsewhere each time: what the first disturbs is not always the second.
pub(crate) fn in_turns(run: usize, count: usize, mut act: impl FnMut(usize)) {
    (0..count).for_each(|turn| act((run + turn) % count));
}

/// Times of one kind.
#[derive(Clone, Debug, Default)]
pub(crate) struct Times(Vec<Duration>);

impl Times {
    pub(crate) fn push(&mut self, time: Duration) {
        self.0.push(time);
    }

    /// The time that so many of a hundred do not exceed.
    pub(crate) fn percentile(&self, percent: usize) -> Duration {
        let mut all = self.0.clone();
        all.sort_unstable();
        all[(all.len() * percent).div_ceil(100).clamp(1, all.len()) - 1]
    }

    pub(crate) fn median(&self) -> Duration {
        self.percentile(50)
    }

    pub(crate) fn count(&self) -> usize {
        self.0.len()
    }
}

impl FromIterator<Duration> for Times {
    fn from_iter<I: IntoIterator<Item = Duration>>(times: I) -> Self {
        Self(times.into_iter().collect())
    }
}

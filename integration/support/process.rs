//! Processes that end when they should, and waiting that ends, too.
#![expect(clippy::disallowed_methods, reason = "processes run by the real clock")]

use std::{
    ffi::OsStr,
    io,
    io::{Read, Write},
    os::unix::process::ExitStatusExt,
    process::{Child, Command, ExitStatus, Stdio},
    sync::{OnceLock, mpsc},
    thread,
    time::{Duration, Instant},
};

/// Nothing here takes this long, except when it hangs.
pub(crate) const PATIENCE: Duration = Duration::from_secs(30);

/// Looks until there is something to see.
#[track_caller]
pub(crate) fn eventually<T>(what: &str, look: impl FnMut() -> Option<T>) -> T {
    within(PATIENCE, look).unwrap_or_else(|| panic!("waited {PATIENCE:?} in vain: {what}"))
}

/// The same with a patience of its own, and nothing if there is nothing to see.
pub(crate) fn within<T>(patience: Duration, mut look: impl FnMut() -> Option<T>) -> Option<T> {
    let start = Instant::now();
    loop {
        let seen = look();
        if seen.is_some() || start.elapsed() > patience {
            return seen;
        }
        thread::sleep(Duration::from_millis(5));
    }
}

/// A line for whoever watches the tests.
pub(crate) fn report(text: &str) {
    // Not eprintln: the test harness shows that only of tests that fail.
    io::stderr().write_all(format!("{text}\n").as_bytes()).unwrap();
}

/// A process in the background. It is killed when this value goes, and when the test process goes in whatever way.
#[derive(Debug)]
pub(crate) struct Process(Child);

impl Process {
    pub(crate) fn spawn(command: &Command) -> io::Result<Self> {
        start_tethered(command).map(Self)
    }

    pub(crate) fn pid(&self) -> u32 {
        self.0.id()
    }

    /// Sends a signal by name: `STOP`, `CONT`, `TERM`.
    pub(crate) fn signal(&self, name: &str) {
        signal(self.pid(), name);
    }

    pub(crate) fn is_alive(&mut self) -> bool {
        self.0.try_wait().unwrap().is_none()
    }

    /// Ends it at once, without a chance to tidy up.
    pub(crate) fn kill(&mut self) {
        let _ = self.0.kill(); // it may have ended by itself
        self.0.wait().unwrap();
    }

    /// Waits for an end that is due.
    pub(crate) fn wait(mut self) -> ExitStatus {
        eventually("the process to end", || self.0.try_wait().unwrap())
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        self.kill();
    }
}

/// How a process ended, and what it said.
#[derive(Clone, Debug)]
pub(crate) struct Finished {
    pub(crate) status: ExitStatus,
    pub(crate) stdout: Vec<u8>,
    pub(crate) stderr: Vec<u8>,
    pub(crate) took: Duration,
}

impl Finished {
    pub(crate) fn code(&self) -> Option<i32> {
        self.status.code()
    }

    pub(crate) fn killed_by(&self) -> Option<i32> {
        self.status.signal()
    }

    #[track_caller]
    pub(crate) fn stdout(&self) -> &str {
        str::from_utf8(&self.stdout).unwrap()
    }

    #[track_caller]
    pub(crate) fn stderr(&self) -> &str {
        str::from_utf8(&self.stderr).unwrap()
    }

    /// The standard output of a process that must have succeeded.
    #[track_caller]
    pub(crate) fn success(&self) -> &str {
        assert_eq!(self.code(), Some(0), "stdout: {}\nstderr: {}", self.stdout(), self.stderr());
        self.stdout()
    }
}

/// A process in the foreground that was started and not yet waited for.
#[derive(Debug)]
pub(crate) struct Running {
    child: Child,
    start: Instant,
    writer: thread::JoinHandle<()>,
    stdout: Option<thread::JoinHandle<Vec<u8>>>,
    stderr: thread::JoinHandle<Vec<u8>>,
}

impl Running {
    pub(crate) fn start(command: &mut Command, stdin: &[u8]) -> Self {
        let mut running = Self::start_unheard(command, stdin);
        running.stdout = Some(collect(running.child.stdout.take().unwrap()));
        running
    }

    /// As a caller that went away: nobody reads its standard output, a write there fails with a broken pipe.
    pub(crate) fn start_deaf(command: &mut Command, stdin: &[u8]) -> Self {
        let mut running = Self::start_unheard(command, stdin);
        drop(running.child.stdout.take());
        running
    }

    pub(crate) fn signal(&self, name: &str) {
        signal(self.child.id(), name);
    }

    /// SIGKILL at once; one that has ended by itself is left as it is.
    pub(crate) fn kill(&mut self) {
        let _ = self.child.kill();
    }

    /// # Panics
    ///
    /// If it has not ended after [`PATIENCE`]; it is killed then.
    #[track_caller]
    pub(crate) fn wait(mut self) -> Finished {
        let status = loop {
            if let Some(status) = self.child.try_wait().unwrap() {
                break status;
            }
            if self.start.elapsed() > PATIENCE {
                self.child.kill().unwrap();
                panic!("still running after {PATIENCE:?}");
            }
            thread::sleep(Duration::from_millis(1));
        };
        let took = self.start.elapsed();
        let stdout = self.stdout.map_or_else(Vec::new, |reader| reader.join().unwrap());
        let stderr = self.stderr.join().unwrap();
        self.writer.join().unwrap();
        Finished { status, stdout, stderr, took }
    }

    fn start_unheard(command: &mut Command, stdin: &[u8]) -> Self {
        let start = Instant::now();
        let mut child = command
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap_or_else(|error| panic!("cannot start {}: {error}", command.get_program().display()));
        let mut pipe = child.stdin.take().unwrap();
        let text = stdin.to_vec();
        let writer = thread::spawn(move || {
            let _ = pipe.write_all(&text); // it may end without reading: its right
        });
        let stderr = collect(child.stderr.take().unwrap());
        Self { child, start, writer, stdout: None, stderr }
    }
}

pub(crate) fn run(command: &mut Command, stdin: &[u8]) -> Finished {
    Running::start(command, stdin).wait()
}

/// Sends a signal by name. With the shell's own `kill`: the program of that name is in a package that a small machine may lack.
pub(crate) fn signal(pid: u32, name: &str) {
    let script = format!("kill -s {name} {pid}");
    assert!(Command::new("/bin/sh").args(["-c", &script]).status().unwrap().success(), "{script}");
}

fn collect(mut pipe: impl Read + Send + 'static) -> thread::JoinHandle<Vec<u8>> {
    thread::spawn(move || {
        let mut bytes = Vec::new();
        pipe.read_to_end(&mut bytes).unwrap();
        bytes
    })
}

type Order = (Command, mpsc::Sender<io::Result<Child>>);

/// The thread that starts what the kernel kills when we are gone. What counts for that is the thread that started it, and a
/// test's thread ends before the process may have to; so one thread, which never ends, starts them all. Its network is that
/// of the thread that asked for it first.
pub(super) fn start_nursery() -> &'static mpsc::Sender<Order> {
    static NURSERY: OnceLock<mpsc::Sender<Order>> = OnceLock::new();
    NURSERY.get_or_init(|| {
        let (orders, receiver) = mpsc::channel::<Order>();
        thread::spawn(move || {
            for (mut command, answer) in receiver {
                let _ = answer.send(command.spawn());
            }
        });
        orders
    })
}

fn start_tethered(command: &Command) -> io::Result<Child> {
    let mut tethered = Command::new("/usr/bin/setpriv");
    tethered.args(["--pdeathsig", "KILL", "--"]).arg(command.get_program()).args(command.get_args());
    for (key, value) in command.get_envs() {
        tethered.env(key, value.unwrap_or(OsStr::new("")));
    }
    tethered.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
    let (answer, child) = mpsc::channel();
    start_nursery().send((tethered, answer)).unwrap();
    child.recv().unwrap()
}

#[test]
fn a_process_ends_with_its_value() {
    let mut process = Process::spawn(Command::new("/bin/sleep").arg("100")).unwrap();
    let pid = process.pid();
    assert!(process.is_alive());
    drop(process);
    assert!(!std::path::Path::new(&format!("/proc/{pid}")).exists());

    let asked = Process::spawn(Command::new("/bin/sleep").arg("100")).unwrap();
    asked.signal("TERM");
    assert_eq!(asked.wait().signal(), Some(15));
}

#[test]
fn what_a_run_says_is_kept() {
    let mut shell = Command::new("/bin/sh");
    let finished = run(shell.args(["-c", "cat; echo oops >&2; exit 3"]), b"hello");
    assert_eq!((finished.code(), finished.stdout(), finished.stderr()), (Some(3), "hello", "oops\n"));
    assert!(finished.took < PATIENCE);
}

#[test]
fn a_deaf_caller_breaks_the_pipe() {
    let mut shell = Command::new("/bin/sh");
    let running = Running::start_deaf(shell.args(["-c", "cat >/dev/null; echo lost || exit 9"]), b"");
    let finished = running.wait();
    assert!(finished.killed_by() == Some(13) || finished.code() == Some(9), "{finished:?}");

    let mut sleep = Command::new("/bin/sleep");
    let running = Running::start(sleep.arg("100"), b"");
    running.signal("TERM");
    assert_eq!(running.wait().killed_by(), Some(15));
}

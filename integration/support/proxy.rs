//! A proxy in front of an etcd, with faults that can be ordered.
//!
//! It counts commits (see [`wire`](super::wire)) and can lose, hold or hide the answer of one of them; for that the
//! connection must be plain. The other faults work with TLS, too.

use std::{
    collections::HashMap,
    io::{Read, Write},
    net::{Shutdown, TcpListener, TcpStream},
    sync::{
        Arc, Condvar, Mutex, MutexGuard,
        atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering},
    },
    thread,
    time::Duration,
};

use super::{
    port::Port,
    process::{PATIENCE, eventually},
    wire::{Cutter, Messages, Piece, Txn},
};

/// What goes wrong. The commits are counted from the moment that the fault is ordered, from 1; such a fault happens
/// once, and then everything passes again.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum Fault {
    Pass,
    /// Nobody listens, and what was connected is cut: a dead server.
    Refuse,
    /// Connections are accepted and nothing comes back, until another fault is ordered: a frozen server.
    BlackHole,
    /// Every answer comes this much later.
    Delay(Duration),
    /// The n-th commit is delivered and answered; instead of the answer the connection is cut.
    SwallowAnswer(usize),
    /// The n-th commit is not delivered; the connection is cut.
    LoseCommit(usize),
    /// The n-th commit is kept until [`Proxy::release`], and delivered then, whatever became of its sender.
    HoldCommit(usize),
}

/// Listens on 127.0.0.1 and passes on to one address.
#[derive(Debug)]
pub(crate) struct Proxy {
    port: Arc<Port>,
    shared: Arc<Shared>,
    accepting: Option<thread::JoinHandle<()>>,
}

impl Proxy {
    /// `target` is `host:port`.
    pub(crate) fn to(target: impl Into<String>) -> Self {
        let port = Arc::new(Port::claim());
        let shared = Arc::new(Shared { target: target.into(), ..Shared::default() });
        let (its_port, its_shared) = (Arc::clone(&port), Arc::clone(&shared));
        let accepting = thread::spawn(move || its_shared.accept(&its_port));
        let proxy = Self { port, shared, accepting: Some(accepting) };
        proxy.shared.wait_until("the proxy to listen", |state| state.listening);
        proxy
    }

    pub(crate) fn url(&self, scheme: &str) -> String {
        self.port.url(scheme)
    }

    /// Orders a fault. When this returns it holds.
    pub(crate) fn set(&self, fault: Fault) {
        let mut state = self.shared.lock();
        let on_commit = match fault {
            Fault::SwallowAnswer(n) => Some((n, Verdict::Swallow)),
            Fault::LoseCommit(n) => Some((n, Verdict::Lose)),
            Fault::HoldCommit(n) => Some((n, Verdict::Hold)),
            Fault::Pass | Fault::Refuse | Fault::BlackHole | Fault::Delay(_) => None,
        };
        state.due = on_commit.map(|(n, verdict)| (state.commits() + n, verdict));
        if state.hold == Hold::Landed {
            state.hold = Hold::None;
        }
        state.fault = if on_commit.is_some() { Fault::Pass } else { fault };
        drop(state);
        self.shared.changed.notify_all();
        if fault == Fault::Refuse {
            self.wake();
            self.shared.wait_until("the proxy to refuse", |state| !state.listening);
            self.cut();
        } else {
            self.shared.wait_until("the proxy to listen", |state| state.listening);
        }
    }

    /// Cuts every connection that is open now. New ones are treated as the present fault says.
    pub(crate) fn cut(&self) {
        for connection in self.shared.lock().open.values() {
            connection.cut();
        }
        self.shared.changed.notify_all();
    }

    /// Waits until a commit is held.
    pub(crate) fn held(&self) {
        self.shared.wait_until("a commit to be held", |state| state.hold == Hold::Holding);
    }

    /// Delivers the held commit. When this returns etcd has answered it, and its sender's connection is cut.
    pub(crate) fn release(&self) {
        self.held();
        self.shared.lock().hold = Hold::Released;
        self.shared.changed.notify_all();
        self.shared.wait_until("the held commit to be answered", |state| state.hold == Hold::Landed);
    }

    /// Every transaction that was sent so far, reads included, in order, whatever became of it.
    pub(crate) fn transactions(&self) -> Vec<Txn> {
        self.shared.lock().transactions.clone()
    }

    /// How many connections were accepted so far.
    pub(crate) fn connections(&self) -> u32 {
        self.shared.accepted.load(Ordering::SeqCst)
    }

    /// How many requests of any kind were sent so far: each is a round trip.
    pub(crate) fn requests(&self) -> u32 {
        self.shared.requests.load(Ordering::SeqCst)
    }

    /// How many bytes came back from the server so far.
    pub(crate) fn answered(&self) -> u64 {
        self.shared.answered.load(Ordering::SeqCst)
    }

    fn wake(&self) {
        let _ = TcpStream::connect(("127.0.0.1", self.port.number())); // refused: it is awake already
    }
}

impl Drop for Proxy {
    fn drop(&mut self) {
        self.shared.lock().stopping = true;
        self.cut();
        self.wake();
        let _ = self.accepting.take().map(thread::JoinHandle::join);
    }
}

#[derive(Debug, Default)]
struct Shared {
    target: String,
    state: Mutex<State>,
    changed: Condvar,
    accepted: AtomicU32,
    requests: AtomicU32,
    answered: AtomicU64,
}

#[derive(Debug)]
struct State {
    fault: Fault,
    /// When the count of commits reaches this number, that happens.
    due: Option<(usize, Verdict)>,
    hold: Hold,
    transactions: Vec<Txn>,
    open: HashMap<u32, Arc<Connection>>,
    listening: bool,
    stopping: bool,
}

impl Default for State {
    fn default() -> Self {
        Self {
            fault: Fault::Pass,
            due: None,
            hold: Hold::None,
            transactions: Vec::new(),
            open: HashMap::new(),
            listening: false,
            stopping: false,
        }
    }
}

impl State {
    fn commits(&self) -> usize {
        self.transactions.iter().filter(|txn| txn.is_commit()).count()
    }
}

#[derive(Clone, Copy, Debug, Eq, PartialEq)]
enum Verdict {
    Pass,
    Swallow,
    Lose,
    Hold,
}

#[derive(Clone, Copy, Debug, Eq, PartialEq)]
enum Hold {
    None,
    Holding,
    Released,
    Landed,
}

#[derive(Debug)]
struct Connection {
    client: TcpStream,
    server: TcpStream,
    /// The stream whose answer the client must not see; 0, which carries no requests, if there is none.
    swallow: AtomicU32,
    is_cut: AtomicBool,
}

impl Connection {
    fn cut(&self) {
        self.is_cut.store(true, Ordering::SeqCst);
        let _ = self.client.shutdown(Shutdown::Both); // either may be gone
        let _ = self.server.shutdown(Shutdown::Both);
    }
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
    }

    #[track_caller]
    fn wait_until(&self, what: &str, seen: impl Fn(&State) -> bool) {
        let waited = self.changed.wait_timeout_while(self.lock(), PATIENCE, |state| !seen(state)).unwrap();
        assert!(!waited.1.timed_out(), "waited {PATIENCE:?} in vain: {what}");
    }

    fn accept(self: Arc<Self>, port: &Port) {
        loop {
            let listener = eventually("the proxy's port to be free", || {
                TcpListener::bind(("127.0.0.1", port.number())).ok()
            });
            self.lock().listening = true;
            self.changed.notify_all();
            loop {
                let client = listener.accept();
                let state = self.lock();
                if state.stopping {
                    return;
                }
                if state.fault == Fault::Refuse {
                    break;
                }
                drop(state);
                if let Ok((client, _)) = client {
                    self.serve(client);
                }
            }
            drop(listener);
            let mut state = self.lock();
            state.listening = false;
            self.changed.notify_all();
            let refusing = |state: &mut State| state.fault == Fault::Refuse && !state.stopping;
            if self.changed.wait_while(state, refusing).unwrap().stopping {
                return;
            }
        }
    }

    fn serve(self: &Arc<Self>, client: TcpStream) {
        let number = self.accepted.fetch_add(1, Ordering::SeqCst);
        let Ok(server) = TcpStream::connect(&self.target) else { return };
        for stream in [&client, &server] {
            stream.set_nodelay(true).unwrap();
        }
        let connection =
            Connection { client, server, swallow: AtomicU32::new(0), is_cut: AtomicBool::new(false) };
        let connection = Arc::new(connection);
        self.lock().open.insert(number, Arc::clone(&connection));
        self.changed.notify_all();
        let (up, its_connection) = (Arc::clone(self), Arc::clone(&connection));
        thread::spawn(move || up.pump_requests(&its_connection));
        let down = Arc::clone(self);
        thread::spawn(move || {
            down.pump_answers(&connection);
            connection.cut();
            down.lock().open.remove(&number);
        });
    }

    fn pump_requests(&self, connection: &Connection) {
        let (mut cutter, mut messages) = (Cutter::default(), Messages::default());
        let mut buffer = [0; 1 << 16];
        while let Some(bytes) = self.read(connection, &connection.client, &mut buffer) {
            for piece in cutter.push(bytes) {
                let verdict = match &piece {
                    Piece::Opaque(_) => Verdict::Pass,
                    Piece::Frame(frame) => {
                        self.requests.fetch_add(u32::from(frame.begins_request()), Ordering::SeqCst);
                        let verdict = messages.push(frame).map_or(Verdict::Pass, |txn| self.judge(txn));
                        if matches!(verdict, Verdict::Swallow | Verdict::Hold) {
                            connection.swallow.store(frame.stream(), Ordering::SeqCst);
                        }
                        verdict
                    }
                };
                if verdict == Verdict::Lose {
                    return connection.cut();
                }
                if verdict == Verdict::Hold {
                    let holding = |state: &mut State| state.hold == Hold::Holding && !state.stopping;
                    drop(self.changed.wait_while(self.lock(), holding).unwrap());
                }
                if (&connection.server).write_all(piece.bytes()).is_err() {
                    return connection.cut();
                }
                if verdict == Verdict::Hold {
                    // What the client did since then, such as going away, would take the commit back.
                    return;
                }
            }
        }
        connection.cut();
    }

    fn pump_answers(&self, connection: &Connection) {
        let mut cutter = Cutter::of_server();
        let mut buffer = [0; 1 << 16];
        while let Some(bytes) = self.read(connection, &connection.server, &mut buffer) {
            self.answered.fetch_add(bytes.len() as u64, Ordering::SeqCst);
            let fault = self.lock().fault;
            if let Fault::Delay(delay) = fault {
                thread::sleep(delay);
            }
            for piece in cutter.push(bytes) {
                let swallow = connection.swallow.load(Ordering::SeqCst);
                if let Piece::Frame(frame) = &piece
                    && frame.stream() == swallow
                    && frame.is_answer()
                {
                    let mut state = self.lock();
                    if state.hold == Hold::Released {
                        state.hold = Hold::Landed;
                    }
                    drop(state);
                    connection.cut();
                    self.changed.notify_all();
                    return;
                }
                let written = (&connection.client).write_all(piece.bytes());
                if written.is_err() && swallow == 0 {
                    return;
                }
            }
        }
    }

    /// Some bytes, unless the connection is at its end. In a black hole they do not come.
    fn read<'a>(
        &self,
        connection: &Connection,
        mut from: &TcpStream,
        buffer: &'a mut [u8],
    ) -> Option<&'a [u8]> {
        let count = from.read(buffer).ok().filter(|count| *count > 0)?;
        let stuck = |state: &mut State| {
            state.fault == Fault::BlackHole && !state.stopping && !connection.is_cut.load(Ordering::SeqCst)
        };
        drop(self.changed.wait_while(self.lock(), stuck).unwrap());
        Some(&buffer[..count])
    }

    fn judge(&self, txn: Txn) -> Verdict {
        let mut state = self.lock();
        let is_commit = txn.is_commit();
        state.transactions.push(txn);
        let Some((count, verdict)) = state.due.filter(|_| is_commit) else { return Verdict::Pass };
        if state.commits() < count {
            return Verdict::Pass;
        }
        state.due = None;
        if verdict == Verdict::Hold {
            state.hold = Hold::Holding;
            self.changed.notify_all();
        }
        verdict
    }
}

#[cfg(test)]
mod tests {
    use std::process::Command;

    use super::*;
    use crate::support::{
        etcd::Etcd,
        host::HostFile,
        parts::{Part, Version, require},
        process::{Running, run},
    };

    const TXN: &str = "create(\"/a\") = \"0\"\n\nput /a 1\n\nget /a\n\n";

    fn etcdctl(etcd: &Etcd, proxy: &Proxy, arguments: &[&str]) -> Command {
        let mut command = etcd.etcdctl(&proxy.url("http"));
        command.args(["--dial-timeout=1s", "--command-timeout=1s"]).args(arguments);
        command
    }

    #[test]
    fn what_passes_is_seen() {
        require!(Part::Etcd(Version::V34), Part::Etcd(Version::V36));
        for version in Version::BOTH {
            let etcd = Etcd::start(version);
            let proxy = Proxy::to(etcd.address(0));
            let ctl = |arguments: &[&str], stdin: &str| {
                run(&mut etcdctl(&etcd, &proxy, arguments), stdin.as_bytes())
            };
            ctl(&["get", "/a"], "").success();
            assert!(ctl(&["txn"], TXN).success().starts_with("SUCCESS"));
            assert!(ctl(&["txn"], TXN).success().starts_with("FAILURE"));
            assert_eq!(etcd.get("/a"), Some("1".into()));
            let txn = Txn {
                compares: vec!["create /a = 0".into()],
                then: vec!["put /a".into()],
                otherwise: vec!["get /a".into()],
            };
            assert_eq!(proxy.transactions(), [txn.clone(), txn]);
            assert_eq!((proxy.connections(), proxy.requests()), (3, 3));
            let before = proxy.answered();
            etcd.put("/a", &"x".repeat(10_000));
            ctl(&["get", "/a"], "").success();
            assert!((10_000..11_000).contains(&(proxy.answered() - before)), "{before}");
        }
    }

    #[test]
    fn tls_passes_too() {
        require!(Part::Etcd(Version::V34));
        let etcd = Etcd::with(Version::V34).tls().start();
        let proxy = Proxy::to(etcd.address(0));
        run(etcd.etcdctl(&proxy.url("https")).args(["put", "/a", "1"]), b"").success();
        assert_eq!(etcd.get("/a"), Some("1".into()));
        assert_eq!(proxy.transactions(), []);
    }

    #[test]
    fn a_dead_and_a_frozen_server_come_back() {
        require!(Part::Etcd(Version::V34));
        let etcd = Etcd::start(Version::V34);
        let proxy = Proxy::to(etcd.address(0));
        let ctl =
            |arguments: &[&str], stdin: &str| run(&mut etcdctl(&etcd, &proxy, arguments), stdin.as_bytes());
        for fault in [Fault::Refuse, Fault::BlackHole] {
            proxy.set(fault);
            let connected = TcpStream::connect(("127.0.0.1", proxy.port.number()));
            assert_eq!(connected.is_ok(), fault == Fault::BlackHole);
            assert_ne!(ctl(&["get", "/a"], "").code(), Some(0), "{fault:?}");
            proxy.set(Fault::Pass);
            ctl(&["get", "/a"], "").success();
        }
        proxy.set(Fault::Delay(Duration::from_millis(300)));
        assert!(ctl(&["get", "/a"], "").took > Duration::from_millis(300));
    }

    #[test]
    fn an_answer_can_be_swallowed() {
        require!(Part::Etcd(Version::V34), Part::Etcd(Version::V36));
        for version in Version::BOTH {
            let etcd = Etcd::start(version);
            let proxy = Proxy::to(etcd.address(0));
            let ctl = |arguments: &[&str], stdin: &str| {
                run(&mut etcdctl(&etcd, &proxy, arguments), stdin.as_bytes())
            };
            proxy.set(Fault::SwallowAnswer(2));
            ctl(&["txn"], "\nput /b 1\n\n\n").success();
            assert_ne!(ctl(&["txn"], TXN).code(), Some(0));
            assert_eq!(etcd.get("/a"), Some("1".into()));
            assert!(ctl(&["txn"], TXN).success().starts_with("FAILURE")); // once
        }
    }

    #[test]
    fn a_commit_can_be_lost() {
        require!(Part::Etcd(Version::V34));
        let etcd = Etcd::start(Version::V34);
        let proxy = Proxy::to(etcd.address(0));
        let ctl =
            |arguments: &[&str], stdin: &str| run(&mut etcdctl(&etcd, &proxy, arguments), stdin.as_bytes());
        proxy.set(Fault::LoseCommit(1));
        assert_ne!(ctl(&["txn"], TXN).code(), Some(0));
        assert_eq!(etcd.get("/a"), None);
        assert!(ctl(&["txn"], TXN).success().starts_with("SUCCESS"));
    }

    #[test]
    fn a_commit_lands_after_its_sender_died() {
        require!(Part::Etcd(Version::V34), Part::Etcd(Version::V36));
        for version in Version::BOTH {
            let etcd = Etcd::start(version);
            let proxy = Proxy::to(etcd.address(0));
            proxy.set(Fault::HoldCommit(1));
            let sender = Running::start(&mut etcdctl(&etcd, &proxy, &["txn"]), TXN.as_bytes());
            proxy.held();
            sender.signal("KILL");
            assert_eq!(sender.wait().killed_by(), Some(9));
            assert_eq!(etcd.get("/a"), None);
            proxy.release();
            assert_eq!(etcd.get("/a"), Some("1".into()));
        }
    }

    #[test]
    fn a_connection_can_be_cut() {
        require!(Part::Etcd(Version::V34));
        let etcd = Etcd::start(Version::V34);
        let proxy = Proxy::to(etcd.address(0));
        let host = HostFile::on(&etcd).endpoints([proxy.url("http")]);
        assert!(std::fs::read_to_string(host.path()).unwrap().contains(&proxy.url("http")));
        let mut stream = TcpStream::connect(("127.0.0.1", proxy.port.number())).unwrap();
        stream.write_all(b"GET").unwrap();
        proxy.shared.wait_until("the connection", |state| !state.open.is_empty());
        proxy.cut();
        assert!(matches!(stream.read(&mut [0]), Ok(0) | Err(_)));
    }
}

//! Edge 1: a container runtime calls. One request in, one JSON document out, one exit status.
//!
//! It talks to the store and to the wire, never to the Kubernetes API: expired credentials on a node are a classic
//! outage.

pub mod input;
mod refusal;
pub mod reply;
mod watched;
mod wire;

use std::{
    io::{Read, Write},
    panic::{AssertUnwindSafe, catch_unwind},
    process::ExitCode,
    sync::mpsc,
    thread,
    time::Duration,
};

use serde_json::Value;
use tokio::{
    signal::unix::{SignalKind, signal},
    time::Instant,
};

use self::{
    input::{AddRequest, Attachment, CheckRequest, Command, DelRequest, GcRequest, Invocation},
    reply::{CniVersion, Code, Error},
    watched::Watched,
    wire::LinkWire,
};
use crate::{
    config::{self, Level, StoreSettings},
    domain::{
        addr::Family,
        lease::{Holder, Timestamp},
        pool::Dns,
        select::{Asked, Caller},
    },
    host::{self, Host, HostClock},
    journal::{Entry, Journal, Memory, Sight, Turn},
    ops::{self, Add, Change, Clock, Context, Heard, Identity, Inline, Log, Refusal, Wire, replay},
    store::{StoreError, any::AnyStore, etcd, record},
    trail::Trail,
};

/// VERSION must not block on an open pipe.
const VERSION_PATIENCE: Duration = Duration::from_millis(100);
/// A runtime asks STATUS while it holds a lock.
const STATUS_DEADLINE: Duration = Duration::from_secs(2);
/// GC walks a node's attachments.
const GC_DEADLINE: Duration = Duration::from_secs(60);
/// What an ADD that failed may still use to take itself back.
const UNDO_DEADLINE: Duration = Duration::from_secs(5);

/// Answers one call of a runtime.
pub fn run() -> ExitCode {
    std::panic::set_hook(Box::new(|_| {}));
    let started = HostClock.boot_clock();
    let result = catch_unwind(AssertUnwindSafe(|| answer(started)));
    let (version, error) = match result {
        Ok(Ok(())) => return ExitCode::SUCCESS,
        Ok(Err(failed)) => failed,
        Err(panic) => {
            let what = panic.downcast_ref::<String>().map(String::as_str);
            let what = what.or_else(|| panic.downcast_ref::<&str>().copied()).unwrap_or("unknown");
            let msg = "internal error: please report it".to_owned();
            (CniVersion::NEWEST, Error::Failure { code: Code::Internal, msg, details: what.to_owned() })
        }
    };
    // Whoever reads stdout may be gone; there is nobody left to tell.
    let _ = print(&error.document(version));
    ExitCode::FAILURE
}

type Failed = (CniVersion, Error);

fn print(document: &Value) -> std::io::Result<()> {
    let mut out = std::io::stdout().lock();
    reply::write(&mut out, document)?;
    out.flush()
}

fn answer(started: u64) -> Result<(), Failed> {
    let newest = |error| (CniVersion::NEWEST, error);
    let call = match input::environment(|name| std::env::var_os(name)).map_err(newest)? {
        Invocation::About => {
            let _ = std::io::stderr().write_all(reply::about().as_bytes());
            return Ok(());
        }
        Invocation::Version => {
            let echo = input::version_of(&stdin_at_hand());
            return print(&reply::versions(echo)).map_err(|e| newest(Error::Write { cause: e.to_string() }));
        }
        Invocation::Call(call) => call,
    };
    let mut stdin = Vec::new();
    std::io::stdin()
        .lock()
        .read_to_end(&mut stdin)
        .map_err(|error| newest(Error::ReadStdin { cause: error.to_string() }))?;
    let version = input::version_of(&stdin);
    let command = call.request(&stdin).map_err(|error| (version, error))?;
    if let Command::Add(request) = &command {
        input::refuse_own_netns(&request.netns, request.netns_override).map_err(|error| (version, error))?;
    }
    let host = host::read(std::env::var_os(config::CONFIG_VARIABLE)).map_err(|error| {
        let error = refusal::of_host(error);
        // To whoever asks STATUS, a node that cannot serve is unavailable, whatever the reason.
        (version, if matches!(command, Command::Status(_)) { unavailable(&error) } else { error })
    })?;
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .map_err(|error| (version, Error::ReadStdin { cause: error.to_string() }))?;
    let node = Node::new(host);
    let done = runtime.block_on(async {
        match command {
            Command::Add(request) => node.add(&request, started).await,
            Command::Check(request) => node.check(&request).await,
            Command::Del(request) => node.del(&request).await,
            Command::Gc(request) => node.gc(&request).await,
            Command::Status(_) => node.status().await,
            // Answered above; the environment decides them.
            Command::Version { echo } => {
                print(&reply::versions(echo)).map_err(|e| Error::Write { cause: e.to_string() })
            }
            Command::About => Ok(()),
        }
        .map_err(|error| {
            node.line(Level::Warn, &error.to_string());
            (version, error)
        })
    });
    // A name look-up that hangs must not hold the answer's exit.
    runtime.shutdown_background();
    done
}

fn unavailable(error: &Error) -> Error {
    Error::Failure { code: Code::Unavailable, msg: error.msg(), details: error.details() }
}

/// What stands on stdin within a moment: VERSION is asked with an open pipe, too.
fn stdin_at_hand() -> Vec<u8> {
    let (send, receive) = mpsc::channel();
    thread::spawn(move || {
        let mut text = Vec::new();
        let _ = std::io::stdin().lock().read_to_end(&mut text);
        let _ = send.send(text);
    });
    receive.recv_timeout(VERSION_PATIENCE).unwrap_or_default()
}

/// A node at work on one call.
struct Node {
    host: Host,
    identity: Identity,
    log: Trail,
    journal: Journal,
    sight: Sight,
}

/// For verbs that never ask the wire.
struct NoWire;

impl Wire for NoWire {
    async fn probe(&self, _addresses: &[std::net::IpAddr]) -> Heard {
        Heard::Nowhere("this verb asks nobody".into())
    }
}

type At<'a, W> = Context<'a, Watched<AnyStore>, W, HostClock, Trail>;

impl Node {
    fn new(host: Host) -> Self {
        let log = Trail::of(Some(&host));
        let journal = Journal::new(&host.config.state_dir);
        let sight = Sight::new(&host.config.state_dir);
        Self { identity: host.identity(), host, log, journal, sight }
    }

    fn line(&self, level: Level, text: &str) {
        self.log.line(level, text);
    }

    fn at<'a, W>(
        &'a self,
        store: &'a Watched<AnyStore>,
        wire: &'a W,
        deadline: Instant,
        memory: Memory,
    ) -> At<'a, W> {
        Context { store, wire, clock: &HostClock, log: &self.log, node: &self.identity, deadline, memory }
    }

    async fn open(&self, patience: Duration) -> Result<Watched<AnyStore>, StoreError> {
        let store = self.host.open_store(patience).await?;
        let has_others = matches!(self.host.config.store, StoreSettings::Etcd(_));
        Ok(Watched::new(store, has_others.then(|| Turn::new(&self.host.config.state_dir))))
    }

    fn remember(&self, memory: &Memory) {
        if let Err(error) = self.sight.save(memory) {
            self.line(Level::Warn, &format!("cannot write the node's state: {error}"));
        }
    }

    /// Who is asked, for errors.
    fn asked(&self) -> String {
        match &self.host.config.store {
            StoreSettings::Etcd(etcd) => {
                etcd.endpoints.iter().map(ToString::to_string).collect::<Vec<_>>().join(", ")
            }
            StoreSettings::Local(folder) => folder.display().to_string(),
        }
    }

    fn told(&self, refused: &Refusal) -> Error {
        refusal::of_at(&self.asked(), refused)
    }

    fn store_told(&self, error: &StoreError) -> Error {
        refusal::of_store_at(&self.asked(), error)
    }

    fn caller(&self, attachment: &Attachment) -> Caller {
        Caller {
            cluster: self.identity.cluster.clone(),
            node: self.identity.node.clone(),
            labels: self.identity.labels.clone(),
            network: attachment.network.clone(),
            holder: attachment.holder.clone(),
        }
    }

    /// Ends this container's lease later, when the store takes it.
    fn leave_entry(&self, attachment: &Attachment, why: &str) -> Result<(), Error> {
        let entry = Entry {
            cluster: self.identity.cluster.clone(),
            store: self.sight.load().store,
            node: self.identity.node.clone(),
            network: attachment.network.clone(),
            container: attachment.container.clone(),
            ifname: attachment.ifname.clone(),
            holder: Some(attachment.holder.clone()),
            why: why.into(),
            at: record::format_time(HostClock.now()),
        };
        self.journal.write(&entry).map_err(|error| Error::Failure {
            code: Code::TryAgain,
            msg: "neither the store nor the node's journal takes it".into(),
            details: format!("{why}; {}: {error}", self.journal.folder().display()),
        })?;
        self.log.change(&Change {
            what: "lease.journaled",
            lease: None,
            addresses: Vec::new(),
            pool: None,
            container: Some(attachment.container.clone()),
            why: why.into(),
        });
        Ok(())
    }

    async fn add(&self, request: &AddRequest, started: u64) -> Result<(), Error> {
        let attachment = &request.attachment;
        let deadline = Instant::now() + self.host.config.add_deadline;
        let add = self.request(request, started)?;
        if let Some(data_dir) = &request.data_dir {
            self.line(Level::Info, &format!("dataDir {data_dir} is ignored: leases are in the store"));
        }
        let io = |error: std::io::Error| Error::Failure {
            code: Code::TryAgain,
            msg: "the node's journal cannot be read".into(),
            details: format!("{}: {error}", self.journal.folder().display()),
        };
        let cancelled = self
            .journal
            .cancel(&attachment.network, &attachment.container, &attachment.ifname)
            .map_err(io)?;
        let ended = self.lease_and_answer(request, &add, deadline).await;
        if let Err(error) = &ended
            && cancelled
        {
            // The DEL that it stood for was never told, and nothing took its place.
            self.leave_entry(attachment, &error.to_string())?;
        }
        ended
    }

    async fn lease_and_answer(
        &self,
        request: &AddRequest,
        add: &Add,
        deadline: Instant,
    ) -> Result<(), Error> {
        let attachment = &request.attachment;
        let store = self.open(self.host.config.add_deadline).await.map_err(|e| self.store_told(&e))?;
        let wire = LinkWire::new(&request.link);
        let ctx = self.at(&store, &wire, deadline, self.sight.load());
        let mut terminated =
            signal(SignalKind::terminate()).map_err(|error| Error::ReadStdin { cause: error.to_string() })?;
        let result = tokio::select! {
            result = replay::add(&ctx, &self.journal, add) => result,
            _ = terminated.recv() => {
                let details = if store.may_leave_something() {
                    self.leave_entry(attachment, "ADD was terminated")?;
                    "SIGTERM came before the answer; what may be leased is in the node's journal, to be given back by its next run"
                } else {
                    "SIGTERM came before the answer; nothing was leased"
                };
                let (msg, details) = ("terminated".to_owned(), details.to_owned());
                return Err(Error::Failure { code: Code::TryAgain, msg, details });
            }
        };
        let added = match result {
            Ok(added) => added,
            Err(refused) => {
                if store.may_leave_something() {
                    self.leave_entry(attachment, &format!("ADD failed, and its lease may stand: {refused}"))?;
                }
                if let Some(memory) = refused.memory() {
                    self.remember(memory);
                }
                return Err(self.told(&refused));
            }
        };
        let given = reply::Answer {
            addresses: added
                .answer
                .addresses
                .iter()
                .map(|a| reply::Given { address: a.address, length: a.length, gateway: a.gateway })
                .collect(),
            routes: added.answer.routes.clone(),
            dns: added.answer.dns.clone(),
        };
        let printed = reply::result(request.version, &given)
            .and_then(|document| print(&document).map_err(|error| Error::Write { cause: error.to_string() }));
        if let Err(error) = printed {
            let ctx = Context { deadline: Instant::now() + UNDO_DEADLINE, ..ctx };
            if added.wrote()
                && let Err(trouble) = ops::undo(&ctx, &added).await
            {
                self.leave_entry(attachment, &format!("{error}; {trouble}"))?;
            }
            return Err(error);
        }
        self.remember(&added.memory);
        replay::some(&ctx, &self.journal).await;
        Ok(())
    }

    fn request(&self, request: &AddRequest, started: u64) -> Result<Add, Error> {
        let inline = match (&request.inline, &request.pools) {
            // A pool that was asked for is one that an administrator made: it goes before the network's own ranges.
            (Some(_), Some(_)) | (None, _) => None,
            (Some(inline), None) => {
                let local = matches!(self.host.config.store, StoreSettings::Local(_));
                if !local && !self.host.config.inline_ranges {
                    return Err(refusal::of(&Refusal::InlineRefused));
                }
                Some(Inline { sets: inline.sets.clone() })
            }
        };
        if let Some(inline) = &inline {
            let families: Vec<Family> =
                inline.sets.iter().filter_map(|set| set.first()).map(|range| range.family()).collect();
            reply::fits(request.version, &families)?;
        }
        let dns = match &request.resolv_conf {
            Some(path) if request.dns.is_empty() => {
                let text = host::read_resolv_conf(path).map_err(|error| Error::Failure {
                    code: Code::Config,
                    msg: format!("cannot read resolvConf {}", path.display()),
                    details: error.to_string(),
                })?;
                config::parse_resolv_conf(&text)
            }
            Some(_) | None => request.dns.clone(),
        };
        Ok(Add {
            caller: self.caller(&request.attachment),
            container: request.attachment.container.clone(),
            ifname: request.attachment.ifname.clone(),
            uid: request.attachment.uid.clone(),
            asked: request
                .pools
                .as_ref()
                .map(|asked| Asked { pools: asked.what.clone(), by: asked.by.to_string() }),
            requested: request.ips.iter().flat_map(|asked| &asked.what).map(|ip| ip.address).collect(),
            requested_by: request.ips.as_ref().map(|asked| asked.by.to_string()).unwrap_or_default(),
            sticky: request.sticky,
            inline,
            routes: (!request.routes.is_empty()).then(|| request.routes.clone()),
            dns: Some(dns).filter(|dns: &Dns| !dns.is_empty()),
            avoid_first: request.link.takes_first_address(),
            started,
        })
    }

    async fn check(&self, request: &CheckRequest) -> Result<(), Error> {
        let deadline = Instant::now() + self.host.config.add_deadline;
        let store = self.open(self.host.config.add_deadline).await.map_err(|e| self.store_told(&e))?;
        let ctx = self.at(&store, &NoWire, deadline, Memory::default());
        let attachment = &request.attachment;
        let id = ops::lease_id(&self.caller(attachment), &attachment.ifname);
        let believed: Option<Vec<_>> =
            request.prev_result.as_ref().map(|ips| ips.iter().map(|ip| ip.address).collect());
        ops::check(&ctx, &id, &attachment.container, believed.as_deref()).await.map_err(|r| self.told(&r))?;
        replay::some(&ctx, &self.journal).await;
        Ok(())
    }

    async fn del(&self, request: &DelRequest) -> Result<(), Error> {
        let attachment = &request.attachment;
        let patience = self.host.config.del_deadline;
        let deadline = Instant::now() + patience;
        let mut terminated =
            signal(SignalKind::terminate()).map_err(|error| Error::ReadStdin { cause: error.to_string() })?;
        let told = match self.open(patience).await {
            Ok(store) => {
                let ctx = self.at(&store, &NoWire, deadline, self.sight.load());
                let del = self.end_of(attachment);
                let end = tokio::select! {
                    end = ops::del(&ctx, &del, "DEL") => end,
                    // The runtime that ends it may never ask again (CRI-O does not).
                    _ = terminated.recv() => return self.leave_entry(attachment, "DEL was terminated"),
                };
                if let Ok(end) = &end {
                    self.remember(&end.memory);
                    replay::some(&ctx, &self.journal).await;
                }
                end.map(|_| ())
            }
            Err(error) => Err(error.into()),
        };
        let Err(refused) = told else { return Ok(()) };
        // What the store does not take now, or what only a newer leasehold may write, is told later.
        let refused = self.told(&refused).to_string();
        self.line(Level::Warn, &format!("DEL is journalled: {refused}"));
        self.leave_entry(attachment, &refused)
    }

    fn end_of(&self, attachment: &Attachment) -> ops::Del {
        ops::Del {
            cluster: self.identity.cluster.clone(),
            node: self.identity.node.clone(),
            network: attachment.network.clone(),
            container: attachment.container.clone(),
            ifname: attachment.ifname.clone(),
            holder: match &attachment.holder {
                holder @ Holder::Pod { .. } => Some(holder.clone()),
                Holder::Container(_) => None,
            },
        }
    }

    async fn gc(&self, request: &GcRequest) -> Result<(), Error> {
        // The runtime did not say what is in use: giving everything back could not be mended.
        let Some(valid) = &request.valid else { return Ok(()) };
        let store = self.open(GC_DEADLINE).await.map_err(|e| self.store_told(&e))?;
        let ctx = self.at(&store, &NoWire, Instant::now() + GC_DEADLINE, self.sight.load());
        let valid = valid.iter().cloned().collect();
        ops::collect(&ctx, &request.network, &valid).await.map_err(|r| self.told(&r))?;
        replay::some(&ctx, &self.journal).await;
        Ok(())
    }

    /// Whether this node could serve an ADD, as far as it can tell by itself. The store is asked only where the host
    /// file says so: an error here takes the whole node down.
    async fn status(&self) -> Result<(), Error> {
        if let StoreSettings::Etcd(settings) = &self.host.config.store {
            let now: Timestamp = HostClock.now();
            host::etcd_settings(settings)
                .and_then(|settings| etcd::check_files(&settings, now))
                .map_err(|error| unavailable(&refusal::of_store(&error)))?;
        }
        if !self.host.config.status_checks_store {
            return Ok(());
        }
        let store = self.open(STATUS_DEADLINE).await.map_err(|e| unavailable(&self.store_told(&e)))?;
        let deadline = Instant::now() + STATUS_DEADLINE;
        let reads = [crate::store::Read::Get(crate::store::keys::meta())];
        let answer = tokio::time::timeout_at(deadline, crate::store::Store::read(&store, &reads, None)).await;
        match answer {
            Ok(Ok(_)) => Ok(()),
            Ok(Err(error)) => Err(unavailable(&self.store_told(&error))),
            Err(_) => Err(Error::Failure {
                code: Code::Unavailable,
                msg: "the store cannot be reached".into(),
                details: format!("{}: no answer within {} s", self.asked(), STATUS_DEADLINE.as_secs()),
            }),
        }
    }
}

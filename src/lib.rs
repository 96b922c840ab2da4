//! Leasehold leases addresses to pods. This page is the architecture: who may name whom, what always holds, and what is
//! left out on purpose. What it is for and how it is run stands in `README.md`.
//!
//! # Layers
//!
//! One binary with two edges. `main` chooses: `CNI_COMMAND` set is a container runtime, else it is a
//! person. Both edges build the concrete things and hand them to use cases, which know traits only; those ask the core,
//! which knows nobody. A module names only what stands above it here; `integration/layering.rs` holds the exact table
//! and fails when an arrow points the wrong way.
//!
//! | module | job | must not |
//! |---|---|---|
//! | [`domain`] | values that are right if they exist, and every decision: which pool, which address, what an audit finds | read, write, wait, log, look at a clock |
//! | [`store`] | keys, records, transactions, and the two places where they live: an etcd, one file | decide |
//! | `pem` | reads certificates and keys, and says what is wrong with them | connect |
//! | [`probe`] | asks the wire who answers on an address | know a lease |
//! | [`config`] | text of the host file and of an `ipam` block to settings | read a file or the environment |
//! | [`journal`] | what a node keeps on its disk: ends that the store did not take, how far the store was seen | ask the store |
//! | [`telemetry`] | log lines and the audit trail, into a file | fail its caller |
//! | [`ops`] | what a runtime wants: ADD, DEL, CHECK, GC; read, decide, commit, again on conflict, inside a deadline | parse, print, name etcd |
//! | [`admin`] | what a person wants: pools, leases, clusters, audit and repair, explain | parse, print |
//! | [`pods`] | the Kubernetes API: a complete list or an error, one live question at a time | decide, know the store |
//! | [`reaper`] | gives back what dead pods left: list, decide, ask again, end | parse, print, name etcd or Kubernetes' client |
//! | [`host`] | this machine: its file, name, clocks, and the store that the file names | decide |
//! | [`install`] | files of a node: binary, host file, certificates, network; whole or not at all | ask the store |
//! | [`cni`] | edge 1: one request in, one JSON document out | know the command line |
//! | [`cli`] | edge 2: arguments in, data on stdout, talk on stderr, an exit code | know the CNI edge |
//!
//! To read it in order: [`domain::lease`], [`domain::pool`], [`domain::select`], [`domain::choose`], then
//! [`store`] and [`store::keys`], [`store::changes`] (every transaction there is), then [`ops`].
//!
//! # One ADD
//!
//! 1. [`cni::input`] reads environment and stdin, [`host`] the host file. Nothing else on the disk is trusted.
//! 2. [`ops`] reads once, at one revision: the pod's lease, and the pools that serve the names the pod could have.
//! 3. [`domain::select`] says which pools may be used, [`domain::choose`] which address.
//! 4. An address that somebody might still use is probed. Then one transaction, which compares all that it rests on.
//! 5. A conflict brings the present state with it: round again. No answer: the same transaction, elsewhere.
//! 6. [`cni::reply`] prints. If nobody takes the answer, what this run wrote is taken back.
//!
//! # One pass of the reaper
//!
//! 1. [`reaper`] reads the leases of its cluster at one revision, then lists the pods, then what verdicts need besides.
//! 2. [`domain::reap`] gives a verdict on each lease; its brakes stop what looks like a false answer.
//! 3. Each candidate's pod is asked for once more, live. Only that answer makes the proof that [`store::changes`] takes.
//! 4. The end of a lease compares the revision that was judged: an ADD that came between wins.
//!
//! # Invariants
//!
//! They hold after every transaction, are checked by `leasehold check` ([`domain::audit`]) and after every test that
//! touches a store.
//!
//! 1. An address key names one lease, and that lease lists the address, or a reservation without a pod; every address
//!    that a lease lists has its key.
//! 2. A lease has an attachment key if and only if it is bound, and that key is of its current container and node.
//! 3. No address has both an address key and a released key.
//! 4. Every address of a lease was inside its pool's usable set when it was leased. A pool with leases keeps its domain.
//! 5. Only an ADD of the same pod, a DEL of the current container, a verdict of the reaper, or a person ends a lease. Only
//!    a silent probe takes the mark *unconfirmed* away, in the commit that leases the address again.
//! 6. No counter is stored. The index of whom pools serve and the pools' own lists say the same.
//!
//! And of the code: a revision is compared only by the run that read it; an error is never taken
//! for an absence; stdout holds one JSON document or nothing; no secret has a `Display` or a useful `Debug`.
//!
//! # Deliberately absent
//!
//! - **Locks, leaders and etcd leases with a TTL.** A holder that dies with a lock stops everybody; a TTL takes an address
//!   from a pod that runs. Compare-and-write needs neither.
//! - **A cache that decides.** What a node remembers may only make it more careful.
//! - **The Kubernetes API in the plugin.** Credentials of nodes expire. Whom a pod belongs to is looked up by name.
//! - **A walk over addresses.** A /64 has more than can be walked; ranges are counted and read in windows.
//! - **Guessing after silence.** A commit without an answer is neither done nor failed until a read says so.
//! - **Free lists, bitmaps, "last used".** State beside the leases is state that can contradict them.
//! - **State in the reaper.** What a pass must remember stands in the leases; two reapers need no election.

pub mod admin;
pub mod cli;
pub mod cni;
pub mod config;
pub mod domain;
pub mod host;
pub mod install;
pub mod journal;
pub mod ops;
mod pem;
pub mod pods;
pub mod probe;
pub mod reaper;
pub mod store;
pub mod telemetry;
pub mod trail;

//! Tests of the built program and of what holds across files: everything that a unit test beside the source cannot say.
//!
//! The real parts (etcd, CNI plugins, network namespaces) come from `scripts/parts`. A test that lacks one says
//! `SKIPPED` and why; with CI set that is a failure.
#![expect(clippy::unwrap_used, reason = "a test may panic")]

mod captured;
mod cli;
mod cluster;
mod clusters;
mod conformance;
mod documents;
mod failures;
#[path = "fuzz/lib.rs"]
#[expect(unreachable_pub, reason = "the fuzzers are other crates")]
mod fuzz;
mod install;
mod layering;
mod manifests;
mod members;
mod ops;
mod plugins;
mod pods_api;
mod reap;
mod round_trips;
mod store_etcd;
mod strangers;
mod support;

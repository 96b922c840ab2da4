//! Leasehold.

pub mod admin;
pub mod cli;
pub mod cni;
pub mod config;
pub mod domain;
pub mod host;
pub mod journal;
pub mod ops;
pub mod probe;
pub mod store;
pub mod telemetry;

//! Leasehold.

pub mod cni;
pub mod config;
pub mod domain;
pub mod probe;
pub mod store;
pub mod telemetry;

//! Leasehold.

pub mod domain;
pub mod probe;
pub mod store;

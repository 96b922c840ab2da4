//! Leasehold.

pub mod domain;

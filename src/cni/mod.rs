//! The edge that a container runtime calls.

pub mod input;
pub mod reply;

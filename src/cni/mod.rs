//! The edge that a container runtime calls.

pub mod reply;

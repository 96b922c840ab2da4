//! Chooses the edge: a container runtime calls, or a person does.

use std::process::ExitCode;

fn main() -> ExitCode {
    leasehold::cni::run()
}

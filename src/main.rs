//! Chooses the edge: a container runtime calls, or a person does.

use std::process::ExitCode;

fn main() -> ExitCode {
    // A runtime sets CNI_COMMAND and gives no arguments; with neither, the plugin says what it is.
    if std::env::var_os("CNI_COMMAND").is_some() || std::env::args_os().len() < 2 {
        return leasehold::cni::run();
    }
    leasehold::cli::run(std::env::args_os())
}

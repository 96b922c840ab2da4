//! Has the linker put the functions that a runtime's call runs side by side. Else they lie all over a program that is
//! mostly command line and reaper, and each call takes some thirty page faults more, a twentieth of its time.
//!
//! The names in `link-order.txt` (`scripts/link-order` writes it) are of one compiler and one `Cargo.lock`. A name that is
//! not there is skipped, so an order that has aged is only of less use. The flag is lld's, which Rust links with on this
//! target since 1.90; `LEASEHOLD_LINK_ORDER=no` leaves it out for another linker.

use std::env;

const ORDER: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/scripts/link-order.txt");

fn main() {
    println!("cargo::rerun-if-changed={ORDER}");
    println!("cargo::rerun-if-env-changed=LEASEHOLD_LINK_ORDER");
    let is = |name: &str, value: &str| env::var_os(name).is_some_and(|found| found == value);
    if is("TARGET", "x86_64-unknown-linux-gnu")
        && is("PROFILE", "release")
        && !is("LEASEHOLD_LINK_ORDER", "no")
    {
        println!("cargo::rustc-link-arg-bin=leasehold=-Wl,--symbol-ordering-file={ORDER}");
        println!("cargo::rustc-link-arg-bin=leasehold=-Wl,--no-warn-symbol-ordering");
    }
}

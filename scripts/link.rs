//! How the program is linked.

fn main() {
    println!("cargo::rerun-if-changed=scripts/link.rs");
    let is = |name: &str, value: &str| std::env::var(name).is_ok_and(|found| found == value);
    // Functions that are the same to the byte are kept once. lld can do that, which rustc brings and uses here only.
    if is("PROFILE", "release") && is("CARGO_CFG_TARGET_ARCH", "x86_64") && is("CARGO_CFG_TARGET_ENV", "gnu")
    {
        println!("cargo::rustc-link-arg-bins=-Wl,--icf=all");
    }
}

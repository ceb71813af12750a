//! Tells the program which compiler made it, for `rallypoint_build_info`.

use std::process::Command;

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    let rustc = std::env::var("RUSTC").unwrap_or_else(|_| "rustc".into());
    let version = Command::new(rustc).arg("--version").output().ok();
    let version = version.and_then(|output| String::from_utf8(output.stdout).ok());
    // `rustc 1.95.0 (hash date)`
    let number = version.as_deref().and_then(|text| text.split(' ').nth(1)).unwrap_or("unknown");
    println!("cargo::rustc-env=RALLYPOINT_RUSTC={number}");
}

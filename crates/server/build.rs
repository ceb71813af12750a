//! Notes the compiler's version, for `rallypoint version` and the metric `rallypoint_build_info`.

use std::env;
use std::process::Command;

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    let rustc = env::var("RUSTC").unwrap_or_else(|_| "rustc".into());
    // `rustc 1.95.0 (hash date)`
    let output = Command::new(rustc).arg("--version").output().ok().filter(|output| output.status.success());
    let text = output.and_then(|output| String::from_utf8(output.stdout).ok());
    let number = text.as_deref().and_then(|text| text.split(' ').nth(1)).unwrap_or("unknown");
    println!("cargo::rustc-env=RALLYPOINT_RUSTC={number}");
}

//! `rallypoint version`: the version of this program, and the dialects that it speaks.

use serde_json::json;

use super::Outcome;
use super::flags::Output;
use super::terminal::print_line;

/// The releases of PyTorch whose clients are served, by the dialect that they speak (`proto-notes/wire.md`).
const DIALECTS: [(&str, &str); 3] = [("A", "1.13 and 2.0"), ("B", "2.1"), ("C", "2.2 to 2.15")];

/// Choices at build time.
const FEATURES: [(&str, bool); 2] =
    [("static", cfg!(target_feature = "crt-static")), ("debug", cfg!(debug_assertions))];

/// Tell the version, the commit, what it was built for, and the dialects of the protocol that it speaks.
#[derive(Debug, clap::Args)]
pub(super) struct Args {
    #[command(flatten)]
    output: Output,
}

impl Args {
    pub(super) fn run(self) -> anyhow::Result<Outcome> {
        let (version, commit) = (env!("CARGO_PKG_VERSION"), env!("RALLYPOINT_COMMIT"));
        let (rustc, target) = (rallypoint_server::COMPILER, env!("RALLYPOINT_TARGET"));
        let features: Vec<&str> = FEATURES.iter().filter(|(_, has)| *has).map(|(name, _)| *name).collect();
        if self.output.is_json() {
            let dialects: serde_json::Map<_, _> =
                DIALECTS.iter().map(|(name, of)| ((*name).to_owned(), json!(of))).collect();
            print_line(json!({
                "version": version, "commit": commit, "rustc": rustc, "target": target, "features": features,
                "dialects": dialects,
            }))?;
            return Ok(Outcome::Done);
        }
        print_line(format_args!("rallypoint {version}"))?;
        print_line(format_args!("commit:   {commit}"))?;
        print_line(format_args!("built:    by rustc {rustc} for {target}"))?;
        print_line(format_args!(
            "features: {}",
            if features.is_empty() { "none".into() } else { features.join(", ") }
        ))?;
        let dialects = DIALECTS.map(|(name, of)| format!("{name} (PyTorch {of})"));
        print_line(format_args!("dialects: {}", dialects.join(", ")))?;
        Ok(Outcome::Done)
    }
}

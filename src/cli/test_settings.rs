//! `serve --test-settings NAME=VALUE,…`: changes what is constant for users, so that tests need not wait.
//! CONTRIBUTING.md says how to use it.

use std::num::NonZeroUsize;
use std::str::FromStr;

use super::UsageError;
use super::units::{duration, positive_duration};
use rallypoint_server::config::ServerConfig;

/// Changes one setting to a value, or says what is wrong with the value.
type Change = fn(&mut ServerConfig, &str) -> Result<(), String>;

const SETTINGS: [(&str, Change); 11] = [
    ("forget-closed-after", |config, text| {
        duration(text).map(|time| config.stale_keys.forget_closed_after = time)
    }),
    ("handshake-timeout", |config, text| duration(text).map(|time| config.handshake_timeout = time)),
    ("keep-alive", |config, text| positive_duration(text).map(|time| config.rendezvous.keep_alive = time)),
    ("keep-alive-misses", |config, text| {
        number(text).map(|misses| config.rendezvous.keep_alive_misses = misses)
    }),
    ("pod-timeout", |config, text| duration(text).map(|time| config.pod_timeout = time)),
    ("recovery", |config, text| duration(text).map(|time| config.recovery = time)),
    ("reload-every", |config, text| positive_duration(text).map(|time| config.access.reload_every = time)),
    ("request-timeout", |config, text| duration(text).map(|time| config.request_timeout = time)),
    ("store-linger", |config, text| duration(text).map(|time| config.store_linger = time)),
    ("threads", |config, text| number(text).map(|threads: NonZeroUsize| config.threads = threads)),
    ("write-timeout", |config, text| duration(text).map(|time| config.write_timeout = time)),
];

fn number<T: FromStr>(text: &str) -> Result<T, String> {
    text.parse().map_err(|_| "write a number".into())
}

/// Changes `config` as `settings` say, with a line in the log.
pub(super) fn apply(settings: &[String], mut config: ServerConfig) -> Result<ServerConfig, UsageError> {
    for setting in settings {
        let (name, value) = setting.split_once('=').unwrap_or((setting, ""));
        let found = SETTINGS.iter().find(|(known, _)| *known == name);
        let (_, change) = found.ok_or_else(|| UsageError(format!("--test-settings knows no `{name}`")))?;
        change(&mut config, value).map_err(|why| UsageError(format!("--test-settings {setting}: {why}")))?;
    }
    if !settings.is_empty() {
        tracing::info!("--test-settings {}: only for the tests of rallypoint", settings.join(","));
    }
    Ok(config)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn applied(settings: &[&str]) -> Result<ServerConfig, String> {
        let settings: Vec<String> = settings.iter().map(ToString::to_string).collect();
        apply(&settings, ServerConfig::default()).map_err(|error| error.to_string())
    }

    #[test]
    fn each_setting_changes_the_configuration_and_no_other_is_known() {
        let plain = format!("{:?}", ServerConfig::default());
        for (name, _) in SETTINGS {
            let is_number = matches!(name, "threads" | "keep-alive-misses");
            let changed =
                applied(&[&format!("{name}={}", if is_number { "77" } else { "77s" })]).expect(name);
            assert_ne!(format!("{changed:?}"), plain, "{name}");
            let error = applied(&[&format!("{name}=soon")]).expect_err(name);
            assert!(error.contains(name), "{error}");
        }
        assert!(applied(&["max-value=1"]).is_err_and(|error| error.contains("knows no `max-value`")));
        assert_eq!(format!("{:?}", applied(&[]).expect("nothing to change")), plain);
    }
}

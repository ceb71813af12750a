//! The names by which clients may address the admin port. A browser sends the name in the page's address as
//! `Host`. Two kinds of web pages are refused: one whose own name resolves to this server (DNS rebinding),
//! and one from elsewhere that sends requests here. A browser may run where the server trusts the address:
//! behind a port-forward, or in the cluster's network. Other programs may use any name over the network.

use axum::extract::Request;
use axum::http::uri::Authority;
use axum::http::{HeaderMap, HeaderName, StatusCode, header};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};

use super::problem::Problem;

const SITE: HeaderName = HeaderName::from_static("sec-fetch-site");
const MODE: HeaderName = HeaderName::from_static("sec-fetch-mode");
/// Domains in which nobody can have a public name.
const PRIVATE: [&str; 4] = [".localhost", ".local", ".internal", ".svc"];
/// These paths reveal nothing, and a load balancer may use any name.
const PROBES: [&str; 2] = ["/livez", "/readyz"];

/// Admits only requests for a name of this server, and from browsers only requests of its own page.
pub(super) async fn only_own(
    names: &[String],
    over_loopback: bool,
    request: Request,
    next: Next,
) -> Response {
    let is_probe = PROBES.contains(&request.uri().path());
    match check(names, over_loopback, request.headers()) {
        Err(refusal) if !is_probe => refusal.into_response(),
        _ => next.run(request).await,
    }
}

/// The name matters in three cases: over loopback, because a client there has more rights; through a relay,
/// for the same reason; and for every request of a browser. All browsers send their languages, and no script
/// can prevent that. Other programs in the network may use any name that leads here, such as a pod's name
/// below its headless Service.
fn check(names: &[String], over_loopback: bool, headers: &HeaderMap) -> Result<(), Problem> {
    let hosts = || headers.get_all(header::HOST).iter().map(|host| host.to_str().unwrap_or_default());
    let is_browser =
        [header::ORIGIN, header::ACCEPT_LANGUAGE, SITE].iter().any(|name| headers.contains_key(name));
    let name_matters = over_loopback || is_browser;
    if let Some(host) = hosts().find(|host| name_matters && !is_own(host, names)) {
        let detail = format!(
            "`{host}` is no name of this server: use an address or a Service's name, or allow it with serve \
             --allow-host"
        );
        return Err(Problem::new(StatusCode::FORBIDDEN, detail).with_code("foreign_host"));
    }
    let text = |name: &HeaderName| headers.get(name).map(|value| value.to_str().unwrap_or_default());
    let is_own_page = |origin: &str| {
        let authority = origin.strip_prefix("http://").or_else(|| origin.strip_prefix("https://"));
        authority.is_some_and(|authority| hosts().any(|host| host.eq_ignore_ascii_case(authority)))
    };
    // A link on another site may lead to the page.
    let is_link = text(&MODE) == Some("navigate");
    let is_of_own_site = text(&SITE).is_none_or(|site| matches!(site, "same-origin" | "none")) || is_link;
    if text(&header::ORIGIN).is_none_or(is_own_page) && is_of_own_site {
        return Ok(());
    }
    let detail = "this request comes from another web page, which may not use this server";
    Err(Problem::new(StatusCode::FORBIDDEN, detail).with_code("foreign_origin"))
}

/// Whether `host`, the value of a `Host` header, names this server. Addresses do, and names that only the
/// server's own network knows. `names` lists more: a name, `.DOMAIN` for all names in a domain, or `*` for
/// every name.
fn is_own(host: &str, names: &[String]) -> bool {
    let Ok(authority) = host.parse::<Authority>() else { return false };
    let name = authority.host().trim_end_matches('.').to_ascii_lowercase();
    let address = name.strip_prefix('[').and_then(|name| name.strip_suffix(']')).unwrap_or(&name);
    address.parse::<std::net::IpAddr>().is_ok()
        || !name.contains('.')
        || PRIVATE.iter().any(|domain| name.ends_with(domain))
        || names
            .iter()
            .map(|own| own.trim_end_matches('.').to_ascii_lowercase())
            .any(|own| own == "*" || name == own || (own.starts_with('.') && name.ends_with(&own)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn programs_in_the_network_ask_by_any_name_and_browsers_do_not() {
        let headers = |pairs: &[(HeaderName, &str)]| -> HeaderMap {
            pairs.iter().map(|(name, value)| (name.clone(), value.parse().expect("a value"))).collect()
        };
        // The name of a pod below its headless Service.
        let program = headers(&[(header::HOST, "train-0.training:29501")]);
        assert!(check(&[], false, &program).is_ok());
        assert!(check(&[], true, &program).is_err(), "a port-forward trusts whoever comes through it");
        let evil = "evil.example:29501";
        for (name, value) in [
            (header::ORIGIN, "http://evil.example:29501"),
            (SITE, "same-origin"),
            (header::ACCEPT_LANGUAGE, "en"),
        ] {
            assert!(check(&[], false, &headers(&[(header::HOST, evil), (name, value)])).is_err());
        }
    }

    #[test]
    fn addresses_and_names_of_the_own_network_are_own() {
        let names =
            [".hpc.example.edu".to_owned(), "rally.example.com".to_owned(), "rallypoint.train".to_owned()];
        for own in [
            "127.0.0.1:8080",
            "10.1.2.3",
            "[::1]:29501",
            "[fd00::7]",
            "localhost:9000",
            "LOCALHOST.",
            "rallypoint:29501",
            "rallypoint.train:29501",
            "rallypoint.train.svc",
            "rallypoint-0.rallypoint.train.svc.cluster.local:29501",
            "ip-10-0-0-7.ec2.internal",
            "head.HPC.example.edu:29501",
            "rally.example.com.",
        ] {
            assert!(is_own(own, &names), "{own}");
        }
        for foreign in [
            "evil.example",
            "evil.example:29501",
            "svc.evil.example",
            "127.0.0.1.evil.example",
            "",
            "a b",
            "hpc.example.edu.evil.example",
            "xrally.example.com",
        ] {
            assert!(!is_own(foreign, &names), "{foreign}");
        }
        assert!(is_own("evil.example", &["*".to_owned()]));
    }
}

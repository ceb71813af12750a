//! What a scraper asks for: `Accept` chooses between Prometheus' text and OpenMetrics, `Accept-Encoding`
//! allows gzip.

use axum::http::{HeaderMap, HeaderName, header};

/// Whether OpenMetrics is named, and wanted at least as much as plain text.
pub(super) fn wants_openmetrics(headers: &HeaderMap) -> bool {
    let weight = |names: &[&str]| {
        let named = offers(headers, &header::ACCEPT).filter(|offer| names.contains(&offer.name.as_str()));
        named.filter(|offer| offer.version_is_ours).map(|offer| offer.weight).max()
    };
    let open = weight(&["application/openmetrics-text"]).unwrap_or(0);
    let plain = weight(&["text/plain"]).or_else(|| weight(&["text/*", "*/*"])).unwrap_or(0);
    open > 0 && open >= plain
}

/// Whether the answer may be packed with gzip.
pub(super) fn wants_gzip(headers: &HeaderMap) -> bool {
    let weight = |name: &str| {
        let mut all = offers(headers, &header::ACCEPT_ENCODING);
        all.find(|offer| offer.name == name).map(|offer| offer.weight)
    };
    weight("gzip").or_else(|| weight("*")).is_some_and(|weight| weight > 0)
}

/// One entry of a header's list, such as `text/plain;version=0.0.4;q=0.5`.
struct Offer {
    name: String,
    /// The `q` weight in thousandths.
    weight: u16,
    /// False for a version that this server does not speak.
    version_is_ours: bool,
}

fn offers<'h>(headers: &'h HeaderMap, name: &HeaderName) -> impl Iterator<Item = Offer> + use<'h> {
    let lists = headers.get_all(name).into_iter().filter_map(|value| value.to_str().ok());
    lists.flat_map(|list| list.split(',')).filter_map(offer)
}

fn offer(text: &str) -> Option<Offer> {
    let mut parts = text.split(';').map(str::trim);
    let name = parts.next().filter(|name| !name.is_empty())?.to_ascii_lowercase();
    let (mut weight, mut version_is_ours) = (1000, true);
    for (key, value) in parts.filter_map(|part| part.split_once('=')) {
        match key.trim().to_ascii_lowercase().as_str() {
            "q" => weight = thousandths(value.trim())?,
            "version" => version_is_ours = matches!(value.trim().trim_matches('"'), "0.0.4" | "1.0.0"),
            _ => {}
        }
    }
    Some(Offer { name, weight, version_is_ours })
}

/// A weight in thousandths: `0.25` is 250. `None` if the text is not a weight.
fn thousandths(text: &str) -> Option<u16> {
    let (whole, rest) = text.split_once('.').unwrap_or((text, ""));
    let digits = rest.len() <= 3 && rest.bytes().all(|byte| byte.is_ascii_digit());
    let part: u16 = if digits { format!("{rest:0<3}").parse().ok()? } else { return None };
    match whole {
        "0" => Some(part),
        "1" if part == 0 => Some(1000),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use axum::http::{HeaderMap, HeaderValue, header};

    use super::{wants_gzip, wants_openmetrics};

    fn headers(name: header::HeaderName, value: &str) -> HeaderMap {
        HeaderMap::from_iter([(name, HeaderValue::from_str(value).expect("a header"))])
    }

    #[test]
    fn the_format_that_is_wanted_most() {
        // The headers that Prometheus 2.42 and 3.5, and other clients, send.
        for (accept, openmetrics) in [
            (
                "application/openmetrics-text;version=1.0.0,application/openmetrics-text;version=0.0.1;\
                 q=0.75,text/plain;version=0.0.4;q=0.5,*/*;q=0.1",
                true,
            ),
            (
                "application/openmetrics-text;version=1.0.0;escaping=allow-utf-8;q=0.6,application/\
                 openmetrics-text;version=0.0.1;q=0.5,text/plain;version=1.0.0;escaping=allow-utf-8;q=0.4,\
                 text/plain;version=0.0.4;q=0.3,*/*;q=0.2",
                true,
            ),
            ("text/plain;version=0.0.4;q=0.6, application/openmetrics-text; version=1.0.0; q=0.5", false),
            ("application/openmetrics-text;version=2.0.0", false),
            ("application/openmetrics-text;q=0", false),
            ("APPLICATION/OPENMETRICS-TEXT", true),
            ("*/*", false),
            ("text/html;q=x, ;, application/openmetrics-text;q=1.001", false),
        ] {
            assert_eq!(wants_openmetrics(&headers(header::ACCEPT, accept)), openmetrics, "{accept}");
        }
        assert!(!wants_openmetrics(&HeaderMap::new()));
    }

    #[test]
    fn gzip_only_where_it_is_allowed() {
        for (accept, gzip) in [
            ("gzip", true),
            ("deflate, gzip;q=0.5", true),
            ("*", true),
            ("gzip;q=0, *", false),
            ("gzip;q=0.000", false),
            ("identity", false),
            ("", false),
        ] {
            assert_eq!(wants_gzip(&headers(header::ACCEPT_ENCODING, accept)), gzip, "{accept}");
        }
    }
}

//! The address of a server: `HOST:PORT`, as people and platforms write it.

use std::net::Ipv6Addr;

/// A host and a port. `Display` writes a form that can be parsed, with IPv6 addresses in brackets.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Endpoint {
    host: String,
    port: u16,
}

/// Why a text is not an endpoint. The message ends with advice.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum EndpointError {
    /// The text is empty, or has nothing before the port.
    #[error("`{0}` names no host; write HOST:PORT")]
    NoHost(String),
    /// The port is no number between 1 and 65535.
    #[error("`{port}` in `{text}` is no port; write HOST:PORT with a port from 1 to 65535")]
    BadPort {
        /// The whole text.
        text: String,
        /// The part after the last colon.
        port: String,
    },
    /// The link to a Service that Kubernetes sets in the environment of every pod.
    #[error(
        "`{0}` is not a host and a port; a value like `tcp://…` is the link to a Service that Kubernetes \
         injects"
    )]
    ServiceLink(String),
    /// Another URL.
    #[error("`{0}` is a URL; write HOST:PORT without `{1}://`")]
    Url(String, String),
    /// An unexpanded variable: `$(NAME)`, `${NAME}`, `$NAME`.
    #[error("`{0}` holds a variable that was not filled in; is it defined, and before this one?")]
    Unexpanded(String),
    /// Two adjacent dots, or a leading dot.
    #[error("`{0}` has an empty part between its dots; a variable in it was probably empty")]
    EmptyLabel(String),
    /// Another character that no host name has.
    #[error("`{text}` is no host name: {found:?} cannot be in one")]
    BadCharacter {
        /// The host part.
        text: String,
        /// The character.
        found: char,
    },
}

impl Endpoint {
    /// The port of c10d stores if none is given.
    pub const DEFAULT_PORT: u16 = 29500;

    /// Whether it is this host's loopback.
    pub fn is_loopback(&self) -> bool {
        self.host == "localhost" || self.host.parse::<std::net::IpAddr>().is_ok_and(|addr| addr.is_loopback())
    }

    /// Takes a host and a port. An IPv6 address may have brackets.
    pub fn new(host: &str, port: u16) -> Result<Self, EndpointError> {
        let bracketed = host.strip_prefix('[').and_then(|rest| rest.strip_suffix(']'));
        let host = bracketed.unwrap_or(host);
        check_host(host)?;
        if port == 0 {
            return Err(EndpointError::BadPort { text: format!("{host}:0"), port: "0".into() });
        }
        Ok(Self { host: host.to_owned(), port })
    }

    /// Reads `host`, `host:port`, `[::1]:port`, `[::1]` or `::1`.
    pub fn parse(text: &str, default_port: u16) -> Result<Self, EndpointError> {
        let text = text.trim();
        if let Some((scheme, _)) = text.split_once("://") {
            return Err(match scheme {
                "tcp" | "udp" => EndpointError::ServiceLink(text.into()),
                _ => EndpointError::Url(text.into(), scheme.into()),
            });
        }
        // Leave a `$` to the host check: its message fits better than "bad port" for `$(HOST):$(PORT)`.
        let whole_host = text.ends_with(']') || text.contains('$') || is_ipv6(text);
        match text.rsplit_once(':') {
            Some((host, port)) if !whole_host => Self::new(host, parse_port(text, port)?),
            _ => Self::new(text, default_port),
        }
    }

    /// This host with another port.
    #[must_use]
    pub fn with_port(&self, port: u16) -> Self {
        Self { host: self.host.clone(), port }
    }

    /// The name or address, without brackets.
    pub fn host(&self) -> &str {
        &self.host
    }

    /// The port.
    pub const fn port(&self) -> u16 {
        self.port
    }
}

/// Parses a port, which is part of an endpoint `text` or stands alone.
pub fn parse_port(text: &str, port: &str) -> Result<u16, EndpointError> {
    match port.parse() {
        Ok(port) if port > 0 => Ok(port),
        _ => Err(EndpointError::BadPort { text: text.into(), port: port.into() }),
    }
}

/// Whether `host` is an IPv6 address, possibly with a zone (`fe80::1%eth0`).
fn is_ipv6(host: &str) -> bool {
    let address = host.split_once('%').map_or(host, |(address, _zone)| address);
    address.parse::<Ipv6Addr>().is_ok()
}

fn check_host(host: &str) -> Result<(), EndpointError> {
    if host.is_empty() {
        return Err(EndpointError::NoHost(host.into()));
    }
    if host.contains('$') {
        return Err(EndpointError::Unexpanded(host.into()));
    }
    if is_ipv6(host) {
        return Ok(());
    }
    // The resolver judges non-ASCII characters. Underscores are allowed, because real names have them.
    let strange = |c: &char| c.is_ascii() && !c.is_ascii_alphanumeric() && !matches!(c, '.' | '-' | '_');
    if let Some(found) = host.chars().find(strange) {
        return Err(EndpointError::BadCharacter { text: host.into(), found });
    }
    if host.starts_with('.') || host.contains("..") {
        return Err(EndpointError::EmptyLabel(host.into()));
    }
    Ok(())
}

impl std::str::FromStr for Endpoint {
    type Err = EndpointError;

    fn from_str(text: &str) -> Result<Self, EndpointError> {
        Self::parse(text, Self::DEFAULT_PORT)
    }
}

impl serde::Serialize for Endpoint {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl std::fmt::Display for Endpoint {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        if self.host.contains(':') {
            write!(f, "[{}]:{}", self.host, self.port)
        } else {
            write!(f, "{}:{}", self.host, self.port)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_endpoint_is_read_as_people_write_it() {
        for (text, shown) in [
            ("rallypoint", "rallypoint:29500"),
            ("train-0.train:29400", "train-0.train:29400"),
            (" 10.1.2.3:1 ", "10.1.2.3:1"),
            ("[::1]:29501", "[::1]:29501"),
            ("[::1]", "[::1]:29500"),
            ("::1", "[::1]:29500"),
            ("fe80::1%eth0", "[fe80::1%eth0]:29500"),
            ("name_with_underscore.", "name_with_underscore.:29500"),
        ] {
            assert_eq!(text.parse::<Endpoint>().expect(text).to_string(), shown);
        }
    }

    #[test]
    fn what_is_no_endpoint_is_said_in_words() {
        let error = |text: &str| text.parse::<Endpoint>().expect_err(text).to_string();
        assert!(error("").contains("names no host"));
        assert!(error(":29500").contains("names no host"));
        assert!(error("host:").contains("no port"));
        assert!(error("host:0").contains("from 1 to 65535"));
        assert!(error("host:65536").contains("no port"));
        assert!(error("host:tcp").contains("`tcp` in `host:tcp`"));
        assert!(error("tcp://10.0.0.1:29500").contains("Kubernetes injects"));
        assert!(error("http://host:29501").contains("without `http://`"));
        assert!(error("$(MASTER_ADDR):29500").contains("variable"));
        assert!(error("${HOST}:${PORT}").contains("variable"));
        assert!(error("job-0..ns.svc:29500").contains("empty part"));
        assert!(error("a b:29500").contains("' ' cannot be"));
        assert!(error("host/path").contains("'/' cannot be"));
    }
}

//! The token of a browser.

use serde::{Deserialize, Serialize};

/// `POST /api/v1/login`
#[derive(Clone, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(deny_unknown_fields)]
pub struct Login {
    /// The token.
    pub token: String,
}

impl std::fmt::Debug for Login {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Login(masked)")
    }
}

/// The rights of the token.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct LoggedIn {
    /// `viewer`, `member` or `operator`.
    pub role: String,
    /// The runs that the token is for; `null` for all.
    #[cfg_attr(feature = "openapi", schema(required))]
    pub runs: Option<String>,
}

/// The cookie that holds a browser's token. A browser cannot send a header with a stream of events.
pub const COOKIE: &str = "rallypoint_token";

/// The value of that cookie in a `Cookie` header, which may also contain cookies of other servers on the
/// host.
pub fn own_cookie(cookies: &str) -> Option<&str> {
    cookies.split(';').find_map(|cookie| cookie.trim().strip_prefix(COOKIE)?.strip_prefix('='))
}

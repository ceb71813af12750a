//! The token of a browser.

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

/// `POST /api/v1/login`
#[derive(Clone, Serialize, Deserialize, ToSchema)]
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

/// What the token may do.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct LoggedIn {
    /// `viewer`, `member` or `operator`.
    pub role: String,
    /// The runs it is for, if not for all.
    #[schema(required)]
    pub runs: Option<String>,
}

/// The cookie that holds the token of a browser, which can send no header with a stream of events.
pub const COOKIE: &str = "rallypoint_token";

/// The value of that cookie in a `Cookie` header. A browser sends there whatever others of the same host have set, too.
pub fn own_cookie(cookies: &str) -> Option<&str> {
    cookies.split(';').find_map(|cookie| cookie.trim().strip_prefix(COOKIE)?.strip_prefix('='))
}

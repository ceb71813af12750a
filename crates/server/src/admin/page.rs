//! `GET /`: the page that shows the runs live. It is one document; its parts are joined here. The policy
//! names the digests of exactly this style and script, so the browser runs and loads nothing else. It also
//! refuses text as markup (Trusted Types), because peers choose run ids and host names.

use std::sync::LazyLock;

use axum::http::header;
use axum::response::{Html, IntoResponse};
use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use sha2::{Digest, Sha256};

const STYLE: &str = include_str!("page/style.css");
const SCRIPT: &str =
    concat!(include_str!("page/server.js"), include_str!("page/draw.js"), include_str!("page/page.js"));

static DOCUMENT: LazyLock<String> = LazyLock::new(|| {
    include_str!("page/index.html").replacen("{{style}}", STYLE, 1).replacen("{{script}}", SCRIPT, 1)
});

static POLICY: LazyLock<String> = LazyLock::new(|| {
    let digest = |text: &str| STANDARD.encode(Sha256::digest(text));
    format!(
        "default-src 'none'; style-src 'sha256-{}'; script-src 'sha256-{}'; connect-src 'self'; img-src \
         data:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'; require-trusted-types-for \
         'script'; trusted-types 'none'",
        digest(STYLE),
        digest(SCRIPT)
    )
});

/// The page: runs, nodes and ranks, live.
#[utoipa::path(
    get,
    path = "/",
    operation_id = "page",
    responses((status = 200, description = "HTML, one file.", body = String, content_type = "text/html"))
)]
pub(super) async fn page() -> impl IntoResponse {
    let headers = [
        (header::CONTENT_SECURITY_POLICY, POLICY.as_str()),
        (header::CACHE_CONTROL, "no-cache"),
        (header::X_CONTENT_TYPE_OPTIONS, "nosniff"),
        (header::REFERRER_POLICY, "no-referrer"),
    ];
    (headers, Html(DOCUMENT.as_str()))
}

/// What the explanations mean. The page shows the section about an explanation.
#[utoipa::path(
    get,
    path = "/docs/explanations.md",
    operation_id = "explanations",
    responses(
        (
            status = 200, description = "The document of this release.", body = String,
            content_type = "text/plain"
        )
    )
)]
pub(super) async fn explanations() -> impl IntoResponse {
    let headers =
        [(header::CONTENT_TYPE, "text/plain; charset=utf-8"), (header::X_CONTENT_TYPE_OPTIONS, "nosniff")];
    (headers, include_str!("../../docs/explanations.md"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_parts_are_all_in_the_document() {
        assert!(DOCUMENT.contains(STYLE) && DOCUMENT.contains(SCRIPT));
        assert!(!DOCUMENT.contains("{{"));
        // An end tag inside a part would end that part early.
        assert!(!STYLE.contains("</style") && !SCRIPT.contains("</script"));
    }

    #[test]
    fn the_document_needs_no_other_file() {
        for outside in ["http://", "https://", "src=", "@import", "url("] {
            // The page loads neither: one is a name, the other a link to torch's debug server.
            let found = DOCUMENT.replace("xmlns='http://www.w3.org/2000/svg'", "");
            let found = found.replace("href: `http://${debug}/`", "");
            assert!(!found.contains(outside), "{outside}");
        }
    }

    #[test]
    fn no_text_becomes_markup() {
        for way in ["innerHTML", "outerHTML", "insertAdjacentHTML", "document.write", "eval(", "DOMParser"] {
            assert!(!SCRIPT.contains(way), "{way}");
        }
    }
}

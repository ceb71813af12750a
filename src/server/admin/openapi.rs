//! The OpenAPI document, made of the routes and the bodies themselves. `docs/openapi.json` is a copy for readers; a test
//! compares the two.

use std::sync::LazyLock;

use utoipa::openapi::path::{Operation, PathItem};
use utoipa::openapi::security::{Http, HttpAuthScheme, SecurityScheme};
use utoipa::openapi::{Content, Ref, ResponseBuilder};
use utoipa::{Modify, OpenApi};

use crate::api::Problem;

/// What stands above the routes.
#[derive(OpenApi)]
#[openapi(
    info(
        title = "rallypoint",
        version = "1",
        description = "Health, metrics, stores, runs, native rendezvous and barriers.",
        license(name = "Apache-2.0", identifier = "Apache-2.0")
    ),
    servers((url = "http://127.0.0.1:29501")),
    components(schemas(Problem)),
    modifiers(&Token)
)]
struct Head;

struct Token;

impl Modify for Token {
    fn modify(&self, document: &mut utoipa::openapi::OpenApi) {
        let mut token = Http::new(HttpAuthScheme::Bearer);
        token.description =
            Some("The token of --token-file. A server without one obeys its own host.".into());
        document.components.get_or_insert_default().add_security_scheme("token", SecurityScheme::Http(token));
    }
}

/// The description of every route, as JSON.
pub fn document() -> &'static str {
    static DOCUMENT: LazyLock<String> = LazyLock::new(|| {
        let mut document = Head::openapi();
        for part in [super::probes(), super::api_routes()] {
            document.merge(part.into_openapi());
        }
        for operation in document.paths.paths.values_mut().flat_map(operations) {
            let content = Content::new(Some(Ref::from_schema_name("Problem")));
            let problem = ResponseBuilder::new()
                .description("An error.")
                .content("application/problem+json", content)
                .build();
            operation.responses.responses.insert("default".into(), problem.into());
        }
        // Strings and numbers always have a JSON form.
        document.to_pretty_json().unwrap_or_default()
    });
    &DOCUMENT
}

fn operations(path: &mut PathItem) -> impl Iterator<Item = &mut Operation> {
    [&mut path.get, &mut path.put, &mut path.post, &mut path.delete].into_iter().flatten()
}

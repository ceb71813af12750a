//! The OpenAPI document, made from the routes and the bodies. The program includes the copy in
//! `docs/openapi.json`: the code that makes the document takes one and a half megabytes, and only the test
//! that compares the two needs it.

use utoipa::openapi::path::{Operation, PathItem};
use utoipa::openapi::security::{Http, HttpAuthScheme, SecurityScheme};
use utoipa::openapi::{Content, Ref, RefOr, ResponseBuilder, Schema};
use utoipa::{Modify, OpenApi};

use rallypoint_api::Problem;
use rallypoint_insight::RULES;

/// The OpenAPI 3.1 description of every route.
pub const OPENAPI: &str = include_str!("../../docs/openapi.json");

/// The head of the document, above the routes.
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
    security((), ("token" = [])),
    modifiers(&Token)
)]
struct Head;

struct Token;

impl Modify for Token {
    fn modify(&self, document: &mut utoipa::openapi::OpenApi) {
        let mut token = Http::new(HttpAuthScheme::Bearer);
        token.description =
            Some("A token of --token-file. A server without the file obeys its own host.".into());
        document.components.get_or_insert_default().add_security_scheme("token", SecurityScheme::Http(token));
    }
}

/// Makes the document anew.
pub fn document() -> String {
    let mut document = Head::openapi();
    for routes in [super::Probes::openapi(), super::Own::openapi(), super::Kept::openapi()] {
        document.merge(routes);
    }
    for operation in document.paths.paths.values_mut().flat_map(operations) {
        let content = Content::new(Some(Ref::from_schema_name("Problem")));
        let problem = ResponseBuilder::new()
            .description("An error.")
            .content("application/problem+json", content)
            .build();
        // By default the tags would be the names of our modules.
        operation.tags = None;
        operation.responses.responses.insert("default".into(), problem.into());
    }
    // A code of an explanation is one of the table's.
    let schemas = document.components.as_mut().map(|components| &mut components.schemas);
    if let Some(RefOr::T(Schema::Object(said))) = schemas.and_then(|all| all.get_mut("Explanation"))
        && let Some(RefOr::T(Schema::Object(code))) = said.properties.get_mut("code")
    {
        code.enum_values = Some(RULES.iter().map(|rule| rule.code.into()).collect());
    }
    // Strings and numbers always have a JSON form.
    document.to_pretty_json().unwrap_or_default() + "\n"
}

fn operations(path: &mut PathItem) -> impl Iterator<Item = &mut Operation> {
    [&mut path.get, &mut path.put, &mut path.post, &mut path.delete].into_iter().flatten()
}

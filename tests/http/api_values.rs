//! Extreme values for every number and text of the API: the server accepts the value or reports the mistake,
//! and goes on.
//!
//! The fields come from the OpenAPI document, so that a new field needs no new test.

use std::hash::{BuildHasher, RandomState};
use std::io::{Read, Write};
use std::net::{Shutdown, TcpStream};

use serde_json::{Value, json};

use crate::common::{HttpAnswer, PATIENCE, TestServer, http};

const JSON: &str = "Content-Type: application/json\r\n";

/// Numbers at the limits of common types, in JSON form. The last ones are no JSON.
const NUMBERS: [&str; 28] = [
    "0",
    "-0.0",
    "1",
    "-1",
    "0.5",
    "255",
    "256",
    "65535",
    "65536",
    "604801",
    "2147483647",
    "2147483648",
    "4294967295",
    "4294967296",
    "281474976710655",
    "9007199254740993",
    "9223372036854775807",
    "9223372036854775808",
    "-9223372036854775809",
    "18446744073709551615",
    "18446744073709551616",
    "1e19",
    "1e308",
    "-1e308",
    "5e-324",
    "1e999",
    "NaN",
    "Infinity",
];
/// How many random numbers each field gets in addition.
const RANDOM: usize = 12;

fn random_number() -> String {
    let bits = RandomState::new().hash_one(0);
    let float = f64::from_bits(bits);
    match bits % 5 {
        0 => bits.to_string(),
        1 => format!("-{bits}"),
        2 => (1_u128 << (bits % 100)).to_string(),
        3 => ((1_u128 << (bits % 100)) - 1).to_string(),
        _ if float.is_finite() => format!("{float:e}"),
        _ => (bits >> 40).to_string(),
    }
}

fn numbers() -> impl Iterator<Item = String> {
    NUMBERS.iter().map(ToString::to_string).chain(std::iter::repeat_with(random_number).take(RANDOM))
}

// ----- the document -----

/// One operation of the API.
struct Operation {
    method: String,
    path: String,
    parameters: Vec<Value>,
    /// The example of its body, changed so that the answer comes at once.
    body: Option<Value>,
    /// The fields of its body that have values: pointer and type.
    fields: Vec<(String, String)>,
}

fn resolved<'d>(document: &'d Value, schema: &'d Value) -> &'d Value {
    match schema["$ref"].as_str() {
        Some(name) => document.pointer(name.trim_start_matches('#')).expect("a schema of that name"),
        None => schema,
    }
}

/// Adds the fields below `schema` with the type `number`, `integer` or `string`.
fn collect(document: &Value, schema: &Value, at: &str, fields: &mut Vec<(String, String)>) {
    let schema = resolved(document, schema);
    let kinds: Vec<&str> = match &schema["type"] {
        Value::String(one) => vec![one],
        several => several.as_array().into_iter().flatten().filter_map(Value::as_str).collect(),
    };
    if let Some(kind) = kinds.iter().find(|kind| ["number", "integer", "string"].contains(kind)) {
        fields.push((at.to_owned(), (*kind).to_owned()));
    }
    for one in
        ["oneOf", "allOf"].into_iter().flat_map(|several| schema[several].as_array().into_iter().flatten())
    {
        collect(document, one, at, fields);
    }
    if !schema["items"].is_null() {
        collect(document, &schema["items"], &format!("{at}/0"), fields);
    }
    for (name, property) in schema["properties"].as_object().into_iter().flatten() {
        collect(document, property, &format!("{at}/{name}"), fields);
    }
}

fn operations() -> Vec<Operation> {
    let document: Value = serde_json::from_str(rallypoint_server::admin::OPENAPI).expect("JSON");
    let mut operations = Vec::new();
    for (path, item) in document["paths"].as_object().expect("paths") {
        for (method, operation) in item.as_object().expect("operations") {
            let content = &operation["requestBody"]["content"]["application/json"];
            let mut fields = Vec::new();
            collect(&document, &content["schema"], "", &mut fields);
            let mut body = content.get("example").cloned();
            let has = |name: &str| fields.iter().any(|(at, _)| at == name);
            if let Some(body) = body.as_mut().filter(|_| has("/wait_seconds")) {
                body["wait_seconds"] = json!(0);
            }
            if operation["operationId"] == "join" {
                // Without a store for each round, and without heartbeats.
                body.as_mut().expect("an example")["store"] = json!(false);
                body.as_mut().expect("an example")["heartbeat"] = json!(false);
            }
            if operation["operationId"] == "heartbeat" {
                // The action must differ from the answer's; otherwise the request would wait for a change.
                body.as_mut().expect("an example")["seen"] = json!("closed");
            }
            operations.push(Operation {
                method: method.to_uppercase(),
                path: path.clone(),
                parameters: operation["parameters"].as_array().cloned().unwrap_or_default(),
                body,
                fields,
            });
        }
    }
    assert!(operations.len() > 15, "the document has operations");
    operations
}

/// `body` with `value`, which may be no JSON, at `pointer`.
fn with_value(body: &Value, pointer: &str, value: &str) -> String {
    const PLACE: &str = "the value goes here";
    let mut body = body.clone();
    let mut at = &mut body;
    for name in pointer.split('/').skip(1) {
        at = match name.parse::<usize>() {
            Ok(_) => {
                *at = json!([PLACE]);
                &mut at[0]
            }
            // A place needs both fields.
            Err(_) if name == "previous" => {
                at[name] = json!({"round": 1, "rank": 0});
                &mut at[name]
            }
            Err(_) => &mut at[name],
        };
    }
    *at = json!(PLACE);
    body.to_string().replace(&format!("\"{PLACE}\""), value)
}

fn percent(text: &str) -> String {
    text.bytes().map(|byte| format!("%{byte:02X}")).collect::<Vec<_>>().concat()
}

impl Operation {
    /// Its path with values for all parameters: `value` for the parameter `name`, and `id` for other names.
    fn target(&self, name: &str, value: &str, id: &str) -> String {
        let mut target = self.path.clone();
        for parameter in &self.parameters {
            let own = parameter["name"].as_str().expect("a name");
            let text = match own {
                _ if own == name => percent(value),
                "port" => "1".to_owned(),
                _ => id.to_owned(),
            };
            match parameter["in"].as_str() {
                Some("path") => target = target.replace(&format!("{{{own}}}"), &text),
                Some("query") if own == name => target = format!("{target}?{own}={text}"),
                _ => {}
            }
        }
        format!("{} {target}", self.method)
    }

    fn is_stream(&self) -> bool {
        self.path.ends_with("/events")
    }
}

// ----- the server -----

/// Checks that the request succeeded, or that the answer explains the failure in words.
fn assert_sound(answer: &HttpAnswer, what: &str) {
    if (200..300).contains(&answer.status) {
        return;
    }
    assert!((400..500).contains(&answer.status), "{what}: {answer:?}");
    assert!(answer.head.contains("content-type: application/problem+json"), "{what}: {answer:?}");
    let problem = answer.json();
    let detail = problem["detail"].as_str().unwrap_or_default();
    assert!(detail.split(' ').count() > 3, "{what}: `{detail}` is no sentence");
}

/// Checks that every lock of the server is free, and that its routes work.
fn assert_goes_on(server: &TestServer, what: &str) {
    let works = |request: &str, body: &str| {
        let answer = http(server.admin, request, JSON, body);
        assert_eq!(answer.status, 200, "after {what}: {answer:?}");
    };
    works(
        "POST /api/v1/barriers/good/arrive",
        r#"{"participant": "a", "arrival_id": "1", "world_size": 1, "wait_seconds": 0}"#,
    );
    works("POST /api/v1/runs/good/announce", r#"{"pod": "good-0", "nodes": "1"}"#);
    works("GET /api/v1/runs", "");
}

#[test]
fn every_number_of_every_body_is_taken_or_refused_in_words() {
    let server = TestServer::start(&["--max-runs", "100000"]);
    let mut tried = 0;
    for operation in operations() {
        let Some(body) = &operation.body else { continue };
        for (field, kind) in &operation.fields {
            // The number of nodes is a text, because it may be `MIN:MAX`.
            let quoted = kind == "string";
            if quoted && field != "/nodes" {
                continue;
            }
            for (n, number) in numbers().enumerate() {
                let value = if quoted { format!("\"{number}\"") } else { number };
                let sent = with_value(body, field, &value);
                let request = operation.target("", "", &format!("n{}-{n}", field.replace('/', "-")));
                let what = format!("{request} {sent}");
                assert_sound(&http(server.admin, &request, JSON, &sent), &what);
                assert_goes_on(&server, &what);
                tried += 1;
            }
        }
    }
    assert!(tried > 500, "{tried}");
}

/// Ends a log line, forges another one, controls a terminal, and changes and hides text.
const EVIL: &str = "a\n2026-01-01T00:00:00.000000Z  INFO forged: all is well \u{1b}[2J\u{9b}\u{202e}\u{200b}";

#[test]
fn every_text_that_is_not_plain_is_refused_and_in_no_log_line() {
    let server = TestServer::start(&[]);
    let mut tried = 0;
    let mut refused = |request: &str, sent: &str| {
        let answer = http(server.admin, request, JSON, sent);
        assert!((400..500).contains(&answer.status), "{request} {sent}: {answer:?}");
        assert_sound(&answer, request);
        let problem = answer.json();
        let detail = problem["detail"].as_str().unwrap_or_default();
        assert!(detail.chars().all(crate::common::is_harmless), "{request}: {detail:?}");
        tried += 1;
    };
    for operation in operations() {
        if let Some(body) = &operation.body {
            // A payload may be any text: only peers read it.
            let is_plain = |(field, kind): &&(String, String)| kind == "string" && field != "/payload";
            for (field, _) in operation.fields.iter().filter(is_plain) {
                let evil = Value::from(EVIL).to_string();
                refused(&operation.target("", "", "r"), &with_value(body, field, &evil));
            }
        }
        for parameter in operation.parameters.iter().filter(|p| p["in"] == "path") {
            let name = parameter["name"].as_str().expect("a name");
            let body = operation.body.as_ref().map(Value::to_string).unwrap_or_default();
            refused(&operation.target(name, EVIL, "r"), &body);
        }
    }
    assert!(tried > 30, "{tried}");
    crate::common::assert_log_is_sound(&server.log());
}

#[test]
fn every_number_of_every_path_and_query_is_taken_or_refused_in_words() {
    let server = TestServer::start(&[]);
    let mut tried = 0;
    for operation in operations().iter().filter(|operation| !operation.is_stream()) {
        for parameter in operation.parameters.iter().filter(|p| p["schema"]["type"] == "integer") {
            for number in numbers() {
                let request = operation.target(parameter["name"].as_str().expect("a name"), &number, "r");
                assert_sound(&http(server.admin, &request, "", ""), &request);
                assert_goes_on(&server, &request);
                tried += 1;
            }
        }
    }
    assert!(tried > 100, "{tried}");
}

#[test]
fn no_number_in_a_header_harms_the_server() {
    const HEADERS: [&str; 10] = [
        "Content-Length",
        "Transfer-Encoding",
        "Content-Type",
        "Authorization",
        "Host",
        "Origin",
        "Expect",
        "Keep-Alive",
        "Last-Event-ID",
        "Range",
    ];
    let server = TestServer::start(&[]);
    let body = r#"{"participant": "a", "world_size": 1, "wait_seconds": 0}"#;
    for header in HEADERS {
        for number in numbers() {
            let mut stream = TcpStream::connect(server.admin).expect("the admin port listens");
            stream.set_read_timeout(Some(PATIENCE)).expect("a socket");
            let others = [("Host", "test"), ("Content-Type", "application/json"), ("Content-Length", "56")];
            let others = others.iter().filter(|(name, _)| *name != header);
            let others = others.map(|(name, value)| format!("{name}: {value}\r\n"));
            let others = others.collect::<Vec<_>>().concat();
            let request = format!(
                "POST /api/v1/barriers/h/arrive HTTP/1.1\r\n{header}: {number}\r\n\
                 {others}Connection: close\r\n\r\n{body}"
            );
            stream.write_all(request.as_bytes()).expect("the admin port reads");
            // A longer body never comes.
            stream.shutdown(Shutdown::Write).expect("a socket");
            // If HTTP itself forbids the header, there may be no answer.
            let mut answer = Vec::new();
            let _ = stream.read_to_end(&mut answer);
            let answer = String::from_utf8_lossy(&answer);
            let is_no_fault_of_the_server = !answer.starts_with("HTTP/1.1 5");
            assert!(is_no_fault_of_the_server, "{header}: {number}: {answer}");
            assert_goes_on(&server, &format!("{header}: {number}"));
        }
    }
}

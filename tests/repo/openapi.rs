//! Checks the OpenAPI document, which is made from the routes themselves: its examples work, the answers fit
//! the descriptions, and the copy for readers is up to date.

use rallypoint_server::admin::OPENAPI;
use serde_json::{Value, json};

use crate::common::{HttpAnswer, TestServer, http};

fn document() -> Value {
    serde_json::from_str(OPENAPI).expect("JSON")
}

/// Every operation: path, method, description.
fn operations(document: &Value) -> Vec<(&str, &str, &Value)> {
    let paths = document["paths"].as_object().expect("paths");
    paths
        .iter()
        .flat_map(|(path, item)| {
            item.as_object()
                .expect("operations")
                .iter()
                .map(|(method, op)| (path.as_str(), method.as_str(), op))
        })
        .collect()
}

#[test]
fn the_copy_for_readers_is_the_document() {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/docs/openapi.json");
    let document = rallypoint_server::admin::openapi();
    if std::env::var_os("RALLYPOINT_UPDATE_DOCS").is_some() {
        std::fs::write(path, &document).expect("a file that can be written");
    }
    // Read the file: the copy in the program is as old as its build.
    let copy = std::fs::read_to_string(path).expect("a file that can be read");
    assert!(
        copy == document,
        "docs/openapi.json is not what the routes and bodies say; RALLYPOINT_UPDATE_DOCS=1 cargo nextest run \
         --test repo openapi writes it anew"
    );
}

/// Merges a schema of several parts into one.
fn merged(document: &Value, parts: &[Value]) -> Value {
    let (mut properties, mut required) = (serde_json::Map::new(), Vec::new());
    for part in parts {
        let part = match part["$ref"].as_str() {
            Some(name) => document.pointer(name.trim_start_matches('#')).expect("a schema of that name"),
            None => part,
        };
        properties.extend(part["properties"].as_object().cloned().unwrap_or_default());
        required.extend(part["required"].as_array().cloned().unwrap_or_default());
    }
    json!({ "type": "object", "properties": properties, "required": required })
}

/// Checks that `value` fits `schema`, as far as our document uses schemas.
fn check(document: &Value, schema: &Value, value: &Value, at: &str) {
    if let Some(name) = schema["$ref"].as_str() {
        let schema = document.pointer(name.trim_start_matches('#')).unwrap_or_else(|| panic!("no {name}"));
        return check(document, schema, value, at);
    }
    if let Some(all_of) = schema["allOf"].as_array() {
        return check(document, &merged(document, all_of), value, at);
    }
    if let Some(one_of) = schema["oneOf"].as_array() {
        let fits = one_of.iter().find(|one| (one["type"] == "null") == value.is_null());
        return check(document, fits.unwrap_or_else(|| panic!("{at}: {value}")), value, at);
    }
    let kind = match value {
        Value::Null => "null",
        Value::Bool(_) => "boolean",
        Value::Number(n) if n.is_u64() || n.is_i64() => "integer",
        Value::Number(_) => "number",
        Value::String(_) => "string",
        Value::Array(_) => "array",
        Value::Object(_) => "object",
    };
    let types: Vec<&str> = match &schema["type"] {
        Value::String(one) => vec![one],
        Value::Array(several) => several.iter().filter_map(Value::as_str).collect(),
        other => panic!("{at}: a schema with type {other}"),
    };
    assert!(
        types.contains(&kind) || (kind == "integer" && types.contains(&"number")),
        "{at}: {value} is no {types:?}"
    );
    if let Some(words) = schema["enum"].as_array() {
        assert!(words.contains(value), "{at}: {value} is none of {words:?}");
    }
    if let Value::Array(items) = value {
        for item in items {
            check(document, &schema["items"], item, at);
        }
    }
    let (Value::Object(fields), Some(properties)) = (value, schema["properties"].as_object()) else { return };
    for (name, value) in fields {
        let property = properties.get(name).unwrap_or_else(|| panic!("{at}: {name} is not described"));
        check(document, property, value, &format!("{at}.{name}"));
    }
    for name in schema["required"].as_array().into_iter().flatten().filter_map(Value::as_str) {
        assert!(fields.contains_key(name), "{at}: {name} is missing");
    }
}

/// Sends the example of an operation to the server.
fn send_example(server: &TestServer, path: &str, method: &str, operation: &Value) -> HttpAnswer {
    let mut path = path.to_owned();
    for parameter in operation["parameters"].as_array().into_iter().flatten() {
        let (name, example) = (parameter["name"].as_str().expect("a name"), &parameter["example"]);
        if example.is_null() {
            continue;
        }
        let text = match (name, example) {
            ("port", _) => server.store.port().to_string(),
            (_, Value::String(text)) => text.clone(),
            (_, other) => other.to_string(),
        };
        match parameter["in"].as_str() {
            Some("path") => path = path.replace(&format!("{{{name}}}"), &text),
            Some("query") => path = format!("{path}?{name}={text}"),
            other => panic!("a parameter in {other:?}"),
        }
    }
    let example = &operation["requestBody"]["content"]["application/json"]["example"];
    let (headers, body) = if example.is_null() {
        ("", String::new())
    } else {
        ("Content-Type: application/json\r\n", example.to_string())
    };
    http(server.admin, &format!("{} {path}", method.to_uppercase()), headers, &body)
}

/// Checks an answer that does not end: a snapshot of the runs comes first.
fn the_stream_begins(server: &TestServer, path: &str) {
    use std::io::{BufRead, BufReader, Write};
    let mut stream = std::net::TcpStream::connect(server.admin).expect("the admin port listens");
    stream.set_read_timeout(Some(crate::common::PATIENCE)).expect("a socket");
    write!(stream, "GET {path} HTTP/1.1\r\nHost: test\r\n\r\n").expect("it reads");
    let mut lines = BufReader::new(stream).lines().map(|line| line.expect("the stream goes on"));
    assert!(lines.any(|line| line.to_lowercase() == "content-type: text/event-stream"));
    assert!(lines.any(|line| line == "event: snapshot"));
}

#[test]
fn every_example_works_and_its_answer_is_as_described() {
    let document = document();
    let server = TestServer::with_store_ports(20, &[]);
    let folder = tempfile::tempdir().expect("a folder");
    let tokens = folder.path().join("tokens");
    std::fs::write(&tokens, "s3cret\n").expect("written");
    let guarded = TestServer::start(&["--token-file", tokens.to_str().expect("text")]);
    let mut operations = operations(&document);
    // The examples form one story, in this order; other operations are independent of it.
    let story = [
        "announce",
        "announced",
        "join",
        "heartbeat",
        "getRun",
        "listRuns",
        "leave",
        "extend",
        "close",
        "forgetRun",
    ];
    operations.sort_by_key(|(_, _, op)| story.iter().position(|id| op["operationId"] == *id));
    for (path, method, operation) in operations {
        let at = format!("{method} {path}");
        let example = &operation["requestBody"]["content"]["application/json"];
        if !example.is_null() {
            check(&document, &example["schema"], &example["example"], &at);
        }
        if operation["operationId"] == "extend" {
            // The operation needs a gathering round.
            let body = r#"{"node": "waits", "min_nodes": 2, "wait_seconds": 0}"#;
            let waits = http(
                server.admin,
                "POST /api/v1/runs/train-17/join",
                "Content-Type: application/json\r\n",
                body,
            );
            assert_eq!(waits.status, 202, "{waits:?}");
            check(&document, &document["components"]["schemas"]["JoinWaiting"], &waits.json(), "join 202");
        }
        if operation["responses"]["200"]["content"]["text/event-stream"].is_object() {
            the_stream_begins(&server, path);
            continue;
        }
        let server = if operation["operationId"] == "login" { &guarded } else { &server };
        let answer = send_example(server, path, method, operation);
        // A route that upgrades to another protocol answers 426 to a client that does not ask for the
        // upgrade.
        let upgrades = operation["responses"]["101"].is_object() && answer.status == 426;
        assert!(upgrades || (200..300).contains(&answer.status), "{at}: {answer:?}");
        let described = &operation["responses"][answer.status.to_string()];
        assert!(described.is_object(), "{at}: {} is not described", answer.status);
        let json = &described["content"]["application/json"]["schema"];
        if !json.is_null() {
            check(&document, json, &answer.json(), &at);
        }
    }
}

#[test]
fn a_request_that_is_wrong_gets_the_error_that_is_described() {
    let document = document();
    let server = TestServer::with_store_ports(20, &[]);
    let posts = operations(&document).into_iter().filter(|(_, _, op)| op["requestBody"].is_object());
    for (path, method, operation) in posts {
        let path = path.replace("{run_id}", "r").replace("{name}", "b");
        let answer = http(
            server.admin,
            &format!("{} {path}", method.to_uppercase()),
            "Content-Type: application/json\r\n",
            "1",
        );
        assert_eq!(answer.status, 422, "{path}: {answer:?}");
        let schema = &operation["responses"]["default"]["content"]["application/problem+json"]["schema"];
        check(&document, schema, &answer.json(), &path);
    }
}

#[test]
fn the_server_serves_the_document() {
    let server = TestServer::start(&[]);
    assert_eq!(http(server.admin, "GET /api/v1/openapi.json", "", "").json(), document());
}

/// The codes of the rules' table are in the document. Whatever else names codes names some of these.
#[test]
fn codes_that_are_named_elsewhere_are_those_of_the_document() {
    let document = document();
    let codes = &document["components"]["schemas"]["Explanation"]["properties"]["code"]["enum"];
    let codes: Vec<&str> = codes.as_array().expect("codes").iter().filter_map(Value::as_str).collect();
    let read = |path: &str| {
        let path = format!("{}/{path}", env!("CARGO_MANIFEST_DIR"));
        std::fs::read_to_string(path).expect("a file that can be read")
    };
    let status = read("src/cli/status/render.rs");
    let of_status = status.lines().find(|line| line.contains("const CODES")).expect("codes of the status");
    let mut named: Vec<String> = of_status.split('"').skip(1).step_by(2).map(str::to_owned).collect();
    let judge = read("tests/pytorch/plays/judge.py");
    let (_, of_judge) = judge.split_once("ONLY_WITH = {").expect("codes of the judge");
    let of_judge = of_judge.lines().skip(1).take_while(|line| !line.starts_with('}'));
    let code = |line: &str| line.split('"').nth(1).map(str::to_owned);
    named.extend(of_judge.filter_map(code));
    for path in ["rules.yaml", "prometheusrule.yaml", "rules_test.yaml", "dashboard.json"] {
        let text = read(&format!("deploy/monitoring/{path}"));
        let labels = text.split("{code=").flat_map(|part| part.split(",code=")).skip(1);
        let values = labels.filter_map(|label| label.split(['"', '\\']).find(|part| !part.is_empty()));
        named.extend(values.flat_map(|value| value.split('|')).map(|code| code.trim_matches('~').to_owned()));
    }
    for code in &named {
        let code = code.trim_end_matches("_cut_off").trim_end_matches("_taken_out");
        assert!(codes.contains(&code), "{code} is no code");
    }
    assert!(codes.len() > 30 && named.len() > 10, "{codes:?} {named:?}");
}

//! Mistaken ports: the admin port in place of a store, and the reverse. Waiting does not help. The other port
//! of the same server can tell which one is right.

use std::time::Duration;

use super::http::{self, AdminUrl, HttpError};
use super::{Client, ConnectError, Endpoint, Options, Outlook};
use rallypoint_api::StoreList;

/// Time limit for each question to a port that has just answered.
const STEP: Duration = Duration::from_secs(3);

/// A port of a server in place of another one.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
#[expect(missing_docs, reason = "`given` is what the user wrote, the other field what it should be")]
pub enum Mistaken {
    /// The admin port in place of a store.
    #[error("{given} is the admin port of a rallypoint server, and no store; {}", right(.store.as_ref(),
        "its store is", "name its store, by default port 29500"))]
    Admin { given: Endpoint, store: Option<Endpoint> },
    /// A store in place of the admin port.
    #[error("{given} is the port of a store, and not the server's admin port; {}", right(.admin.as_ref(),
        "the admin port is", "name the admin port, by default 29501"))]
    Store { given: Endpoint, admin: Option<Endpoint> },
}

fn right(endpoint: Option<&Endpoint>, known: &str, unknown: &str) -> String {
    endpoint.map_or_else(|| unknown.to_owned(), |endpoint| format!("{known} {endpoint}"))
}

/// Why further attempts are useless at a store that was never reached; `None` if they may help.
pub async fn never_a_store(error: &ConnectError) -> Option<String> {
    if error.outlook() == Outlook::Transient {
        return None;
    }
    let mistaken = admin_at(&error.endpoint).await;
    Some(mistaken.map_or_else(|| error.to_string(), |mistaken| mistaken.to_string()))
}

/// Why further attempts are useless at an admin port that has never answered; `None` if they may help.
pub async fn never_an_admin_port(admin: &AdminUrl, error: &HttpError) -> Option<String> {
    if matches!(error, HttpError::Closed(_) | HttpError::NotHttp(_))
        && let Some(mistaken) = store_at(admin.endpoint()).await
    {
        return Some(mistaken.to_string());
    }
    (error.outlook() == Outlook::Permanent).then(|| error.to_string())
}

/// Checks whether the port, expected to be a store, is the admin port of a rallypoint server.
async fn admin_at(given: &Endpoint) -> Option<Mistaken> {
    let admin = AdminUrl::at(given.clone());
    if !is_admin(&admin).await {
        return None;
    }
    let listed = http::request(&admin, "GET", "/api/v1/stores", STEP).await.ok();
    let listed = listed.and_then(|answer| serde_json::from_slice::<StoreList>(&answer.body).ok());
    let first = listed.and_then(|list| list.stores.into_iter().find(|store| store.run_id.is_none()));
    Some(Mistaken::Admin { given: given.clone(), store: first.map(|store| given.with_port(store.port)) })
}

/// Checks whether the port, expected to be the admin port, is a store.
pub async fn store_at(given: &Endpoint) -> Option<Mistaken> {
    let options = Options { step: STEP, ..Options::default() };
    Client::connect(given, &options).await.ok()?;
    let beside = AdminUrl::beside(given);
    let admin = is_admin(&beside).await.then(|| beside.endpoint().clone());
    Some(Mistaken::Store { given: given.clone(), admin })
}

/// Whether a rallypoint server answers there. It has a special error for clients that ask for a link and are
/// no relay.
async fn is_admin(admin: &AdminUrl) -> bool {
    let asked = http::request(admin, "GET", "/api/v1/link", STEP).await;
    asked.is_ok_and(|answer| !answer.is_success() && answer.code().is_some())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_right_port_is_named_as_far_as_it_is_known() {
        let at = |port| Endpoint::new("rally", port).expect("a name");
        let said = |mistaken: &Mistaken| mistaken.to_string();
        let admin = |store| said(&Mistaken::Admin { given: at(29501), store });
        assert!(admin(Some(at(29500))).ends_with("; its store is rally:29500"));
        assert!(admin(None).ends_with("by default port 29500"));
        let store = |admin| said(&Mistaken::Store { given: at(29500), admin });
        assert!(store(Some(at(29501))).ends_with("; the admin port is rally:29501"));
        assert!(store(None).ends_with("by default 29501"));
    }
}

//! Tokens of the admin port: which tokens there are, what each may do, and for which runs. No message
//! contains a token.

use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};

use sha2::{Digest, Sha256};

/// What a token may do. Each role may also do what the earlier roles may.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Role {
    /// Read.
    Viewer,
    /// Take part: join, announce, arrive, leave, be a relay.
    Member,
    /// Change what others use.
    Operator,
}

impl Role {
    const ALL: [Self; 3] = [Self::Viewer, Self::Member, Self::Operator];

    /// Its name in a token file.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Viewer => "viewer",
            Self::Member => "member",
            Self::Operator => "operator",
        }
    }
}

/// The runs for which a token is valid: a run id in which `*` stands for any text.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Runs(Arc<str>);

impl Runs {
    /// The runs whose ids match this pattern.
    pub fn new(pattern: &str) -> Self {
        Self(pattern.into())
    }

    /// The pattern, as it is in the file.
    pub fn pattern(&self) -> &str {
        &self.0
    }

    /// Whether a run is one of them.
    pub fn has(&self, run_id: &str) -> bool {
        let Some((first, rest)) = self.0.split_once('*') else { return *self.0 == *run_id };
        let Some(mut left) = run_id.strip_prefix(first) else { return false };
        // The last part must end the id. Each other part is matched at its first occurrence.
        let mut parts: Vec<&str> = rest.split('*').collect();
        let last = parts.pop().unwrap_or_default();
        for part in parts {
            let Some(at) = left.find(part) else { return false };
            left = left.get(at.saturating_add(part.len())..).unwrap_or_default();
        }
        left.ends_with(last)
    }
}

/// What the bearer of a token may do.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Grant {
    digest: [u8; 32],
    /// Its line in the file, by which people find it.
    pub line: usize,
    /// What it may do.
    pub role: Role,
    /// The runs for which it is valid. `None` means all runs.
    pub runs: Option<Runs>,
}

impl Grant {
    fn is_of(&self, digest: &[u8; 32]) -> bool {
        // The comparison takes equally long wherever the digests differ.
        self.digest.iter().zip(digest).fold(0, |differing, (a, b)| differing | (a ^ b)) == 0
    }
}

/// Why a token file cannot be used.
#[derive(Debug, thiserror::Error)]
#[error("--token-file {}: {reason}", file.display())]
pub struct BadTokenFile {
    file: PathBuf,
    reason: String,
}

fn read(file: &Path) -> Result<String, BadTokenFile> {
    std::fs::read_to_string(file)
        .map_err(|error| BadTokenFile { file: file.into(), reason: error.to_string() })
}

/// The lines that contain something, with their numbers.
fn lines(text: &str) -> impl Iterator<Item = (usize, &str)> {
    (1..).zip(text.lines().map(str::trim)).filter(|(_, line)| !line.is_empty() && !line.starts_with('#'))
}

fn grants(text: &str) -> Result<Vec<Grant>, String> {
    let mut found: Vec<Grant> = Vec::new();
    for (line, words) in lines(text) {
        let wrong = |what: &str| format!("line {line}: {what}; write TOKEN ROLE [RUN-PATTERN]");
        let mut words = words.split_whitespace();
        let token = words.next().filter(|token| token.bytes().all(|byte| byte.is_ascii_graphic()));
        let token = token.ok_or_else(|| wrong("a token is one word of printable ASCII characters"))?;
        let role = match words.next() {
            None => Role::Operator,
            // The word may be a misplaced token, so the message does not contain it.
            Some(name) => Role::ALL
                .into_iter()
                .find(|role| role.name() == name)
                .ok_or_else(|| wrong("the second word is none of viewer, member and operator"))?,
        };
        let runs = words.next().map(Runs::new);
        if words.next().is_some() {
            return Err(wrong("there are more than three words"));
        }
        let digest = Sha256::digest(token).into();
        if let Some(same) = found.iter().find(|grant| grant.digest == digest) {
            return Err(format!("line {line}: this token stands on line {} already", same.line));
        }
        found.push(Grant { digest, line, role, runs });
    }
    if found.is_empty() {
        Err("there is no token in it; write TOKEN ROLE [RUN-PATTERN]".into())
    } else {
        Ok(found)
    }
}

/// The tokens that a server knows.
#[derive(Debug)]
pub struct TokenFile {
    file: PathBuf,
    grants: Mutex<Arc<[Grant]>>,
}

impl TokenFile {
    /// Reads the file.
    pub fn open(file: &Path) -> Result<Self, BadTokenFile> {
        let grants = Self::read(file)?;
        Ok(Self { file: file.into(), grants: Mutex::new(grants) })
    }

    fn read(file: &Path) -> Result<Arc<[Grant]>, BadTokenFile> {
        let grants = grants(&read(file)?);
        grants.map(Arc::from).map_err(|reason| BadTokenFile { file: file.into(), reason })
    }

    /// Reads the file again. If it cannot be used, the old contents stay valid. Returns whether anything has
    /// changed.
    pub fn reload(&self) -> Result<bool, BadTokenFile> {
        let new = Self::read(&self.file)?;
        let mut grants = self.grants.lock().unwrap_or_else(PoisonError::into_inner);
        let is_new = *grants != new;
        *grants = new;
        Ok(is_new)
    }

    fn grants(&self) -> Arc<[Grant]> {
        Arc::clone(&self.grants.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// What the bearer of `token` may do. The time does not depend on how much of the token is right.
    pub fn grant(&self, token: &str) -> Option<Grant> {
        let digest = Sha256::digest(token).into();
        let grants = self.grants();
        grants
            .iter()
            .fold(None, |found, grant| if grant.is_of(&digest) { Some(grant) } else { found })
            .cloned()
    }

    /// Whether a grant is still valid and unchanged.
    pub fn holds(&self, grant: &Grant) -> bool {
        let grants = self.grants();
        grants
            .iter()
            .any(|now| now.is_of(&grant.digest) && (now.role, &now.runs) == (grant.role, &grant.runs))
    }
}

/// The token that a client sends.
#[derive(Clone, PartialEq, Eq)]
pub struct Token(String);

impl Token {
    /// The first token in a file, which may be the server's file.
    pub fn read(file: &Path) -> Result<Self, BadTokenFile> {
        let text = read(file)?;
        let token = lines(&text).next().and_then(|(_, line)| line.split_whitespace().next());
        let token = token.filter(|token| token.bytes().all(|byte| byte.is_ascii_graphic()));
        token.map(|token| Self(token.to_owned())).ok_or_else(|| {
            let reason = "a token is one word of printable ASCII characters".into();
            BadTokenFile { file: file.into(), reason }
        })
    }

    /// The value of the header that carries the token.
    pub fn authorization(&self) -> String {
        format!("Bearer {}", self.0)
    }
}

impl std::fmt::Debug for Token {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Token(masked)")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn runs(pattern: &str) -> Runs {
        Runs(pattern.into())
    }

    #[test]
    fn a_pattern_has_the_runs_that_it_says() {
        for (pattern, yes, no) in [
            ("train-17", "train-17", "train-170"),
            ("train-*", "train-", "train"),
            ("*-eval", "a-eval-eval", "a-eval-b"),
            ("a*b*c", "abxbc", "acb"),
            ("a*a", "aa", "a"),
            ("*", "", "\0"),
        ] {
            assert!(runs(pattern).has(yes), "{pattern} {yes}");
            assert!(pattern == "*" || !runs(pattern).has(no), "{pattern} {no}");
        }
        assert!(runs("team-*").has(runs("team-*").pattern()), "a pattern is one of its own runs");
    }

    #[test]
    fn a_file_says_what_each_token_may_do() {
        let found = grants("# ours\nboss operator\n\nmate member team-*\n  look viewer\r\n").expect("a file");
        let said: Vec<_> =
            found.iter().map(|it| (it.line, it.role, it.runs.as_ref().map(Runs::pattern))).collect();
        let wanted = [(2, Role::Operator, None), (4, Role::Member, Some("team-*")), (5, Role::Viewer, None)];
        assert_eq!(said, wanted);
        assert_eq!(grants("alone\n").expect("one word")[0].role, Role::Operator);
    }

    #[test]
    fn what_is_wrong_with_a_file_is_said_without_its_tokens() {
        for (text, wanted) in [
            ("", "no token"),
            ("a\nb secret", "line 2: the second word"),
            ("a member x secret", "more than three words"),
            ("a\na viewer", "line 2: this token stands on line 1 already"),
            ("secr\u{e9}t", "printable ASCII"),
        ] {
            let error = grants(text).expect_err(text);
            assert!(error.contains(wanted) && !error.contains("secret"), "{error}");
        }
    }

    #[test]
    fn a_token_that_is_taken_out_of_the_file_holds_no_longer() {
        let folder = tempfile::tempdir().expect("a folder");
        let file = folder.path().join("tokens");
        std::fs::write(&file, "boss\nmate member a-*\n").expect("written");
        let tokens = TokenFile::open(&file).expect("tokens");
        let mate = tokens.grant("mate").expect("it is there");
        assert!(tokens.holds(&mate) && tokens.grant("mat").is_none() && tokens.grant("").is_none());
        assert!(!tokens.reload().expect("nothing new"));
        std::fs::write(&file, "boss\n\nmate member b-*\n").expect("written");
        assert!(tokens.reload().expect("it is new") && !tokens.holds(&mate), "its runs are others");
        std::fs::write(&file, "mate owner\n").expect("written");
        assert!(tokens.reload().is_err() && tokens.grant("boss").is_some(), "what it said before holds");
        assert_eq!(Token::read(&file).expect("a token").authorization(), "Bearer mate");
    }
}

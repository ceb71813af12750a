//! Parses a script, and says where a shell cannot read it.

use brush_parser::{ParseError, Parser, ParserOptions, TokenizerError, ast};

/// The variable for a place that is to be filled in, such as `{{ name }}` or `<NAME>`.
pub(super) const PLACE: &str = "_PLACE";

/// Why a shell cannot read a script.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Mistake {
    /// Nothing closes this quote.
    Quote(char),
    /// No line ends this here-document.
    Document(String),
    /// A place to be filled in, `<NAME>`, is a redirection as it stands.
    Place(String),
    /// It is against the grammar.
    Syntax,
}

/// Why a shell cannot read a script, and the line, if that is known.
pub fn mistake(script: &str) -> Option<(Mistake, Option<usize>)> {
    let text = filled_in(whole(script), "{{", "}}");
    let error = program(&text).err()?;
    let line = |part: &str| {
        let is_it = |line: &str| line.contains(part) && !is_remark(line);
        text.lines().position(is_it).and_then(|n| n.checked_add(1))
    };
    if let Some(place) = first_place(&text).filter(|_| program(&filled_in(&text, "<", ">")).is_ok()) {
        return Some((Mistake::Place(place.to_owned()), line(place)));
    }
    Some(match error {
        ParseError::ParsingNear(at) => (Mistake::Syntax, Some(at.line)),
        ParseError::Tokenizing { inner: TokenizerError::UnterminatedHereDocuments(tag, _), .. } => {
            let line = line(&format!("<<{tag}")).or_else(|| line(&tag));
            (Mistake::Document(tag), line)
        }
        error => match quote(&error) {
            Some((quote, line)) => (Mistake::Quote(quote), Some(line)),
            None => (Mistake::Syntax, None),
        },
    })
}

fn quote(error: &ParseError) -> Option<(char, usize)> {
    let ParseError::Tokenizing { inner, .. } = error else { return None };
    match inner {
        TokenizerError::UnterminatedSingleQuote(at) => Some(('\'', at.line)),
        TokenizerError::UnterminatedDoubleQuote(at) => Some(('"', at.line)),
        _ => None,
    }
}

/// Parses a script as it is meant: a place that is to be filled in is a variable that nobody knows, what
/// nothing closes is closed at the end, and a command goes on behind a backslash whatever follows that.
pub(super) fn parsed(text: &str) -> Result<ast::Program, ParseError> {
    let text = filled_in(&joined(whole(text)), "{{", "}}");
    let error = match program(&text) {
        Err(error) => error,
        read => return read,
    };
    let closed = quote(&error).and_then(|(quote, _)| program(&format!("{text}{quote}")).ok());
    let meant = closed.or_else(|| program(&filled_in(&text, "<", ">")).ok());
    meant.ok_or(error)
}

/// A line that goes on behind the end does not matter to a shell.
fn whole(text: &str) -> &str {
    text.trim_end().trim_end_matches('\\')
}

/// A script whose commands go on where a blank or a remark stands behind a backslash, or remarks and empty
/// lines below it, before a flag.
fn joined(text: &str) -> String {
    let is_nothing = |line: &&str| line.trim().is_empty() || is_remark(line);
    let mut made = String::new();
    let mut lines = text.split_inclusive('\n').peekable();
    while let Some(line) = lines.next() {
        let behind = line.rsplit_once('\\').filter(|(before, _)| before.ends_with([' ', '\t']));
        let Some((before, _)) = behind.filter(|(_, behind)| is_nothing(behind) && !is_remark(line)) else {
            made.push_str(line);
            continue;
        };
        let between = lines.clone().take_while(is_nothing).count();
        let goes_on = lines.clone().nth(between).is_some_and(|next| next.trim_start().starts_with("--"));
        if goes_on {
            made.extend([before, "\\\n"]);
            lines.by_ref().take(between).for_each(drop);
        } else {
            made.push_str(line);
        }
    }
    made
}

fn program(text: &str) -> Result<ast::Program, ParseError> {
    Parser::new(text.as_bytes(), &ParserOptions::default()).parse_program()
}

/// Whether what stands between two marks is the name of a place.
fn is_place(name: &str) -> bool {
    let is_word = |c: char| c.is_alphanumeric() || matches!(c, '_' | '-' | ' ' | '.' | '/');
    !name.is_empty() && name.trim() == name && name.chars().all(is_word)
}

fn is_remark(line: &str) -> bool {
    line.trim_start().starts_with('#')
}

fn first_place(text: &str) -> Option<&str> {
    let code = text.lines().filter(|line| !is_remark(line));
    let mut pieces = code.flat_map(|line| line.split('<').skip(1));
    pieces.find_map(|piece| piece.split_once('>').map(|(name, _)| name).filter(|name| is_place(name)))
}

fn filled_in(text: &str, begin: &str, end: &str) -> String {
    let is_place = |name: &str| begin == "{{" || is_place(name);
    let mut pieces = text.split(begin);
    let mut made = pieces.next().unwrap_or_default().to_owned();
    for piece in pieces {
        match piece.split_once(end).filter(|(name, _)| is_place(name)) {
            Some((_, after)) => {
                // `<<<NAME>>>` is one, too.
                made.truncate(made.trim_end_matches(begin).len());
                made.extend(["${", PLACE, "}", after.trim_start_matches(end)]);
            }
            None => made.extend([begin, piece]),
        }
    }
    made
}

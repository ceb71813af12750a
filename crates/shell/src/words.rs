//! Turns words into texts: quotes, parameters, substitutions.

use brush_parser::ast::{
    ArithmeticExpr, ArithmeticTarget, BinaryOperator, UnaryAssignmentOperator, UnaryOperator,
};
use brush_parser::word::{Parameter, ParameterExpr, SpecialParameter, WordPiece, WordPieceWithSource};
use brush_parser::{ParserOptions, arithmetic, word};

use super::run::Shell;
use super::{Part, Source, Text};

/// The fields into which a word splits, each a text.
struct Fields {
    done: Vec<Text>,
    open: Option<Text>,
}

impl Fields {
    fn add(&mut self, text: Text) {
        self.open.get_or_insert_default().extend(text);
    }

    /// Adds a text that the shell splits at white space.
    fn add_split(&mut self, text: &Text) {
        for part in text.parts() {
            let Part::Known(known) = part else {
                self.add(Text::of(part.clone()));
                continue;
            };
            let mut pieces = known.split(char::is_whitespace);
            if let Some(first) = pieces.next().filter(|piece| !piece.is_empty()) {
                self.add(Text::known(first));
            }
            for piece in pieces {
                self.done.extend(self.open.take());
                if !piece.is_empty() {
                    self.open = Some(Text::known(piece));
                }
            }
        }
    }

    fn next(&mut self) {
        self.done.extend(self.open.take());
    }
}

impl Shell<'_> {
    /// The fields of a word.
    pub(super) fn fields(&mut self, written: &str) -> Vec<Text> {
        let in_braces = written.strip_prefix('{').and_then(|rest| rest.strip_suffix('}'));
        let numbers = in_braces.and_then(|range| range.split_once(".."));
        if let Some(numbers) = numbers.and_then(|(first, last)| counted(first, last)) {
            return numbers.split(' ');
        }
        let Ok(pieces) = word::parse(written, &ParserOptions::default()) else {
            return vec![Text::unknown(written, false)];
        };
        let mut fields = Fields { done: Vec::new(), open: None };
        self.pieces(written, &pieces, false, &mut fields);
        fields.next();
        fields.done
    }

    /// The text of a word that is not split, such as the right side of an assignment.
    pub(super) fn text(&mut self, written: &str) -> Text {
        let Ok(pieces) = word::parse(written, &ParserOptions::default()) else {
            return Text::unknown(written, false);
        };
        let mut fields = Fields { done: Vec::new(), open: None };
        self.pieces(written, &pieces, true, &mut fields);
        fields.next();
        let mut text = Text::default();
        for (n, field) in fields.done.into_iter().enumerate() {
            if n > 0 {
                text.push(Part::Known(" ".into()));
            }
            text.extend(field);
        }
        text
    }

    fn pieces(&mut self, written: &str, pieces: &[WordPieceWithSource], quoted: bool, fields: &mut Fields) {
        for piece in pieces {
            let source = written.get(piece.start_index..piece.end_index).unwrap_or(written);
            match &piece.piece {
                WordPiece::Text(text)
                | WordPiece::SingleQuotedText(text)
                | WordPiece::AnsiCQuotedText(text) => {
                    fields.add(Text::known(text.as_str()));
                    fields.open.get_or_insert_default();
                }
                WordPiece::EscapeSequence(text) => {
                    let text = text.strip_prefix('\\').unwrap_or(text);
                    fields.add(Text::known(if text == "\n" { "" } else { text }));
                }
                WordPiece::DoubleQuotedSequence(inner) | WordPiece::GettextDoubleQuotedSequence(inner) => {
                    fields.open.get_or_insert_default();
                    self.pieces(written, inner, true, fields);
                }
                WordPiece::TildeExpansion(_) => fields.add(Text::unknown(source, false)),
                WordPiece::ParameterExpansion(parameter) => self.parameter(parameter, source, quoted, fields),
                WordPiece::CommandSubstitution(script) | WordPiece::BackquotedCommandSubstitution(script) => {
                    let text = self.substitution(script, source);
                    if quoted { fields.add(text) } else { fields.add_split(&text) }
                }
                WordPiece::ArithmeticExpression(expression) => {
                    fields.add(self.arithmetic(&expression.value, source));
                    self.count(&expression.value);
                }
            }
        }
    }

    fn parameter(&mut self, expr: &ParameterExpr, source: &str, quoted: bool, fields: &mut Fields) {
        if let ParameterExpr::Parameter {
            parameter: Parameter::NamedWithAllIndices { name, concatenate },
            ..
        } = expr
            && let Some(items) = self.variables.get(name)
        {
            for (n, item) in items.clone().into_iter().enumerate() {
                match n {
                    0 => {}
                    // "${NAME[*]}" is one word.
                    _ if quoted && *concatenate => fields.add(Text::known(" ")),
                    _ => fields.next(),
                }
                if quoted { fields.add(item) } else { fields.add_split(&item) }
            }
            return;
        }
        let text = self.expansion(expr, source);
        if quoted { fields.add(text) } else { fields.add_split(&text) }
    }

    fn expansion(&mut self, expr: &ParameterExpr, source: &str) -> Text {
        let fallback = |text: &Text| Text::unknown(source, text.varies());
        // What nothing sets stays so.
        let changed = |text: Text| if text.unset().next().is_some() { text } else { fallback(&text) };
        match expr {
            ParameterExpr::Parameter { parameter, indirect: false } => self.value(parameter, source),
            ParameterExpr::UseDefaultValues { parameter, default_value, indirect: false, .. } => {
                let value = self.value(parameter, source);
                let default = self.text(default_value.as_deref().unwrap_or_default());
                let is_drawn = default.parts().contains(&Part::Of(Source::Drawn));
                match value.is_empty() {
                    true => default,
                    // If nothing gives the value, each pod makes its own: what is written shows that.
                    false if is_drawn && value.is_unknown() => Text::unknown(source, false),
                    false => value,
                }
            }
            ParameterExpr::AssignDefaultValues { parameter, default_value, indirect: false, .. } => {
                let value = self.value(parameter, source);
                if !value.is_empty() {
                    return value;
                }
                let value = self.text(default_value.as_deref().unwrap_or_default());
                if let Parameter::Named(name) = parameter {
                    self.set(name, value.clone());
                }
                value
            }
            ParameterExpr::IndicateErrorIfNullOrUnset { parameter, indirect: false, .. } => {
                self.value(parameter, source)
            }
            ParameterExpr::UseAlternativeValue { parameter, alternative_value, indirect: false, .. } => {
                let value = self.value(parameter, source);
                if value.is_unknown() {
                    fallback(&value)
                } else if value.is_empty() {
                    Text::default()
                } else {
                    self.text(alternative_value.as_deref().unwrap_or_default())
                }
            }
            ParameterExpr::RemoveLargestPrefixPattern { parameter, pattern, indirect: false } => {
                let value = self.value(parameter, source);
                match value.source().filter(|_| pattern.as_deref() == Some("*-")) {
                    Some(Source::HostName) => Text::of(Part::Of(Source::EndOfHostName)),
                    Some(Source::PodName) => Text::of(Part::Of(Source::EndOfPodName)),
                    _ => changed(value),
                }
            }
            ParameterExpr::RemoveLargestSuffixPattern { parameter, pattern, indirect: false }
            | ParameterExpr::RemoveSmallestSuffixPattern { parameter, pattern, indirect: false } => {
                let value = self.value(parameter, source);
                let mark = pattern.as_deref().and_then(|pattern| pattern.strip_suffix('*'));
                match (value.source(), mark.unwrap_or_default(), value.literal()) {
                    // The first label of a host name is the host name.
                    (Some(Source::HostName), ".", _) => value,
                    // All pods share the part before the end of the name.
                    (Some(Source::HostName | Source::PodName), ..) => Text::unknown(source, false),
                    (_, "." | ":" | "-", Some(text)) => {
                        Text::known(text.split(mark.unwrap_or_default()).next().unwrap_or_default())
                    }
                    _ => changed(value),
                }
            }
            ParameterExpr::ReplaceSubstring { parameter, .. }
            | ParameterExpr::Substring { parameter, .. }
            | ParameterExpr::RemoveSmallestPrefixPattern { parameter, .. }
            | ParameterExpr::UppercasePattern { parameter, .. }
            | ParameterExpr::LowercasePattern { parameter, .. } => changed(self.value(parameter, source)),
            _ => Text::unknown(source, false),
        }
    }

    fn value(&mut self, parameter: &Parameter, source: &str) -> Text {
        match parameter {
            Parameter::Named(name) => self.variable(name),
            Parameter::Positional(0) | Parameter::Special(SpecialParameter::ShellName) => {
                Text::unknown(source, false)
            }
            Parameter::Positional(n) => match self.positional.get((*n as usize).saturating_sub(1)) {
                Some(text) => text.clone(),
                None if self.are_all => Text::of(Part::Unset(n.to_string())),
                None => Text::unknown(source, false),
            },
            Parameter::Special(SpecialParameter::ProcessId) => Text::of(Part::Of(Source::Drawn)),
            Parameter::NamedWithIndex { name, index } => match self.variables.get(name) {
                Some(items) => match index.trim().parse::<usize>().ok().and_then(|at| items.get(at)) {
                    Some(item) if !item.is_unknown() => item.clone(),
                    item => Text::unknown(source, item.is_some_and(Text::varies)),
                },
                None => self.variable(name),
            },
            _ => Text::unknown(source, false),
        }
    }

    /// A variable's value.
    pub(super) fn variable(&self, name: &str) -> Text {
        match self.variables.get(name) {
            Some(items) => items.first().cloned().unwrap_or_default(),
            None if matches!(
                name,
                "RANDOM" | "SRANDOM" | "EPOCHSECONDS" | "EPOCHREALTIME" | "SECONDS" | "BASHPID"
            ) =>
            {
                Text::of(Part::Of(Source::Drawn))
            }
            None if name == super::parse::PLACE => Text::unknown("{{…}}", false),
            None if self.open || is_of_every_shell(name) => Text::unknown(format!("${name}"), false),
            None => Text::of(Part::Unset(name.to_owned())),
        }
    }

    /// The text of `$(…)`, if it can be known.
    fn substitution(&mut self, script: &str, source: &str) -> Text {
        let unknown = || Text::unknown(source, false);
        let reading = self.inside(script);
        let Some(reading) = reading else { return unknown() };
        let Some(first) = reading.commands.first() else { return unknown() };
        let words: Vec<String> = first.words.iter().map(ToString::to_string).collect();
        let words: Vec<&str> = words.iter().map(String::as_str).collect();
        let input = match words.as_slice() {
            ["hostname" | "uname", "-i" | "-I" | "--ip-address" | "--all-ip-addresses"] => {
                Text::of(Part::Of(Source::PodIp))
            }
            ["hostname", ..] | ["uname", "-n"] | ["cat", "/etc/hostname"] => {
                Text::of(Part::Of(Source::HostName))
            }
            ["date" | "uuidgen" | "mktemp" | "shuf", ..]
            | ["openssl", "rand", ..]
            | ["cat", "/proc/sys/kernel/random/uuid"] => Text::of(Part::Of(Source::Drawn)),
            ["seq", first, last] => counted(first, last).unwrap_or_else(unknown),
            ["seq", last] => counted("1", last).unwrap_or_else(unknown),
            // Values that all pods share on one day are not worth guessing.
            ["echo" | "printf", .., _] => first.words.last().cloned().unwrap_or_default(),
            _ => {
                let mut words = reading.commands.iter().flat_map(|command| &command.words);
                return Text::unknown(source, words.any(Text::varies));
            }
        };
        if reading.commands.len() == 1 {
            return input;
        }
        let takes_end = reading.commands.iter().skip(1).any(|command| {
            let filter = command.words.iter().map(ToString::to_string).collect::<Vec<_>>().join(" ");
            let ends = ["$NF", ".*-//", "[0-9]*$", "[0-9]+$"];
            filter == "rev" || ends.iter().any(|end| filter.contains(end))
        });
        match input.source() {
            Some(Source::HostName) if takes_end => Text::of(Part::Of(Source::EndOfHostName)),
            Some(Source::PodName) if takes_end => Text::of(Part::Of(Source::EndOfPodName)),
            Some(Source::HostName | Source::PodName) => Text::unknown(source, false),
            _ if input.unset().next().is_some() => input,
            _ => Text::unknown(source, input.varies()),
        }
    }

    /// The text of `$((…))`: a number, if all of it is known.
    pub(super) fn arithmetic(&mut self, expression: &str, source: &str) -> Text {
        // What a command prints, or its kind, comes first.
        if expression.contains("$(") || expression.contains('`') {
            let text = self.text(expression.trim());
            return match text.literal() {
                Some(known) if known != expression => self.arithmetic(known, source),
                _ if text.source().is_some() => text,
                _ => Text::unknown(source, text.varies()),
            };
        }
        // `$X` and `${X}` in it are names like any other.
        let plain = expression.replace("${", "").replace(['$', '}'], "");
        let word = brush_parser::ast::UnexpandedArithmeticExpr { value: plain };
        let Ok(parsed) = arithmetic::parse(&word.value) else { return Text::unknown(source, false) };
        let mut missing = Text::default();
        match self.number(&parsed, &mut missing) {
            Some(number) => Text::known(number.to_string()),
            None if missing.unset().next().is_some() && !missing.is_unknown() => missing,
            None => {
                // A number changes no branch.
                let is_by_pod = self.is_by_pod;
                let here = self.number_here(&parsed).filter(|_| missing.varies());
                self.is_by_pod = is_by_pod;
                let written = source.to_owned();
                here.map_or_else(
                    || Text::unknown(source, missing.varies()),
                    |here| Text::of(Part::Computed { written, here: here.to_string() }),
                )
            }
        }
    }

    pub(super) fn number(&mut self, expression: &ArithmeticExpr, missing: &mut Text) -> Option<i64> {
        match expression {
            ArithmeticExpr::Literal(number) => Some(*number),
            ArithmeticExpr::Reference(ArithmeticTarget::Variable(name)) => {
                let text = self.variable(name);
                let known = if self.deciding { self.here(&text) } else { text.literal().map(str::to_owned) };
                let number = known.and_then(|text| text.trim().parse().ok());
                if number.is_none() {
                    missing.extend(text);
                }
                number
            }
            ArithmeticExpr::UnaryOp(UnaryOperator::UnaryMinus, inner) => {
                self.number(inner, missing)?.checked_neg()
            }
            ArithmeticExpr::UnaryOp(UnaryOperator::UnaryPlus, inner) => self.number(inner, missing),
            // The variable is changed by `count`.
            ArithmeticExpr::UnaryAssignment(operator, target) => {
                let before = self.number(&ArithmeticExpr::Reference(target.clone()), missing)?;
                match operator {
                    UnaryAssignmentOperator::PrefixIncrement => before.checked_add(1),
                    UnaryAssignmentOperator::PrefixDecrement => before.checked_sub(1),
                    _ => Some(before),
                }
            }
            ArithmeticExpr::BinaryOp(operator, left, right) => {
                let (left, right) = (self.number(left, missing), self.number(right, missing));
                let (left, right) = (left?, right?);
                match operator {
                    BinaryOperator::Add => left.checked_add(right),
                    BinaryOperator::Subtract => left.checked_sub(right),
                    BinaryOperator::Multiply => left.checked_mul(right),
                    BinaryOperator::Divide => left.checked_div(right),
                    BinaryOperator::Modulo => left.checked_rem(right),
                    BinaryOperator::Equals => Some(i64::from(left == right)),
                    BinaryOperator::NotEquals => Some(i64::from(left != right)),
                    BinaryOperator::LessThan => Some(i64::from(left < right)),
                    BinaryOperator::LessThanOrEqualTo => Some(i64::from(left <= right)),
                    BinaryOperator::GreaterThan => Some(i64::from(left > right)),
                    BinaryOperator::GreaterThanOrEqualTo => Some(i64::from(left >= right)),
                    _ => None,
                }
            }
            _ => None,
        }
    }
}

/// The numbers from one to another, with blanks between them, as `seq` prints them, if they are not too many.
fn counted(first: &str, last: &str) -> Option<Text> {
    const MOST: u16 = 1024;
    let (first, last): (u16, u16) = (first.parse().ok()?, last.parse().ok()?);
    if last.saturating_sub(first) >= MOST {
        return None;
    }
    Some(Text::known((first..=last).map(|number| number.to_string()).collect::<Vec<_>>().join(" ")))
}

/// Whether a shell or an image sets this variable, although no manifest does.
fn is_of_every_shell(name: &str) -> bool {
    #[rustfmt::skip]
    const NAMES: [&str; 16] = [
        "PATH", "HOME", "PWD", "OLDPWD", "USER", "SHELL", "IFS", "UID", "EUID", "PPID", "LINENO", "OPTARG",
        "OPTIND", "LD_LIBRARY_PATH", "PYTHONPATH", "TMPDIR",
    ];
    const BEGINNINGS: [&str; 6] = ["BASH", "KUBERNETES_", "NVIDIA_", "CUDA_", "NCCL_", "LC_"];
    NAMES.contains(&name) || BEGINNINGS.iter().any(|beginning| name.starts_with(beginning))
}

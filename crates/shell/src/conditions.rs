//! Decides the conditions of a script, as far as this is possible without running it.

use brush_parser::arithmetic;
use brush_parser::ast::{self, AndOr, CompoundCommand, CompoundList, ExtendedTestExpr};

use super::choices::{both, either, fits};
use super::run::Shell;
use super::{Part, Source, Text};

impl Shell<'_> {
    /// Whether a list of commands succeeds.
    pub(super) fn holds(&mut self, list: &CompoundList) -> Option<bool> {
        let and_or = &list.0.last()?.0;
        let mut held = self.succeeds(&and_or.first);
        for next in &and_or.additional {
            held = match next {
                AndOr::And(pipeline) => both(held, self.succeeds(pipeline)),
                AndOr::Or(pipeline) => either(held, self.succeeds(pipeline)),
            };
        }
        held
    }

    pub(super) fn succeeds(&mut self, pipeline: &ast::Pipeline) -> Option<bool> {
        let [command] = pipeline.seq.as_slice() else { return None };
        let held = match command {
            ast::Command::ExtendedTest(test, _) => self.extended(&test.expr),
            ast::Command::Compound(CompoundCommand::Arithmetic(test), _) => {
                let parsed = arithmetic::parse(&test.expr.value.replace("${", "").replace(['$', '}'], ""));
                self.number_here(&parsed.ok()?).map(|number| number != 0)
            }
            ast::Command::Compound(CompoundCommand::BraceGroup(group), _) => self.holds(&group.list),
            ast::Command::Simple(simple) => self.simple_test(simple),
            _ => None,
        };
        held.map(|held| held != pipeline.bang)
    }

    fn simple_test(&mut self, simple: &ast::SimpleCommand) -> Option<bool> {
        let mut words = self.fields(&simple.word_or_name.as_ref()?.value);
        for item in simple.suffix.iter().flat_map(|suffix| &suffix.0) {
            match item {
                ast::CommandPrefixOrSuffixItem::Word(word)
                | ast::CommandPrefixOrSuffixItem::AssignmentWord(_, word) => {
                    words.extend(self.fields(&word.value));
                }
                _ => return None,
            }
        }
        let words: Vec<Option<String>> = words.iter().map(|word| self.here(word)).collect();
        let plain: Vec<Option<&str>> = words.iter().map(Option::as_deref).collect();
        match plain.as_slice() {
            [Some("true" | ":")] => Some(true),
            [Some("false")] => Some(false),
            [Some("["), inner @ .., Some("]")] | [Some("test"), inner @ ..] => test(inner),
            _ => None,
        }
    }

    fn extended(&mut self, expr: &ExtendedTestExpr) -> Option<bool> {
        match expr {
            ExtendedTestExpr::And(a, b) => both(self.extended(a), self.extended(b)),
            ExtendedTestExpr::Or(a, b) => either(self.extended(a), self.extended(b)),
            ExtendedTestExpr::Not(inner) => self.extended(inner).map(|held| !held),
            ExtendedTestExpr::Parenthesized(inner) => self.extended(inner),
            ExtendedTestExpr::UnaryTest(predicate, word) => {
                let text = self.text(&word.value);
                test(&[Some(&predicate.to_string()), Some(&self.here(&text)?)])
            }
            ExtendedTestExpr::BinaryTest(predicate, left, right) => {
                let (left, right) = (self.text(&left.value), self.text(&right.value));
                let (left, right) = (self.here(&left)?, self.here(&right)?);
                test(&[Some(&left), Some(&predicate.to_string()), Some(&right)])
            }
        }
    }

    /// A number as it is in the pod for which the script is read.
    pub(super) fn number_here(&mut self, expression: &ast::ArithmeticExpr) -> Option<i64> {
        let deciding = std::mem::replace(&mut self.deciding, true);
        let number = self.number(expression, &mut Text::default());
        self.deciding = deciding;
        number
    }

    /// A text as it is in the pod for which the script is read.
    pub(super) fn here(&mut self, text: &Text) -> Option<String> {
        let mut made = String::new();
        for part in text.parts() {
            match part {
                Part::Known(known) => made.push_str(known),
                Part::Unset(_) => {}
                Part::Computed { here, .. } => {
                    self.is_by_pod = true;
                    made.push_str(here);
                }
                Part::Of(Source::FirstNode) => made.push('0'),
                Part::Of(source) => {
                    let here = self.here.iter().find(|(known, _)| known == source);
                    self.is_by_pod |= here.is_some();
                    self.varies |= here.is_none() && source.varies();
                    made.push_str(&here?.1);
                }
                Part::Unknown { varies, .. } => {
                    self.varies |= varies;
                    return None;
                }
            }
        }
        Some(made)
    }
}

/// What `[ … ]` says of its words.
fn test(words: &[Option<&str>]) -> Option<bool> {
    for (mark, join) in [("-o", either as fn(_, _) -> _), ("-a", both)] {
        let is_between = |at: &usize| *at > 0 && words.get(at.saturating_add(1)).is_some();
        let at = words.iter().position(|word| *word == Some(mark)).filter(is_between);
        if let Some((left, [_, right @ ..])) = at.and_then(|at| words.split_at_checked(at)) {
            return join(test(left), test(right));
        }
    }
    match words {
        [] => Some(false),
        [Some("!"), rest @ ..] => test(rest).map(|held| !held),
        [Some("-z"), word] => Some((*word)?.is_empty()),
        [word] | [Some("-n"), word] => Some(!(*word)?.is_empty()),
        [left, Some("=" | "=="), right] => fits((*left)?, (*right)?),
        [left, Some("!="), right] => fits((*left)?, (*right)?).map(|fits| !fits),
        [left, Some(name), right] => compare((*left)?, name, (*right)?),
        _ => None,
    }
}

fn compare(left: &str, name: &str, right: &str) -> Option<bool> {
    let (left, right): (i64, i64) = (left.trim().parse().ok()?, right.trim().parse().ok()?);
    Some(match name {
        "-eq" => left == right,
        "-ne" => left != right,
        "-lt" => left < right,
        "-le" => left <= right,
        "-gt" => left > right,
        "-ge" => left >= right,
        _ => return None,
    })
}

//! Runs the commands of a script in order, and tracks the variables.

use std::collections::{BTreeSet, HashMap};
use std::rc::Rc;

use brush_parser::ast::{
    self, AndOr, AssignmentName, AssignmentValue, CommandPrefixOrSuffixItem as Item, CompoundCommand,
    CompoundList, IoFileRedirectTarget, IoRedirect, SeparatorOperator,
};

use super::choices::{self, Choices, either};
use super::parse::parsed;
use super::{
    Command, Part, Reading, Source, Surroundings, Text, Variables, basename, called, is_script, is_shell,
};

/// Depth limit for scripts that call scripts and functions.
const DEPTH: usize = 8;

/// The turns of a loop that are read one by one.
const TURNS: usize = 64;
/// The turns of all loops of a script together: loops in loops multiply.
const MOST_TURNS: usize = 128;

/// Reads a script.
pub fn read(script: &str, positional: &[Text], surroundings: Surroundings<'_>) -> Reading {
    let mut shell = Shell::new(surroundings, positional);
    shell.script(script, "the script");
    shell.done()
}

/// Reads what a command runs that no shell starts: itself, or the shell or the script in it. Whatever is in
/// front of a shell or a script starts it, and gives it no `private` variable.
pub fn started(
    words: &[Text],
    conditional: bool,
    private: &[String],
    surroundings: Surroundings<'_>,
) -> Reading {
    let mut shell = Shell::new(surroundings, &[]);
    shell.private = Rc::new(private.iter().cloned().collect());
    shell.conditional = usize::from(conditional);
    let at = words.iter().position(|word| word.literal().is_some_and(is_shell));
    let at = at.or_else(|| words.iter().position(is_path_of_script)).unwrap_or_default();
    if let Some(words) = words.get(at..).filter(|words| !words.is_empty()) {
        shell.execute(words.to_vec());
    }
    shell.done()
}

pub(super) struct Shell<'a> {
    pub(super) variables: Rc<Variables>,
    /// The variables that no other program gets.
    private: Rc<BTreeSet<String>>,
    /// Whether each variable is exported: `set -a`.
    exports: bool,
    pub(super) open: bool,
    pub(super) positional: Vec<Text>,
    /// Whether there are no other positional parameters than these.
    pub(super) are_all: bool,
    functions: HashMap<String, CompoundCommand>,
    /// Files that the script itself writes.
    written: HashMap<String, String>,
    file: &'a dyn Fn(&str) -> Option<String>,
    pub(super) here: &'a [(Source, String)],
    choices: Choices,
    /// Whether an unknown value in the condition differs between pods.
    pub(super) varies: bool,
    /// Whether a condition was decided by the values in the pod.
    pub(super) is_by_pod: bool,
    /// Whether an expression is a condition.
    pub(super) deciding: bool,
    /// Whether `exit` was reached.
    ended: bool,
    depth: usize,
    /// The conditions and loops around.
    conditional: usize,
    piped: bool,
    /// Whether the script looks at the exit codes in its pipes.
    pipefail: bool,
    /// The loops among them.
    loops: usize,
    /// The parts of the script in the background that are being read.
    background: usize,
    /// Whether something still runs in the background.
    has_others: bool,
    moment: usize,
    /// The turns of loops that were read.
    turns: usize,
    reading: Reading,
}

impl<'a> Shell<'a> {
    fn new(surroundings: Surroundings<'a>, positional: &[Text]) -> Self {
        Self {
            variables: Rc::new(surroundings.variables),
            private: Rc::default(),
            exports: false,
            open: surroundings.open,
            positional: positional.to_vec(),
            are_all: false,
            functions: HashMap::new(),
            written: HashMap::new(),
            file: surroundings.file,
            here: surroundings.here,
            choices: Choices::new(surroundings.choice),
            varies: false,
            is_by_pod: false,
            deciding: false,
            ended: false,
            depth: 0,
            conditional: 0,
            piped: false,
            pipefail: false,
            loops: 0,
            background: 0,
            has_others: false,
            moment: 0,
            turns: 0,
            reading: Reading::default(),
        }
    }
}

impl Shell<'_> {
    fn done(self) -> Reading {
        let (ways, is_by_pod, written) = (self.choices.ways, self.is_by_pod, self.written);
        Reading { written, ways, is_by_pod, ..self.reading }
    }

    pub(super) fn set(&mut self, name: &str, value: Text) {
        Rc::make_mut(&mut self.variables).insert(name.to_owned(), vec![value]);
    }

    fn script(&mut self, text: &str, what: &str) {
        if self.depth >= DEPTH {
            self.reading.unread.push(format!("{what}: scripts call each other too deeply"));
            return;
        }
        self.pipefail |= text.contains("PIPESTATUS");
        match parsed(text) {
            Ok(program) => {
                self.depth = self.depth.saturating_add(1);
                for list in &program.complete_commands {
                    self.list(list);
                }
                self.depth = self.depth.saturating_sub(1);
            }
            Err(error) => {
                let words = error.to_string();
                let first = words.lines().next().unwrap_or_default();
                self.reading.unread.push(format!("{what} is no shell that can be read ({first})"));
                self.open = true;
            }
        }
    }

    /// Reads the script of a command substitution. It changes no variable here.
    pub(super) fn inside(&mut self, script: &str) -> Option<Reading> {
        if self.depth >= DEPTH {
            return None;
        }
        let program = parsed(script).ok()?;
        let variables = (*self.variables).clone();
        let surroundings =
            Surroundings { variables, open: self.open, file: self.file, here: self.here, choice: 0 };
        let (depth, turns) = (self.depth.saturating_add(1), self.turns);
        let mut inner = Shell { depth, turns, ..Shell::new(surroundings, &self.positional) };
        for list in &program.complete_commands {
            inner.list(list);
        }
        self.turns = inner.turns;
        Some(inner.reading)
    }

    fn list(&mut self, list: &CompoundList) {
        for item in &list.0 {
            if self.ended {
                return;
            }
            let and_or = &item.0;
            let is_beside = usize::from(matches!(item.1, SeparatorOperator::Async));
            self.background = self.background.saturating_add(is_beside);
            self.pipeline(&and_or.first);
            let mut behind_test = is_test(&and_or.first);
            let mut held = if behind_test { self.succeeds(&and_or.first) } else { None };
            for next in &and_or.additional {
                let (pipeline, or) = match next {
                    AndOr::And(pipeline) => (pipeline, false),
                    AndOr::Or(pipeline) => (pipeline, true),
                };
                match held {
                    Some(held) if held == or => continue,
                    None if or || behind_test => self.maybe(|shell| shell.pipeline(pipeline)),
                    _ => self.pipeline(pipeline),
                }
                behind_test |= is_test(pipeline);
                held = held.and_then(|_| self.succeeds(pipeline));
            }
            self.background = self.background.saturating_sub(is_beside);
        }
    }

    fn pipeline(&mut self, pipeline: &ast::Pipeline) {
        let before = self.piped;
        for (n, command) in (1..).zip(&pipeline.seq) {
            self.piped = before || n < pipeline.seq.len();
            self.command(command);
        }
        self.piped = before;
    }

    fn command(&mut self, command: &ast::Command) {
        match command {
            ast::Command::Simple(simple) => self.simple(simple),
            ast::Command::Compound(compound, _) => self.compound(compound),
            ast::Command::Function(function) => {
                self.functions.insert(function.fname.value.clone(), function.body.0.clone());
            }
            ast::Command::ExtendedTest(..) => {}
        }
    }

    fn compound(&mut self, compound: &CompoundCommand) {
        match compound {
            CompoundCommand::BraceGroup(group) => self.list(&group.list),
            CompoundCommand::Subshell(subshell) => {
                let before = (Rc::clone(&self.variables), Rc::clone(&self.private), self.ended);
                self.list(&subshell.list);
                (self.variables, self.private, self.ended) = before;
            }
            CompoundCommand::ForClause(clause) => {
                let written = clause.values.iter().flatten();
                let items: Vec<Text> = match clause.values {
                    Some(_) => written.flat_map(|word| self.fields(&word.value)).collect(),
                    None => self.positional.clone(),
                };
                self.turns(&clause.variable_name, &items, &clause.body.list);
            }
            CompoundCommand::ArithmeticForClause(clause) => {
                let (name, items) = self.counted(clause).unwrap_or_default();
                self.turns(&name, &items, &clause.body.list);
            }
            CompoundCommand::WhileClause(clause) | CompoundCommand::UntilClause(clause) => {
                let conditional = self.conditional;
                self.list(&clause.0);
                self.repeat(|shell| shell.list(&clause.1.list));
                self.conditional = conditional;
            }
            CompoundCommand::IfClause(clause) => self.branches(clause),
            CompoundCommand::CaseClause(clause) => self.cases(clause),
            CompoundCommand::Arithmetic(command) => self.count(&command.expr.value),
            CompoundCommand::Coprocess(coprocess) => self.command(&coprocess.body),
        }
    }

    /// Runs the body of a loop with each item, if these are known. Behind a `break` it may not run.
    fn turns(&mut self, name: &str, items: &[Text], body: &CompoundList) {
        let conditional = self.conditional;
        let are_too_many = self.turns.saturating_add(items.len().min(TURNS)) > MOST_TURNS;
        if are_too_many || items.is_empty() || items.iter().any(|item| item.literal().is_none()) {
            let item = Text::unknown(format!("${name}"), false);
            return self.repeat(|shell| {
                shell.set(name, item);
                shell.list(body);
                shell.conditional = conditional.saturating_add(1);
            });
        }
        for item in items.iter().take(TURNS) {
            self.turns = self.turns.saturating_add(1);
            let before = Rc::clone(&self.variables);
            let may_run = self.conditional > conditional;
            self.set(name, item.clone());
            self.list(body);
            if may_run {
                self.join(&before);
            }
        }
        self.conditional = conditional;
    }

    /// What `((…))`, `$((…))` and `let` make of variables.
    pub(super) fn count(&mut self, expression: &str) {
        let plain = expression.replace(' ', "");
        for part in plain.split(',') {
            let step = |sign: &str| part.strip_suffix(sign).or_else(|| part.strip_prefix(sign));
            let (name, value) = match (step("++"), step("--"), part.split_once('=')) {
                (Some(name), ..) => (name, format!("{name}+1")),
                (_, Some(name), _) => (name, format!("{name}-1")),
                (.., Some((left, right))) if !right.starts_with('=') => {
                    let name = left.trim_end_matches(['+', '-', '*', '/', '%']);
                    let sign = &left[name.len()..];
                    (name, if sign.is_empty() { right.to_owned() } else { format!("{left}({right})") })
                }
                _ => continue,
            };
            let is_name = !name.is_empty()
                && name.chars().all(|c| c.is_ascii_alphanumeric() || c == '_')
                && !name.starts_with(|c: char| c.is_ascii_digit());
            if is_name {
                let value = self.arithmetic(&value, &format!("${name}"));
                self.set(name, value);
            }
        }
    }

    /// The variable and the numbers of `for ((N = first; N < end; N++))`.
    fn counted(&mut self, clause: &ast::ArithmeticForClauseCommand) -> Option<(String, Vec<Text>)> {
        let (name, first) = clause.initializer.as_ref()?.value.split_once('=')?;
        let (left, end) = clause.condition.as_ref()?.value.split_once('<')?;
        let is_counted = left.trim() == name.trim() && clause.updater.as_ref()?.value.contains("++");
        let (end, least) = end.strip_prefix('=').map_or((end, 1), |end| (end, 0));
        let mut number = |text: &str| self.arithmetic(text.trim(), text).literal()?.parse::<i64>().ok();
        let (first, end) = (number(first)?, number(end)?.checked_sub(least).filter(|_| is_counted)?);
        let numbers = (first..=end).take(TURNS).map(|turn| Text::known(turn.to_string()));
        Some((name.trim().to_owned(), numbers.collect()))
    }

    /// Runs the branch of an `if` that is taken, or all that may be.
    fn branches(&mut self, clause: &ast::IfClauseCommand) {
        let mut ways = Vec::new();
        let mut written = String::new();
        self.varies = false;
        let first = (Some(&clause.condition), &clause.then);
        let others = clause.elses.iter().flatten().map(|other| (other.condition.as_ref(), &other.body));
        let mut falls_through = true;
        for (condition, body) in std::iter::once(first).chain(others) {
            if let Some(condition) = condition.filter(|_| ways.is_empty()) {
                self.list(condition);
            }
            let held = condition.map_or(Some(true), |condition| self.holds(condition));
            if held == Some(false) {
                continue;
            }
            ways.push(body);
            written.extend(condition.map(ToString::to_string));
            if held == Some(true) {
                falls_through = false;
                break;
            }
        }
        self.one_or_all(&written, &ways, falls_through);
    }

    fn cases(&mut self, clause: &ast::CaseClauseCommand) {
        self.varies = false;
        let text = self.text(&clause.value.value);
        let value = self.here(&text);
        let mut ways = Vec::new();
        let mut falls_through = true;
        let nothing = CompoundList(Vec::new());
        for case in &clause.cases {
            let is_any = case.patterns.iter().any(|pattern| pattern.value == "*");
            let body = case.cmd.as_ref().unwrap_or(&nothing);
            let mut fits = Some(is_any);
            for pattern in &case.patterns {
                let pattern = self.text(&pattern.value);
                let one = self.here(&pattern).zip(value.as_ref());
                fits = either(fits, one.and_then(|(pattern, value)| choices::fits(value, &pattern)));
            }
            if fits == Some(false) {
                continue;
            }
            ways.push(body);
            if fits == Some(true) {
                falls_through = false;
                break;
            }
        }
        self.one_or_all(&clause.value.value, &ways, falls_through);
    }

    /// Runs one branch if it matters which, and no pod takes another one than the others.
    fn one_or_all(&mut self, condition: &str, ways: &[&CompoundList], falls_through: bool) {
        if let ([only], false) = (ways, falls_through) {
            return self.list(only);
        }
        let differs = self.varies || choices::is_of_one_node(condition);
        if differs || self.conditional > 0 || !ways.iter().any(|body| choices::may_launch(body)) {
            return self.ways(ways, falls_through);
        }
        let branches = ways.len().saturating_add(usize::from(falls_through));
        let taken = self.choices.of(condition.to_owned(), branches);
        if let Some(body) = ways.get(taken) {
            self.list(body);
        }
    }

    /// Runs the body of a loop.
    fn repeat(&mut self, run: impl FnOnce(&mut Self)) {
        self.loops = self.loops.saturating_add(1);
        self.maybe(run);
        self.loops = self.loops.saturating_sub(1);
    }

    /// Runs a part that may be skipped.
    fn maybe(&mut self, run: impl FnOnce(&mut Self)) {
        let before = Rc::clone(&self.variables);
        self.conditional = self.conditional.saturating_add(1);
        run(self);
        self.conditional = self.conditional.saturating_sub(1);
        let after = std::mem::replace(&mut self.variables, before);
        self.join(&after);
    }

    /// Runs the branches of an `if` or a `case`, each from the same start.
    fn ways(&mut self, ways: &[&CompoundList], falls_through: bool) {
        let start = Rc::clone(&self.variables);
        let mut ends = Vec::new();
        self.conditional = self.conditional.saturating_add(1);
        for body in ways {
            self.variables = Rc::clone(&start);
            self.list(body);
            ends.push(Rc::clone(&self.variables));
        }
        self.conditional = self.conditional.saturating_sub(1);
        let mut ends = ends.into_iter();
        self.variables = if falls_through { start } else { ends.next().unwrap_or(start) };
        for end in ends {
            self.join(&end);
        }
    }

    /// Makes every variable unknown that has another value in `other`, or the part that one of them adds.
    fn join(&mut self, other: &Rc<Variables>) {
        if Rc::ptr_eq(&self.variables, other) {
            return;
        }
        let names: BTreeSet<String> = self.variables.keys().chain(other.keys()).cloned().collect();
        for name in names {
            if self.variables.get(&name) != other.get(&name) {
                let of = |variables: &Variables| variables.get(&name).cloned().unwrap_or_default();
                let text = match (of(&self.variables).as_slice(), of(other).as_slice()) {
                    ([own], [other]) => own.or(other, &name),
                    _ => Text::unknown(format!("${name}"), false),
                };
                self.set(&name, text);
            }
        }
    }

    fn simple(&mut self, simple: &ast::SimpleCommand) {
        const CHANGE: [&str; 8] = ["let", "eval", "source", ".", "read", "unset", "mapfile", "readarray"];
        let mut own = Vec::new();
        let mut redirects = Vec::new();
        for item in simple.prefix.iter().flat_map(|prefix| &prefix.0) {
            match item {
                Item::AssignmentWord(assignment, _) => own.push(assignment),
                Item::IoRedirect(redirect) => redirects.push(redirect),
                _ => {}
            }
        }
        let Some(name) = &simple.word_or_name else {
            for assignment in own {
                self.assign(assignment);
            }
            return;
        };
        let mut words = self.fields(&name.value);
        let builtin = words.first().and_then(Text::literal).unwrap_or_default().to_owned();
        let declares = matches!(builtin.as_str(), "export" | "declare" | "local" | "typeset" | "readonly");
        for item in simple.suffix.iter().flat_map(|suffix| &suffix.0) {
            match item {
                Item::AssignmentWord(assignment, _) if declares => {
                    self.assign(assignment);
                    if let AssignmentName::VariableName(name) = &assignment.name {
                        words.push(Text::known(name.as_str()));
                    }
                }
                Item::Word(word) | Item::AssignmentWord(_, word) => words.extend(self.fields(&word.value)),
                Item::IoRedirect(redirect) => redirects.push(redirect),
                Item::ProcessSubstitution(..) => words.push(Text::unknown("<(…)", false)),
            }
        }
        if declares {
            self.export(&builtin, &words);
        }
        // `export NAME = VALUE` fails as a command does that there is not.
        let is_apart = |word: &Text| word.literal().is_some_and(|word| word.starts_with('='));
        if words.is_empty() || declares && !words.iter().any(is_apart) {
            return;
        }
        self.keep_written(&words, &redirects);
        let before = Rc::clone(&self.variables);
        let private = Rc::clone(&self.private);
        for assignment in own {
            self.assign(assignment);
            if let AssignmentName::VariableName(name) = &assignment.name {
                Rc::make_mut(&mut self.private).remove(name);
            }
        }
        self.execute(words);
        if !CHANGE.contains(&builtin.as_str()) && !self.functions.contains_key(&builtin) {
            (self.variables, self.private) = (before, private);
        }
    }

    fn assign(&mut self, assignment: &ast::Assignment) {
        let AssignmentName::VariableName(name) = &assignment.name else {
            if let AssignmentName::ArrayElementName(name, _) = &assignment.name {
                self.set(name, Text::unknown(format!("${name}"), false));
            }
            return;
        };
        let before = self.variables.get(name).filter(|_| assignment.append);
        let mut value = before.cloned().unwrap_or_default();
        match &assignment.value {
            AssignmentValue::Scalar(word) => {
                let text = self.text(&word.value);
                match value.first_mut() {
                    Some(first) => first.extend(text),
                    None => value.push(text),
                }
            }
            AssignmentValue::Array(items) => {
                value.extend(items.iter().flat_map(|(_, word)| self.fields(&word.value)));
            }
        }
        // A variable of the environment stays one.
        if !self.exports && !self.variables.contains_key(name) {
            Rc::make_mut(&mut self.private).insert(name.clone());
        }
        Rc::make_mut(&mut self.variables).insert(name.clone(), value);
    }

    /// `export NAME`, `declare -x NAME`.
    fn export(&mut self, builtin: &str, words: &[Text]) {
        let has_flag = |flag: &str| words.iter().any(|word| word.literal() == Some(flag));
        if (builtin == "export" || has_flag("-x") || has_flag("-gx")) && !has_flag("-n") {
            let names = words.iter().skip(1).filter_map(Text::literal).filter(|name| !name.starts_with('-'));
            names.for_each(|name| {
                let value = self.variable(name);
                Rc::make_mut(&mut self.private).remove(name);
                // What it gets later is exported, too.
                Rc::make_mut(&mut self.variables).entry(name.to_owned()).or_insert_with(|| vec![value]);
            });
        }
    }

    /// Remembers a file that `cat > FILE <<EOF` or `echo … > FILE` writes.
    fn keep_written(&mut self, words: &[Text], redirects: &[&IoRedirect]) {
        let program = words[0].literal().unwrap_or_default();
        let document = redirects.iter().find_map(|redirect| match redirect {
            IoRedirect::HereDocument(_, document) => Some(document),
            _ => None,
        });
        let target = redirects.iter().find_map(|redirect| match redirect {
            IoRedirect::File(
                _,
                ast::IoFileRedirectKind::Write | ast::IoFileRedirectKind::Clobber,
                IoFileRedirectTarget::Filename(word),
            ) => Some(word.value.clone()),
            _ => None,
        });
        let target = match (program, target) {
            (_, Some(word)) => self.text(&word),
            ("tee", None) => words.last().cloned().unwrap_or_default(),
            // `sbatch <<EOF`, `cat <<EOF | bsub`: a script without a name.
            ("cat" | "sbatch" | "qsub" | "bsub", None) => Text::default(),
            _ => return,
        };
        let content = match (program, document) {
            // The shell fills in a document unless its end is quoted.
            ("cat" | "tee" | "sbatch" | "qsub" | "bsub", Some(document)) if document.requires_expansion => {
                let text = self.text(&format!("\"{}\"", document.doc.value.replace('"', "\\\"")));
                text.as_script(Rc::make_mut(&mut self.variables))
            }
            ("cat" | "tee" | "sbatch" | "qsub" | "bsub", Some(document)) => document.doc.value.clone(),
            ("echo", _) => words[1..].iter().map(ToString::to_string).collect::<Vec<_>>().join(" "),
            _ => return,
        };
        // Who names it later names it with the same variables.
        self.written.insert(target.to_string(), content);
    }

    fn text_of(&self, path: &str) -> Option<String> {
        let plain = path.strip_prefix("./").unwrap_or(path);
        let written = self.written.get(path).or_else(|| self.written.get(plain));
        written.cloned().or_else(|| (self.file)(path))
    }

    fn execute(&mut self, mut words: Vec<Text>) {
        // Programs that only start another command.
        // `command -v` only looks for one.
        let is_flag = |word: &Text| word.literal().is_some_and(|word| word.starts_with('-'));
        let starts =
            |word: &Text| matches!(word.literal(), Some("exec" | "command" | "nohup" | "time" | "builtin"));
        while words.len() > 1 && starts(&words[0]) && !is_flag(&words[1]) {
            words.remove(0);
        }
        let first = words[0].to_string();
        match first.as_str() {
            "source" | "." => return self.source(&words[1..]),
            "eval" => {
                let text: Vec<String> = words[1..].iter().map(ToString::to_string).collect();
                if words[1..].iter().any(Text::is_unknown) {
                    self.open = true;
                }
                return self.script(&text.join(" "), "what `eval` is given");
            }
            "let" => return words[1..].iter().for_each(|word| self.count(&word.to_string())),
            "unset" => {
                for word in &words[1..] {
                    Rc::make_mut(&mut self.variables).remove(&word.to_string());
                }
                return;
            }
            "read" | "mapfile" | "readarray" | "getopts" => {
                let names = words[1..].iter().filter_map(Text::literal).filter(|word| !word.starts_with('-'));
                return names.for_each(|name| self.set(name, Text::unknown(format!("${name}"), false)));
            }
            "exit" => {
                self.ended |= self.conditional == 0;
                return;
            }
            "set" => {
                self.are_all &= !words.iter().any(|word| word.literal() == Some("--"));
                let has = |sign: char| {
                    let mut flags =
                        words.iter().filter_map(Text::literal).filter(|word| word.starts_with(sign));
                    flags.any(|word| !word.starts_with("--") && word.contains('a'))
                };
                self.pipefail |= words.iter().any(|word| word.literal() == Some("pipefail"));
                let by_name = words.iter().any(|word| word.literal() == Some("allexport"));
                self.exports = (self.exports || has('-') || by_name) && !has('+');
                return;
            }
            "break" | "continue" => {
                self.conditional = self.conditional.saturating_add(1);
                return;
            }
            "wait" => {
                self.moment = self.moment.saturating_add(1);
                self.has_others = false;
                return;
            }
            "shift" => {
                self.are_all = false;
                return;
            }
            "shopt" | "trap" | "ulimit" | "umask" | ":" => return,
            _ => {}
        }
        if let Some(body) = self.functions.get(&first).cloned() {
            if self.depth < DEPTH {
                self.depth = self.depth.saturating_add(1);
                let before = self.with_arguments(&words[1..]);
                self.compound(&body);
                (self.positional, self.are_all) = before;
                self.depth = self.depth.saturating_sub(1);
            }
            return;
        }
        if is_shell(&first) {
            return self.shell(&words);
        }
        let shell = words.iter().position(|word| word.literal().is_some_and(is_shell));
        if let Some(carried) = shell.filter(|_| carries(&first)).and_then(|at| words.get(at..)) {
            // `env NAME=VALUE` gives it to the shell.
            let given =
                |name: &String| words.iter().any(|it| it.to_string().starts_with(&format!("{name}=")));
            let left = self.private.iter().filter(|name| !given(name)).cloned().collect();
            let before = std::mem::replace(&mut self.private, Rc::new(left));
            self.shell(carried);
            self.private = before;
            return;
        }
        if let Some(text) = self.text_of(&first) {
            return self.call(&text, &first, &words[1..]);
        }
        let script = words.iter().position(is_path_of_script).filter(|_| carries(&first));
        if let Some([script, arguments @ ..]) = script.and_then(|at| words.get(at..))
            && let Some(text) = self.text_of(&script.to_string())
        {
            return self.call(&text, &script.to_string(), arguments);
        }
        if is_script(&first) {
            self.reading.unread.push(format!("`{first}` is not in these files"));
        }
        self.reading.commands.push(Command {
            words,
            variables: Rc::clone(&self.variables),
            private: Rc::clone(&self.private),
            open: self.open,
            conditional: self.conditional > if self.background > 0 { 0 } else { self.loops },
            repeated: self.loops > 0,
            piped: self.piped && !self.pipefail,
            moment: self.moment,
            background: self.background > 0,
        });
        self.has_others |= self.background > 0;
        self.moment = self.moment.saturating_add(usize::from(!self.has_others));
    }

    fn source(&mut self, arguments: &[Text]) {
        let Some(path) = arguments.first() else { return };
        match path.literal().and_then(|path| self.text_of(path)) {
            Some(text) => self.script(&text, &path.to_string()),
            // What `venv` makes sets no variable of a launch.
            None if path.to_string().ends_with("bin/activate") => {}
            // The unknown script may set any variable.
            None => self.open = true,
        }
    }

    fn shell(&mut self, words: &[Text]) {
        let Some((is_script, word, arguments)) = called(&words[1..]) else { return };
        if is_script {
            let before = Rc::clone(&self.variables);
            let text = word.as_script(Rc::make_mut(&mut self.variables));
            self.call(&text, "the script of `-c`", arguments.get(1..).unwrap_or_default());
            self.variables = before;
        } else if let Some(text) = word.literal().and_then(|path| self.text_of(path)) {
            self.call(&text, &word.to_string(), arguments);
        } else {
            self.reading.unread.push(format!("`{word}` is not in these files"));
        }
    }

    /// Runs another script, which changes no variable here.
    fn call(&mut self, text: &str, what: &str, arguments: &[Text]) {
        let before = (Rc::clone(&self.variables), Rc::clone(&self.private), self.open, self.ended);
        let positional = self.with_arguments(arguments);
        for name in Rc::clone(&self.private).iter() {
            self.set(name, Text::of(Part::Unset(name.clone())));
        }
        self.script(text, what);
        (self.variables, self.private, self.open, self.ended) = before;
        (self.positional, self.are_all) = positional;
    }

    /// Takes other positional parameters. A word that is all unknown may be several, or none.
    fn with_arguments(&mut self, arguments: &[Text]) -> (Vec<Text>, bool) {
        let is_any = |word: &Text| match word.parts() {
            [Part::Unknown { written, .. }] => {
                written.strip_prefix('$').is_some_and(|name| !name.starts_with(['(', '<']))
            }
            _ => false,
        };
        let are_all = !arguments.iter().any(is_any);
        (
            std::mem::replace(&mut self.positional, arguments.to_vec()),
            std::mem::replace(&mut self.are_all, are_all),
        )
    }
}

/// Whether a word names a script, in whatever folder.
fn is_path_of_script(word: &Text) -> bool {
    matches!(word.parts().last(), Some(Part::Known(end)) if word.parts().len() == 1 || end.contains('/'))
        && is_script(&word.to_string())
}

/// Whether a program runs the command that follows, in a container or with other limits.
fn carries(program: &str) -> bool {
    #[rustfmt::skip]
    const CARRIERS: [&str; 12] = [
        "apptainer", "docker", "enroot", "env", "numactl", "nice", "podman", "shifter", "singularity",
        "sudo", "taskset", "timeout",
    ];
    CARRIERS.contains(&basename(program))
}

/// Whether a pipeline only tests a condition.
fn is_test(pipeline: &ast::Pipeline) -> bool {
    match pipeline.seq.as_slice() {
        [ast::Command::ExtendedTest(..) | ast::Command::Compound(CompoundCommand::Arithmetic(_), _)] => true,
        [ast::Command::Simple(simple)] => {
            simple.word_or_name.as_ref().is_some_and(|name| matches!(basename(&name.value), "[" | "test"))
        }
        _ => false,
    }
}

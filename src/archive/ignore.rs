//! `.dockerignore`: which paths of a build context stay at home. Pure.
//!
//! What the rules mean is defined by Docker's own client, odd corners included:
//!
//! - A pattern is matched against the whole path from the context's root, and against every
//!   directory above it. The last rule that matches decides; a rule with `!` lets in again.
//! - `*` and `?` stay within one name, `**` crosses any number of them, `[…]` is a class that may
//!   match a `/`, too, and `\` takes the meaning from the next character.
//! - `**NAME` without further wildcards matches whatever *ends* in NAME.
//! - An ignored directory is not entered unless a rule with `!` begins, letter for letter, with its
//!   path: `!**/keep` brings nothing back from it.

use std::iter::Peekable;
use std::str::Chars;

use regex::Regex;

/// A line that is no rule.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("line {line}, {text:?}: {reason}")]
pub struct RuleError {
    /// Which line, from 1.
    pub line: usize,
    /// What stands there.
    pub text: String,
    /// What is wrong with it.
    pub reason: &'static str,
}

/// One rule.
#[derive(Debug, Clone)]
pub struct Rule {
    /// Its line in the file, from 1; none for a rule of our own.
    pub line: Option<usize>,
    /// The line as it stands there, without spaces around it.
    pub text: String,
    /// Whether it lets in what an earlier one keeps out: `!`.
    pub exception: bool,
    pattern: String,
    kind: Kind,
}

/// How a pattern is compared with a path.
#[derive(Debug, Clone)]
enum Kind {
    Exact,
    /// `a/**`: what begins with `a/`.
    Prefix,
    /// `**/a`: what ends so.
    Suffix,
    Regex(Regex),
    /// An exception that makes no sense: only whoever has to look at it is refused.
    Malformed(&'static str),
}

/// What the rules say of a directory, for the sake of what is in it: which rules matched.
#[derive(Debug, Clone, Default)]
pub struct Above(Vec<bool>);

/// What the rules say of a path.
#[derive(Debug, Clone)]
pub struct Judgement {
    /// Whether it stays at home.
    pub ignored: bool,
    /// The rule that decided, by its place in [`Rules::list`]; none where none matched.
    pub rule: Option<usize>,
    /// For what is in it.
    pub above: Above,
    /// A rule that had to be looked at, and makes no sense: the others decide nothing.
    pub malformed: Option<usize>,
}

/// The rules of a file, in its order.
#[derive(Debug, Clone, Default)]
pub struct Rules {
    list: Vec<Rule>,
}

impl Rules {
    /// Reads a `.dockerignore`.
    ///
    /// # Errors
    /// A line is no rule.
    pub fn parse(file: &[u8]) -> Result<Self, RuleError> {
        let file = file.strip_prefix(b"\xef\xbb\xbf").unwrap_or(file);
        let file = String::from_utf8_lossy(file);
        let mut rules = Self::default();
        for (index, line) in file.lines().enumerate() {
            // Before spaces are taken away: " #" is no comment.
            if line.starts_with('#') || line.trim().is_empty() {
                continue;
            }
            rules.add(Some(index + 1), line.trim())?;
        }
        Ok(rules)
    }

    /// The rules.
    pub fn list(&self) -> &[Rule] {
        &self.list
    }

    /// Lets a file in that a build cannot do without, if the rules keep it out.
    ///
    /// # Errors
    /// Its name is no pattern.
    pub fn always_send(&mut self, path: &str) -> Result<(), RuleError> {
        if self.judge(path, None).ignored {
            self.add(None, &format!("!{path}"))?;
        }
        Ok(())
    }

    fn add(&mut self, line: Option<usize>, text: &str) -> Result<(), RuleError> {
        let wrong = |reason| RuleError {
            line: line.unwrap_or(0),
            text: text.to_owned(),
            reason,
        };
        let (mut exception, pattern) = match text.strip_prefix('!') {
            Some(rest) => (true, rest.trim()),
            None => (false, text),
        };
        if pattern.is_empty() {
            return Err(wrong("there is nothing after the !"));
        }
        let mut pattern = clean(pattern);
        if pattern.len() > 1 && pattern.starts_with('/') {
            pattern.remove(0);
            // Docker reads what is left once more: "/!a" is the exception "!a".
            if !exception && pattern.starts_with('!') {
                pattern.remove(0);
                if pattern.is_empty() {
                    return Err(wrong("there is nothing after the !"));
                }
                exception = true;
            }
        }
        if exception && pattern == "/" {
            return Err(wrong("there is nothing after the !"));
        }
        let kind = match check(&pattern).and_then(|()| compile(&pattern)) {
            Ok(kind) => kind,
            // Docker tries each pattern on ".", which only looks at its beginning, and reads the rest
            // when a path is compared with it: never, if nothing is kept out that it could let in.
            Err(reason) if exception && check(beginning(&pattern)).is_ok() => {
                Kind::Malformed(reason)
            }
            Err(reason) => return Err(wrong(reason)),
        };
        self.list.push(Rule {
            line,
            text: text.to_owned(),
            exception,
            pattern,
            kind,
        });
        Ok(())
    }

    /// What the rules say of a path from the context's root, given what they say of the directory
    /// it is in; without that, all directories above it are looked at.
    pub fn judge(&self, path: &str, above: Option<&Above>) -> Judgement {
        let mut ignored = false;
        let mut decided = None;
        let mut malformed = None;
        let mut matched = vec![false; self.list.len()];
        for (index, rule) in self.list.iter().enumerate() {
            let mut hit = above.is_some_and(|above| above.0.get(index) == Some(&true));
            if !hit {
                // It would change nothing here. That it also is not noted for what lies below is
                // what Docker does, and shows where an exception lies between two rules.
                if rule.exception != ignored {
                    continue;
                }
                if matches!(rule.kind, Kind::Malformed(_)) {
                    malformed = Some(index);
                    break;
                }
                hit = rule.matches(path) || (above.is_none() && rule.matches_above(path));
            }
            matched[index] = hit;
            if hit {
                ignored = !rule.exception;
                decided = Some(index);
            }
        }
        Judgement {
            ignored,
            rule: decided,
            above: Above(matched),
            malformed,
        }
    }

    /// What is wrong with a rule that makes no sense.
    pub fn error(&self, index: usize) -> Option<RuleError> {
        let rule = self.list.get(index)?;
        let Kind::Malformed(reason) = rule.kind else {
            return None;
        };
        Some(RuleError {
            line: rule.line.unwrap_or(0),
            text: rule.text.clone(),
            reason,
        })
    }

    /// Whether an ignored directory has to be entered: an exception begins with its path.
    pub fn enters(&self, directory: &str) -> bool {
        self.list.iter().any(|rule| {
            rule.exception
                && rule.pattern.strip_prefix(directory).is_some_and(|rest| {
                    // The pattern may be the directory itself.
                    rest.is_empty() || rest.starts_with('/')
                })
        })
    }
}

impl Rule {
    fn matches(&self, path: &str) -> bool {
        match &self.kind {
            Kind::Exact => path == self.pattern,
            Kind::Prefix => path.starts_with(&self.pattern[..self.pattern.len() - 2]),
            Kind::Suffix => {
                let suffix = &self.pattern[2..];
                path.ends_with(suffix) || suffix.strip_prefix('/') == Some(path)
            }
            Kind::Regex(regex) => regex.is_match(path),
            Kind::Malformed(_) => false,
        }
    }

    fn matches_above(&self, path: &str) -> bool {
        let ends = path.match_indices('/').map(|(end, _)| end);
        ends.into_iter().any(|end| self.matches(&path[..end]))
    }
}

/// The path of a file as rules see it: each byte that is no UTF-8 is one replacement character.
pub fn as_text(path: &[u8]) -> String {
    let mut text = String::with_capacity(path.len());
    for chunk in path.utf8_chunks() {
        text.push_str(chunk.valid());
        text.extend(chunk.invalid().iter().map(|_| char::REPLACEMENT_CHARACTER));
    }
    text
}

/// The shortest path that means the same, by its letters alone: no `.`, no `..` that has something
/// before it, no `//`, no `/` at the end.
pub(crate) fn clean(path: &str) -> String {
    let rooted = path.starts_with('/');
    let mut parts: Vec<&str> = Vec::new();
    for part in path.split('/') {
        match part {
            "" | "." => {}
            ".." if parts.last().is_some_and(|last| *last != "..") => {
                parts.pop();
            }
            ".." if rooted => {}
            part => parts.push(part),
        }
    }
    let path = parts.join("/");
    match (rooted, path.is_empty()) {
        (true, _) => format!("/{path}"),
        (false, true) => ".".into(),
        (false, false) => path,
    }
}

/// What of a pattern Docker reads to try it on ".": up to the first `*` behind the first character
/// that is none and stands in no `[ ]`; all of it, where that is a single wildcard, which matches.
fn beginning(pattern: &str) -> &str {
    let stars = pattern.len() - pattern.trim_start_matches('*').len();
    let (mut class, mut escaped) = (false, false);
    let end = pattern[stars..].find(|c| {
        let ends = c == '*' && !class && !escaped;
        if !escaped {
            class = (class || c == '[') && c != ']';
        }
        escaped = c == '\\' && !escaped;
        ends
    });
    match end {
        Some(end) if !matches!(&pattern[stars..stars + end], "." | "?") => &pattern[..stars + end],
        _ => pattern,
    }
}

const BAD_CLASS: &str = "its [ ] makes no sense";

/// Whether a pattern follows the grammar of wildcards: classes hold at least one character or
/// range, `-` and `]` in them come after a `\`, and no `\` is the last character.
fn check(pattern: &str) -> Result<(), &'static str> {
    let mut rest = pattern.chars().peekable();
    while let Some(c) = rest.next() {
        match c {
            '\\' => {
                rest.next().ok_or("there is nothing after the \\")?;
            }
            '[' => {
                rest.next_if_eq(&'^');
                let mut ranges = 0;
                loop {
                    if rest.peek() == Some(&']') && ranges > 0 {
                        rest.next();
                        break;
                    }
                    class_char(&mut rest)?;
                    if rest.next_if_eq(&'-').is_some() {
                        class_char(&mut rest)?;
                    }
                    ranges += 1;
                }
            }
            _ => {}
        }
    }
    Ok(())
}

fn class_char(rest: &mut impl Iterator<Item = char>) -> Result<char, &'static str> {
    match rest.next() {
        None | Some('-' | ']') => Err(BAD_CLASS),
        Some('\\') => rest.next().ok_or(BAD_CLASS),
        Some(c) => Ok(c),
    }
}

/// How a pattern is compared. What is a wildcard becomes a part of a regular expression, and what
/// Docker's expression makes of odd patterns, ours makes, too.
fn compile(pattern: &str) -> Result<Kind, &'static str> {
    let mut regex = String::from("^");
    let mut plain = true;
    let mut kind = Kind::Exact;
    let mut chars = pattern.chars().peekable();
    let mut first = true;
    while let Some(c) = chars.next() {
        let mut wildcard = true;
        match c {
            '*' if chars.next_if_eq(&'*').is_some() => {
                chars.next_if_eq(&'/');
                if chars.peek().is_some() {
                    regex.push_str("(.*/)?");
                } else if plain && matches!(kind, Kind::Exact) {
                    kind = Kind::Prefix;
                    wildcard = false;
                } else {
                    regex.push_str(".*");
                }
                if first {
                    kind = Kind::Suffix;
                    wildcard = false;
                }
            }
            '*' => regex.push_str("[^/]*"),
            '?' => regex.push_str("[^/]"),
            '\\' => {
                let escaped = chars.next().ok_or("there is nothing after the \\")?;
                regex.push_str(&escape(escaped)?);
            }
            '[' => class(&mut chars, &mut regex)?,
            // A lone one matches itself, and yet makes an expression of the pattern.
            ']' => regex.push_str(r"\]"),
            // Docker leaves it to the expression, where it is the beginning of the text.
            '^' => {
                regex.push('^');
                wildcard = false;
            }
            c => {
                regex.push_str(&regex::escape(c.encode_utf8(&mut [0; 4])));
                wildcard = false;
            }
        }
        plain &= !wildcard;
        first = false;
    }
    if plain {
        return Ok(kind);
    }
    regex.push('$');
    Regex::new(&regex).map(Kind::Regex).map_err(|_| BAD_CLASS)
}

/// What an escaped character becomes: itself, but a letter is what it is in an expression.
fn escape(c: char) -> Result<String, &'static str> {
    Ok(match c {
        'd' => "[0-9]".into(),
        'D' => "[^0-9]".into(),
        's' => r"[\t\n\f\r ]".into(),
        'S' => r"[^\t\n\f\r ]".into(),
        'w' => "[0-9A-Za-z_]".into(),
        'W' => "[^0-9A-Za-z_]".into(),
        'a' | 'f' | 'n' | 'r' | 't' | 'v' => format!("\\{c}"),
        c if c.is_ascii_alphanumeric() => {
            return Err("a letter or digit after a \\ has a meaning of its own; leave the \\ away");
        }
        // The scanner of Docker's expressions takes no \ before what is not ASCII.
        c if !c.is_ascii() => return Err("a \\ takes a character of ASCII"),
        c => regex::escape(c.encode_utf8(&mut [0; 4])),
    })
}

/// Translates a class, whose `[` has been taken. Docker translates what is in it as it does outside
/// of it, so that a `*` or `?` in it ends the class early.
fn class(chars: &mut Peekable<Chars<'_>>, regex: &mut String) -> Result<(), &'static str> {
    let mut source = String::from("[");
    loop {
        match chars.next().ok_or(BAD_CLASS)? {
            ']' => {
                source.push(']');
                break;
            }
            '\\' => {
                let escaped = chars.next().ok_or(BAD_CLASS)?;
                source.push_str(&escape(escaped)?);
            }
            '*' | '?' => return Err("a * or ? in [ ] has to come after a \\"),
            '[' if chars.peek() == Some(&':') => return Err(BAD_CLASS),
            // Inside of a class these have a meaning here that they have not there.
            c @ ('[' | '&' | '~') => source.extend(['\\', c]),
            c => source.push(c),
        }
    }
    regex.push_str(&source);
    Ok(())
}

#[cfg(test)]
mod tests;

#![allow(clippy::unwrap_used)]

use super::*;

impl Rules {
    /// Docker 20.10 looks at every rule.
    pub(in super::super) fn any_is_malformed(&self) -> bool {
        let mut rules = self.list.iter();
        rules.any(|rule| matches!(rule.kind, Kind::Malformed(_)))
    }

    /// The judgement of clients before 23: of the directories above a path, a pattern is compared
    /// only with the one that has as many names as itself, `**NAME` begins with a name, and a `^`
    /// is never itself.
    pub(in super::super) fn ignored_as_by_20_10(&self, path: &str) -> bool {
        let names: Vec<_> = path.split('/').collect();
        let mut ignored = false;
        for rule in &self.list {
            let depth = rule.pattern.split('/').count();
            let matches = |path: &str| match &rule.kind {
                Kind::Suffix if !rule.pattern[2..].starts_with('/') => {
                    let suffix = &rule.pattern[2..];
                    suffix.is_empty() || path.rsplit('/').next() == Some(suffix)
                }
                // Everything was an expression, in which it is the beginning of the text.
                Kind::Exact if rule.pattern.contains('^') => {
                    rule.pattern.strip_prefix('^') == Some(path)
                }
                _ => rule.matches(path),
            };
            let above = depth < names.len() && matches(&names[..depth].join("/"));
            if matches(path) || above {
                ignored = !rule.exception;
            }
        }
        ignored
    }
}

/// Whether each path stays at home, each judged with all directories above it.
fn ignored(file: &str, path: &str) -> bool {
    let rules = Rules::parse(file.as_bytes()).expect(file);
    let judgement = rules.judge(path, None);
    assert_eq!(judgement.malformed, None, "{file}");
    judgement.ignored
}

#[test]
fn patterns_match_what_they_match_for_docker() {
    // File, path, ignored.
    let table: &[(&str, &str, bool)] = &[
        ("a", "a", true),
        ("a", "b/a", false),
        ("a", "a/b/c", true),
        ("a", "ab", false),
        ("/a", "a", true),
        ("a/", "a/x", true),
        ("./a", "a", true),
        ("b/../a", "a", true),
        ("b//a/.", "b/a", true),
        ("../a", "a", false),
        ("/", "a", false),
        (".", "a", false),
        ("  a  ", "a", true),
        ("#a", "#a", false),
        (" #a", "#a", true),
        ("\u{feff}a", "a", true),
        ("x\n\u{feff}a", "a", false),
        ("a\r\nb\r\n", "b", true),
        ("\n\na", "a", true),
        ("*", "a", true),
        ("*", "a/b", true),
        ("*.go", "x.go", true),
        ("*.go", "d/x.go", false),
        ("*/*.go", "d/x.go", true),
        ("*/*.go", "e/d/x.go", false),
        ("?", "a", true),
        ("?", "ü", true),
        ("?", "ab", false),
        ("a?c", "a/c", false),
        ("**", "a/b", true),
        ("**/a", "a", true),
        ("**/a", "x/y/a", true),
        ("**/a", "x/ya", false),
        ("**/a", "x/a/b", true),
        ("**a", "x/ya", true),
        ("a/**", "a/b/c", true),
        ("a/**", "a", false),
        ("a/**/b", "a/b", true),
        ("a/**/b", "a/x/y/b", true),
        ("a/**/b", "a/xb", false),
        ("**/*.rs", "x.rs", true),
        ("**/*.rs", "a/b/x.rs", true),
        ("a**", "abc/d", true),
        ("a**b", "ab", true),
        ("a**b", "a/x/b", true),
        ("a**b", "axb", false),
        ("**/**/a", "x/y/a", true),
        ("a.b", "axb", false),
        ("a.b*", "axb", false),
        ("a+(b)|{c}$*", "a+(b)|{c}$x", true),
        ("[a-c]x", "bx", true),
        ("[a-c]x", "dx", false),
        ("[^a-c]x", "dx", true),
        ("[^a-c]x", "ax", false),
        ("a[^b]c", "a/c", true),
        ("[a\\]]", "]", true),
        ("[&&~]", "&", true),
        ("a]", "a]", true),
        ("\\*", "*", true),
        ("\\*", "a", false),
        ("\\!a", "!a", true),
        ("\\#a", "#a", true),
        ("a\\d", "a7", true),
        ("^a", "^a", true),
        ("^a*", "^ab", false),
        ("^a*", "ab", true),
        ("a b", "a b", true),
        ("ü*", "über", true),
    ];
    for (file, path, expected) in table {
        assert_eq!(ignored(file, path), *expected, "{file:?} {path:?}");
    }
}

#[test]
fn the_last_rule_that_matches_decides() {
    let table: &[(&str, &str, bool)] = &[
        ("*\n!a", "a", false),
        ("*\n!a", "b", true),
        ("!a\n*", "a", true),
        ("*.md\n!README*.md\nREADME-secret.md", "README.md", false),
        (
            "*.md\n!README*.md\nREADME-secret.md",
            "README-secret.md",
            true,
        ),
        ("a\n!a/b", "a/b/c", false),
        ("a\n!a/b", "a/c", true),
        ("a\n! a/b", "a/b", false),
        ("*\n!/a", "a", false),
    ];
    for (file, path, expected) in table {
        assert_eq!(ignored(file, path), *expected, "{file:?} {path:?}");
    }
}

#[test]
fn a_judgement_names_its_rule() {
    let rules = Rules::parse(b"# first\n*.log\n\n  !keep.log ").unwrap();
    let rule = |path| {
        let rule = &rules.list()[rules.judge(path, None).rule?];
        Some((rule.line, rule.text.as_str()))
    };
    assert_eq!(rule("x.log"), Some((Some(2), "*.log")));
    assert_eq!(rule("keep.log"), Some((Some(4), "!keep.log")));
    assert_eq!(rule("x"), None);
}

#[test]
fn directories_hand_down_what_matched() {
    let rules = Rules::parse(b"foo\n!foo/bar/keep\nfoo/bar").unwrap();
    let foo = rules.judge("foo", None);
    let bar = rules.judge("foo/bar", Some(&foo.above));
    assert!(foo.ignored && bar.ignored);
    // The third rule was not noted for foo/bar, which was ignored already.
    assert!(!rules.judge("foo/bar/keep", Some(&bar.above)).ignored);
    assert!(rules.judge("foo/bar/other", Some(&bar.above)).ignored);
    assert!(rules.judge("foo/bar/keep", None).ignored);
}

#[test]
fn an_ignored_directory_is_entered_for_an_exception_that_begins_with_it() {
    let rules = Rules::parse(b"*\n!a/b/c\n!**/x").unwrap();
    for (directory, enters) in [("a", true), ("a/b", true), ("a/b/c", true), ("b", false)] {
        assert_eq!(rules.enters(directory), enters, "{directory}");
    }
    assert!(!rules.enters("a/b/c/d") && !rules.enters("a/bb"));
}

#[test]
fn what_a_build_needs_is_always_sent() {
    let mut rules = Rules::parse(b"*\n").unwrap();
    rules.always_send(".dockerignore").unwrap();
    rules.always_send("build/Dockerfile").unwrap();
    assert!(!rules.judge("build/Dockerfile", None).ignored);
    assert!(rules.enters("build"));
    assert!(!rules.judge(".dockerignore", None).ignored);
    let mut rules = Rules::parse(b"x").unwrap();
    rules.always_send("Dockerfile").unwrap();
    assert_eq!(rules.list().len(), 1, "no rule that changes nothing");
}

#[test]
fn lines_that_are_no_rules_are_named() {
    for file in [
        "!", "! ", "!/", "!/a/..", "[", "[]", "[a", "[a-]", "[-a]", "[z-a]", "a\\", "[\\", "[*]",
        "\\1", "\\ü",
    ] {
        let error = Rules::parse(format!("ok\n{file}").as_bytes()).expect_err(file);
        assert_eq!(error.line, 2, "{file}");
        assert!(error.to_string().contains("line 2"), "{error}");
    }
}

#[test]
fn paths_are_cleaned_by_their_letters() {
    for (path, expected) in [
        ("", "."),
        ("a/b", "a/b"),
        ("a//b/", "a/b"),
        ("./a/./b", "a/b"),
        ("a/..", "."),
        ("../a", "../a"),
        ("a/../../b", "../b"),
        ("/../a", "/a"),
        ("/", "/"),
        ("//", "/"),
    ] {
        assert_eq!(clean(path), expected, "{path}");
    }
}

#[test]
fn bytes_that_are_no_text_are_one_character_each() {
    assert_eq!(as_text(b"a\xff\xe2\x82b"), "a\u{fffd}\u{fffd}\u{fffd}b");
}

#[test]
fn a_leading_slash_hides_no_exception() {
    for file in ["a*\n/!ab", "a*\n!ab", "a*\n/!/ab"] {
        assert_eq!(ignored(file, "ab"), file.ends_with("/!/ab"), "{file}");
        assert!(ignored(file, "ac"), "{file}");
    }
    assert!(Rules::parse(b"/!").is_err());
}

/// As docker 28 has it, whose client was asked.
#[test]
fn an_exception_that_makes_no_sense_is_refused_once_it_is_looked_at() {
    for file in [
        "!a[", "!**/[", "!*/[", "![", "!a\\", "!**/\\", "a/*[", "!?*[",
    ] {
        assert!(Rules::parse(file.as_bytes()).is_err(), "{file}");
    }
    for pattern in ["a/*[", "x*[", "x/**/\\", "y.go/**/["] {
        let rules = Rules::parse(format!("kept\n!{pattern}").as_bytes()).expect(pattern);
        assert_eq!(rules.judge("other", None).malformed, None, "{pattern}");
        let looked_at = rules.judge("kept", None).malformed.unwrap();
        let error = rules.error(looked_at).unwrap();
        assert_eq!(error.line, 2, "{pattern}");
        assert!(rules.error(0).is_none());
    }
}

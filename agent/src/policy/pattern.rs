//! Patterns of names, as in a shell.

/// A text in which `*` stands for any characters, none included, and `?` for one.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Pattern(Vec<char>);

impl Pattern {
    /// The pattern that this text is.
    pub fn new(text: &str) -> Self {
        Self(text.chars().collect())
    }

    /// Whether all of `text` matches. Takes time in proportion to both lengths multiplied at most.
    pub fn matches(&self, text: &str) -> bool {
        let (pattern, text) = (&self.0[..], text.chars().collect::<Vec<_>>());
        let (mut p, mut t) = (0, 0);
        // Behind the last star, and up to where it has eaten.
        let mut star = None;
        while t < text.len() {
            match pattern.get(p) {
                Some('*') => {
                    star = Some((p + 1, t));
                    p += 1;
                }
                Some(c) if *c == '?' || *c == text[t] => {
                    p += 1;
                    t += 1;
                }
                _ => {
                    // The star eats one more, and what follows it is tried again.
                    let Some((behind, eaten)) = star else {
                        return false;
                    };
                    star = Some((behind, eaten + 1));
                    (p, t) = (behind, eaten + 1);
                }
            }
        }
        pattern[p..].iter().all(|c| *c == '*')
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn as_in_a_shell() {
        for (pattern, text, matches) in [
            ("", "", true),
            ("", "a", false),
            ("*", "", true),
            ("*", "anything", true),
            ("web", "web", true),
            ("web", "web-1", false),
            ("web-?", "web-1", true),
            ("web-?", "web-", false),
            ("*-db", "a-db-db", true),
            ("a*b*c", "aXbYbZc", true),
            ("a*b*c", "aXbYbZ", false),
            ("container.*", "container.start", true),
            ("container.*", "container", false),
            ("ü?", "üñ", true),
            ("*****b", &"a".repeat(1000), false),
        ] {
            assert_eq!(
                Pattern::new(pattern).matches(text),
                matches,
                "{pattern} {text}"
            );
        }
    }

    /// The plain definition, which takes exponential time.
    fn by_definition(pattern: &[char], text: &[char]) -> bool {
        match (pattern, text) {
            ([], text) => text.is_empty(),
            (['*', rest @ ..], text) => {
                (0..=text.len()).any(|eaten| by_definition(rest, &text[eaten..]))
            }
            (['?', rest @ ..], [_, text @ ..]) => by_definition(rest, text),
            ([c, rest @ ..], [d, text @ ..]) if c == d => by_definition(rest, text),
            _ => false,
        }
    }

    proptest! {
        #[test]
        fn as_defined(pattern in "[ab*?]{0,8}", text in "[ab]{0,10}") {
            let chars = |text: &str| text.chars().collect::<Vec<_>>();
            let expected = by_definition(&chars(&pattern), &chars(&text));
            prop_assert_eq!(Pattern::new(&pattern).matches(&text), expected);
        }
    }
}

//! What a command is about: a node, or a container on one.

use std::fmt;
use std::str::FromStr;

/// `NODE` or `NODE/CONTAINER`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Target {
    pub(super) node: String,
    pub(super) container: Option<String>,
}

/// Text that names nothing.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub(super) enum NoTarget {
    #[error("{0:?} names no node; it takes NODE or NODE/CONTAINER")]
    Node(String),
    #[error("{0:?} names no container of a node; it takes NODE/CONTAINER")]
    Container(String),
}

impl FromStr for Target {
    type Err = NoTarget;

    fn from_str(text: &str) -> Result<Self, NoTarget> {
        let (node, container) = match text.split_once('/') {
            None => (text, None),
            Some((node, container)) => (node, Some(container)),
        };
        if node.is_empty() || container.is_some_and(str::is_empty) {
            return Err(NoTarget::Node(text.to_owned()));
        }
        Ok(Self {
            node: node.to_owned(),
            container: container.map(str::to_owned),
        })
    }
}

/// `NODE/CONTAINER`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct ContainerTarget {
    pub(super) node: String,
    pub(super) container: String,
}

impl FromStr for ContainerTarget {
    type Err = NoTarget;

    fn from_str(text: &str) -> Result<Self, NoTarget> {
        match text.parse() {
            Ok(Target {
                node,
                container: Some(container),
            }) => Ok(Self { node, container }),
            _ => Err(NoTarget::Container(text.to_owned())),
        }
    }
}

impl fmt::Display for ContainerTarget {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.node, self.container)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn targets_are_a_node_and_what_follows_a_slash() {
        let target = |node: &str, container: Option<&str>| Target {
            node: node.into(),
            container: container.map(str::to_owned),
        };
        assert_eq!("a".parse(), Ok(target("a", None)));
        assert_eq!("a/b".parse(), Ok(target("a", Some("b"))));
        for wrong in ["", "/", "/b", "a/"] {
            assert_eq!(wrong.parse::<Target>(), Err(NoTarget::Node(wrong.into())));
            assert!(wrong.parse::<ContainerTarget>().is_err());
        }
        assert_eq!(
            "a".parse::<ContainerTarget>(),
            Err(NoTarget::Container("a".into()))
        );
    }
}

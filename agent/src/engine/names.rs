//! Names on their way into the daemon's URLs: nothing in a name may leave its place there.

use std::fmt::Write as _;

/// Whether Docker could have a container of that name or id. It goes into a URL as it is.
pub(crate) fn is_container_name(name: &str) -> bool {
    name.starts_with(|c: char| c.is_ascii_alphanumeric())
        && name
            .chars()
            .all(|c| c.is_ascii_alphanumeric() || "_.-".contains(c))
}

/// A name without the slash that Docker writes before it.
pub(crate) fn bare(name: &str) -> &str {
    name.strip_prefix('/').unwrap_or(name)
}

/// A container's own name among those that a list has of it: a link gives it more, with a further
/// slash in them.
pub(crate) fn own(names: &[String]) -> Option<&str> {
    let mut names = names.iter().map(|name| bare(name));
    names.find(|name| !name.contains('/'))
}

/// A container's name or id for a URL; `None` where there can be no such container. Docker itself
/// writes a slash before names.
pub(crate) fn container(name: &str) -> Option<&str> {
    let name = bare(name);
    is_container_name(name).then_some(name)
}

/// A name as one part of a URL's path; `None` for one that can't be a part of a path. Networks and
/// the volumes of plugins may have names with blanks and more.
pub(super) fn part(name: &str) -> Option<String> {
    if matches!(name, "" | "." | "..") || name.contains('/') || name.contains(char::is_control) {
        return None;
    }
    let mut part = String::with_capacity(name.len());
    for byte in name.bytes() {
        if byte.is_ascii_alphanumeric() || b"_.-~".contains(&byte) {
            part.push(char::from(byte));
        } else {
            // Writing to a string does not fail.
            let _ = write!(part, "%{byte:02X}");
        }
    }
    Some(part)
}

/// An image's name or id for a URL; `None` where there can be no such image.
pub(super) fn image(name: &str) -> Option<&str> {
    let mut parts = name.split('/');
    let well_formed = parts.all(|part| {
        !matches!(part, "" | "." | "..")
            && part
                .bytes()
                .all(|byte| byte.is_ascii_alphanumeric() || b"_.-:@+[]".contains(&byte))
    });
    well_formed.then_some(name)
}

/// What Docker's credentials call its own registry.
const DOCKER_HUB: &str = "https://index.docker.io/v1/";

/// A registry as Docker's credentials name it: its host, however it was written; Docker's own has
/// an address of its own there, whichever of its names is used.
pub(super) fn registry(written: &str) -> &str {
    let host = written.split_once("://").map_or(written, |(_, rest)| rest);
    match host.split('/').next().unwrap_or_default() {
        "docker.io" | "index.docker.io" | "registry-1.docker.io" => DOCKER_HUB,
        host => host,
    }
}

/// An image's name, parted for the daemon.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Reference<'a> {
    /// The name without tag and digest.
    pub(super) repository: &'a str,
    /// The digest, or else the tag; `latest` without either.
    pub(super) version: &'a str,
    is_digest: bool,
}

impl<'a> Reference<'a> {
    /// The parts of a name; `None` for an image's id, and for what is no name.
    pub(super) fn parse(name: &'a str) -> Option<Self> {
        let name = image(name)?;
        let (name, digest) = match name.split_once('@') {
            Some((name, digest)) => (name, Some(digest)),
            None => (name, None),
        };
        // A colon before the last slash belongs to a port.
        let last = name.rfind('/').map_or(0, |slash| slash + 1);
        let (repository, tag) = match name[last..].split_once(':') {
            Some((short, tag)) => (&name[..last + short.len()], Some(tag)),
            None => (name, None),
        };
        let version = digest.or(tag).unwrap_or("latest");
        let is_id = |text: &str| text.len() == 64 && text.bytes().all(|b| b.is_ascii_hexdigit());
        if repository.is_empty() || version.is_empty() || is_id(repository) {
            return None;
        }
        if repository == "sha256" && is_id(version) {
            return None;
        }
        Some(Self {
            repository,
            version,
            is_digest: digest.is_some(),
        })
    }

    /// How to name the image once it is here.
    pub(super) fn full(&self) -> String {
        let mark = if self.is_digest { '@' } else { ':' };
        format!("{}{mark}{}", self.repository, self.version)
    }

    /// The registry that has it, as Docker's credentials name it.
    pub(super) fn registry(&self) -> &'a str {
        match self.repository.split_once('/') {
            Some((host, _)) if host == "localhost" || host.contains(['.', ':']) => host,
            _ => DOCKER_HUB,
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::*;

    #[test]
    fn a_name_cannot_leave_its_place_in_the_url() {
        for good in ["web", "a.b-c_1", "1a00102f43f6"] {
            assert!(is_container_name(good), "{good}");
        }
        for bad in [
            "", "..", "../x", "a/b", "a?b", "a#b", "a%2fb", "a b", "-x", "ä", "a\0",
        ] {
            assert!(!is_container_name(bad), "{bad}");
        }
        assert_eq!(container("/web"), Some("web"));
        assert_eq!(container("/web/x"), None);
        assert_eq!(part("my net%2f?ä"), Some("my%20net%252f%3F%C3%A4".into()));
        for bad in ["", ".", "..", "a/b", "a\n"] {
            assert_eq!(part(bad), None, "{bad}");
        }
        for bad in [
            "", "/a", "a/", "a//b", "a/../b", "a b", "a?b", "a%2e", "a\\b", "a\tb", "ä",
        ] {
            assert_eq!(image(bad), None, "{bad}");
        }
    }

    #[test]
    fn a_linked_container_keeps_its_own_name() {
        let names = ["/other/alias", "/web"].map(Into::into);
        assert_eq!(own(&names), Some("web"));
        assert_eq!(own(&[]), None);
    }

    #[test]
    fn a_registry_has_one_name_however_it_is_written() {
        for (written, name) in [
            ("r.example:5000", "r.example:5000"),
            ("https://r.example/v2/", "r.example"),
            ("docker.io", DOCKER_HUB),
            ("registry-1.docker.io", DOCKER_HUB),
            (DOCKER_HUB, DOCKER_HUB),
            ("", ""),
        ] {
            assert_eq!(registry(written), name, "{written}");
        }
    }

    #[test]
    fn an_image_s_name_has_a_repository_a_version_and_a_registry() {
        let hub = "https://index.docker.io/v1/";
        let digest = format!("sha256:{}", "a".repeat(64));
        for (name, repository, version, registry) in [
            ("busybox", "busybox", "latest", hub),
            ("a/b:1", "a/b", "1", hub),
            ("localhost/a", "localhost/a", "latest", "localhost"),
            (
                "127.0.0.1:5000/a/b",
                "127.0.0.1:5000/a/b",
                "latest",
                "127.0.0.1:5000",
            ),
            ("[::1]:5000/a:v1.2", "[::1]:5000/a", "v1.2", "[::1]:5000"),
            (&format!("x.org/a:1@{digest}"), "x.org/a", &digest, "x.org"),
        ] {
            let parsed = Reference::parse(name).unwrap();
            assert_eq!(
                (parsed.repository, parsed.version, parsed.registry()),
                (repository, version, registry),
                "{name}"
            );
        }
        assert_eq!(Reference::parse("a:1").unwrap().full(), "a:1");
        let full = Reference::parse(&format!("a:1@{digest}")).unwrap().full();
        assert_eq!(full, format!("a@{digest}"));
        for no_name in ["a:", "", ":1", "@x", &digest, &"a".repeat(64)] {
            assert_eq!(Reference::parse(no_name), None, "{no_name}");
        }
    }
}

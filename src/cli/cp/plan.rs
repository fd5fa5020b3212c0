//! Where things go: the rules of `docker cp`. Pure.

use hub_protocol::kind::transfer::PathStat;

use crate::archive::ignore::clean;

/// What an argument names.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Place {
    /// `-`: an archive on a standard stream.
    Stream,
    /// A path here.
    Local(String),
    /// A path in a container.
    Remote(Remote),
}

/// A path in a container.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Remote {
    pub(super) node: String,
    pub(super) container: String,
    pub(super) path: String,
}

/// Why an argument names nothing, or things do not fit.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub(in crate::cli) enum PlaceError {
    #[error(
        "{0:?} names no path in a container; it takes NODE/CONTAINER:PATH, and a path here that looks so begins with ./"
    )]
    Remote(String),
    #[error("an empty path names nothing")]
    Empty,
    #[error("{0} is a file; no directory is copied onto it")]
    DirectoryOntoFile(String),
    #[error("{0} is no directory; without the / at its end, it would become a file")]
    NoDirectory(String),
}

impl Place {
    /// Reads an argument. What begins with `/` or `.`, or has no colon, is here.
    pub(super) fn parse(text: &str) -> Result<Self, PlaceError> {
        if text.is_empty() {
            return Err(PlaceError::Empty);
        }
        if text == "-" {
            return Ok(Self::Stream);
        }
        let local = text.starts_with('/') || text.starts_with('.');
        let Some((target, path)) = text.split_once(':').filter(|_| !local) else {
            return Ok(Self::Local(text.to_owned()));
        };
        match target.split_once('/') {
            Some((node, container))
                if !node.is_empty() && !container.is_empty() && !path.is_empty() =>
            {
                Ok(Self::Remote(Remote {
                    node: node.to_owned(),
                    container: container.to_owned(),
                    path: path.to_owned(),
                }))
            }
            _ => Err(PlaceError::Remote(text.to_owned())),
        }
    }
}

/// What stands at a destination.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Target {
    pub(super) path: String,
    pub(super) exists: bool,
    pub(super) is_dir: bool,
}

/// Where something lands.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Landing {
    /// The directory that it is unpacked into.
    pub(super) directory: String,
    /// The name that it gets there; its own without.
    pub(super) becomes: Option<String>,
}

/// Where something lands at a target: in a directory that is there, or under the target's name.
pub(super) fn land(target: &Target, source_is_dir: bool) -> Result<Landing, PlaceError> {
    if target.is_dir {
        return Ok(Landing {
            directory: target.path.clone(),
            becomes: None,
        });
    }
    if target.exists && source_is_dir {
        return Err(PlaceError::DirectoryOntoFile(target.path.clone()));
    }
    // A slash at the end says that it is a directory.
    let asserts = target.path.ends_with('/') || is_contents(&target.path);
    if asserts && !source_is_dir {
        return Err(PlaceError::NoDirectory(target.path.clone()));
    }
    Ok(Landing {
        directory: parent(&target.path),
        becomes: Some(base(&target.path)),
    })
}

/// Whether a path means what is in a directory, and not that itself.
pub(super) fn is_contents(path: &str) -> bool {
    path == "." || path.ends_with("/.") || clean(path) == "/"
}

/// The path to ask a daemon for: clean, with a `/` or `/.` at its end if it had one.
pub(super) fn request(path: &str) -> String {
    let cleaned = clean(path);
    match cleaned.as_str() {
        // Asked for /, the daemon gives paths that begin with it.
        "/" => "/.".to_owned(),
        "." => ".".to_owned(),
        _ if is_contents(path) => format!("{cleaned}/."),
        _ if path.ends_with('/') => format!("{cleaned}/"),
        _ => cleaned,
    }
}

/// The last name of a path.
pub(super) fn base(path: &str) -> String {
    let path = clean(path);
    path.rsplit('/').next().unwrap_or_default().to_owned()
}

/// The directory that a path is in.
pub(super) fn parent(path: &str) -> String {
    let path = clean(path);
    match path.rsplit_once('/') {
        None => ".".to_owned(),
        Some(("", _)) => "/".to_owned(),
        Some((parent, _)) => parent.to_owned(),
    }
}

/// Whether it is a directory, by the mode of Go's files.
pub(super) fn is_dir(stat: &PathStat) -> bool {
    stat.mode & (1 << 31) != 0
}

/// Where a link at a path leads to; nothing for anything else.
pub(super) fn link_target(path: &str, stat: &PathStat) -> Option<String> {
    let is_link = stat.mode & (1 << 27) != 0;
    let target = Some(&stat.link_target).filter(|target| is_link && !target.is_empty())?;
    Some(if target.starts_with('/') {
        target.clone()
    } else {
        clean(&format!("{}/{target}", parent(path)))
    })
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::*;

    #[test]
    fn arguments_name_places() {
        let remote = |node: &str, container: &str, path: &str| {
            Place::Remote(Remote {
                node: node.into(),
                container: container.into(),
                path: path.into(),
            })
        };
        assert_eq!(Place::parse("-"), Ok(Place::Stream));
        for here in ["a", "dir/a", "./n/c:x", "/n/c:x", "../a:b"] {
            assert_eq!(Place::parse(here), Ok(Place::Local(here.into())));
        }
        assert_eq!(Place::parse("n/c:/etc"), Ok(remote("n", "c", "/etc")));
        assert_eq!(Place::parse("n/c:a:b"), Ok(remote("n", "c", "a:b")));
        for wrong in ["c:/x", "n/:x", "/c:"] {
            assert!(
                !matches!(Place::parse(wrong), Ok(Place::Remote(_))),
                "{wrong}"
            );
        }
        for wrong in ["c:/x", "n/:x", "n/c:"] {
            assert_eq!(Place::parse(wrong), Err(PlaceError::Remote(wrong.into())));
        }
        assert_eq!(Place::parse(""), Err(PlaceError::Empty));
    }

    #[test]
    fn things_land_where_docker_puts_them() {
        let land = |path: &str, exists, is_dir, source_is_dir| {
            let target = Target {
                path: path.into(),
                exists,
                is_dir,
            };
            let landing = land(&target, source_is_dir);
            landing.map(|landing| (landing.directory, landing.becomes))
        };
        let at = |directory: &str, name: Option<&str>| {
            Ok((directory.to_owned(), name.map(str::to_owned)))
        };
        // A directory that is there takes everything by its own name.
        assert_eq!(land("/srv", true, true, false), at("/srv", None));
        assert_eq!(land("/srv/", true, true, true), at("/srv/", None));
        // Else it is the new name.
        assert_eq!(land("/srv/f", true, false, false), at("/srv", Some("f")));
        assert_eq!(land("/srv/f", false, false, false), at("/srv", Some("f")));
        assert_eq!(land("new", false, false, true), at(".", Some("new")));
        assert_eq!(land("a/new/", false, false, true), at("a", Some("new")));
        assert_eq!(land("a/new/.", false, false, true), at("a", Some("new")));
        assert_eq!(land("/f", false, false, false), at("/", Some("f")));
        let onto = Err(PlaceError::DirectoryOntoFile("/srv/f".into()));
        assert_eq!(land("/srv/f", true, false, true), onto);
        for path in ["/srv/new/", "/srv/new/."] {
            let refused = Err(PlaceError::NoDirectory(path.into()));
            assert_eq!(land(path, false, false, false), refused);
            assert_eq!(land(path, true, false, false), refused);
        }
    }

    #[test]
    fn daemons_are_asked_for_clean_paths() {
        for (path, asked, contents) in [
            ("/etc/nginx", "/etc/nginx", false),
            ("/etc//nginx/", "/etc/nginx/", false),
            ("/etc/nginx/.", "/etc/nginx/.", true),
            ("etc/../srv", "srv", false),
            ("/", "/.", true),
            ("/..", "/.", true),
            (".", ".", true),
        ] {
            assert_eq!(
                (request(path).as_str(), is_contents(path)),
                (asked, contents),
                "{path}"
            );
        }
        for (path, expected) in [
            ("/a/b", "b"),
            ("/a/b/", "b"),
            ("/a/b/.", "b"),
            ("/a/b/../c", "c"),
            ("/", ""),
        ] {
            assert_eq!(base(path), expected, "{path}");
        }
    }

    #[test]
    fn links_lead_from_where_they_stand() {
        let link = |target: &str| PathStat {
            name: "l".into(),
            size: 0,
            mode: 1 << 27 | 0o777,
            mtime: String::new(),
            link_target: target.into(),
        };
        assert_eq!(link_target("/a/l", &link("../b")), Some("/b".into()));
        assert_eq!(link_target("/a/l", &link("/c/d")), Some("/c/d".into()));
        let file = PathStat {
            mode: 0o644,
            ..link("x")
        };
        assert_eq!(link_target("/a/l", &file), None);
        let dir = PathStat {
            mode: 1 << 31 | 0o755,
            ..link("")
        };
        assert!(is_dir(&dir) && !is_dir(&file));
    }
}

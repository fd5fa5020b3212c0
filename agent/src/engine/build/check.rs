//! What is wrong with a wish for a build, as far as that can be seen before anything is uploaded.

use hub_protocol::kind::build::Build;
use hub_protocol::kind::{Failure, FailureCode};

/// The most bytes of an image's name without its tag.
const MAX_NAME: usize = 255;
/// The most bytes of a tag.
const MAX_TAG: usize = 128;

/// Refuses what no builder takes: malformed names, platforms, names of arguments and labels.
///
/// # Errors
/// Names what is wrong, and never a value of a build argument.
pub(crate) fn check(build: &Build) -> Result<(), Failure> {
    let invalid = |why: String| Err(Failure::new(FailureCode::INVALID, why));
    for tag in &build.tags {
        if !is_reference(tag) {
            return invalid(format!(
                "{tag:?} cannot be the name of an image: that is [HOST[:PORT]/]PATH[:TAG], with a \
                 path in lower case"
            ));
        }
    }
    if let Some(platform) = &build.platform
        && !is_platform(platform)
    {
        return invalid(format!(
            "{platform:?} is no platform: that is OS[/ARCH[/VARIANT]], as in linux/arm64"
        ));
    }
    for (what, value) in [
        ("path of a Dockerfile", &build.dockerfile),
        ("name of a stage", &build.target),
    ] {
        if value
            .as_ref()
            .is_some_and(|value| value.is_empty() || value.contains('\0'))
        {
            return invalid(format!("the {what} is empty or holds a NUL byte"));
        }
    }
    for (what, name) in (build.build_args.keys().map(|name| ("build argument", name)))
        .chain(build.labels.keys().map(|name| ("label", name)))
        .chain(build.credentials.keys().map(|name| ("registry", name)))
    {
        if name.is_empty() || name.contains('\0') {
            return invalid(format!("the name of a {what} is empty or holds a NUL byte"));
        }
    }
    Ok(())
}

/// Whether it is `[HOST[:PORT]/]PATH[:TAG]`.
fn is_reference(reference: &str) -> bool {
    let path = reference.rfind('/').map_or(0, |slash| slash + 1);
    let (name, tag) = match reference[path..].find(':') {
        Some(colon) => (
            &reference[..path + colon],
            Some(&reference[path + colon + 1..]),
        ),
        None => (reference, None),
    };
    let (host, path) = match name.split_once('/') {
        Some((first, rest)) if is_host_like(first) => (Some(first), rest),
        _ => (None, name),
    };
    name.len() <= MAX_NAME
        && host.is_none_or(is_host)
        && path.split('/').all(is_component)
        && tag.is_none_or(is_tag)
}

/// Whether the first part of a name is a host and not a part of the path.
fn is_host_like(first: &str) -> bool {
    first == "localhost"
        || first.contains(['.', ':'])
        || first.contains(|c: char| c.is_ascii_uppercase())
}

fn is_host(host: &str) -> bool {
    let (name, port) = match host.split_once(':') {
        Some((name, port)) => (name, Some(port)),
        None => (host, None),
    };
    let label = |label: &str| {
        let inner = |c: char| c.is_ascii_alphanumeric() || c == '-';
        !label.is_empty()
            && label.chars().all(inner)
            && !label.starts_with('-')
            && !label.ends_with('-')
    };
    name.split('.').all(label)
        && port.is_none_or(|port| {
            !port.is_empty() && port.len() <= 5 && port.bytes().all(|byte| byte.is_ascii_digit())
        })
}

/// Whether it is words of lower case letters and digits, with `.`, `_`, `__` or dashes between.
fn is_component(component: &str) -> bool {
    let word = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit();
    component.starts_with(word)
        && component.ends_with(word)
        && component.split(word).all(|between| {
            matches!(between, "" | "." | "_" | "__") || between.chars().all(|c| c == '-')
        })
}

fn is_tag(tag: &str) -> bool {
    let inner = |c: char| c.is_ascii_alphanumeric() || "_.-".contains(c);
    !tag.is_empty()
        && tag.len() <= MAX_TAG
        && tag.chars().all(inner)
        && !tag.starts_with(['.', '-'])
}

fn is_platform(platform: &str) -> bool {
    let inner = |c: char| c.is_ascii_alphanumeric() || "_.-".contains(c);
    let part = |part: &str| !part.is_empty() && part.chars().all(inner);
    platform.split('/').all(part) && platform.split('/').count() <= 3
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::*;

    #[test]
    fn names_of_images_are_told_from_what_cannot_be_one() {
        let long = "a".repeat(MAX_NAME + 1);
        for good in [
            "app",
            "app:1.0",
            "team/app",
            "127.0.0.1:5000/team/app:v1_2-x",
            "localhost/app",
            "Host.example/app",
            "HOST/app",
            "a__b/c.d/e---f:_",
            "registry.example.org/a",
        ] {
            assert!(is_reference(good), "{good}");
        }
        for bad in [
            "",
            ":1",
            "App",
            "BAD:::tag",
            "app:",
            "app:-x",
            "app:a/b:",
            "a//b",
            "/a",
            "a/",
            "a..b",
            "a___b",
            "-a",
            "a-",
            "a b",
            "host:port/a",
            "host.-x/a",
            "é",
            "a@sha256:00",
            long.as_str(),
        ] {
            assert!(!is_reference(bad), "{bad}");
        }
        assert!(is_tag(&"t".repeat(MAX_TAG)) && !is_tag(&"t".repeat(MAX_TAG + 1)));
    }

    #[test]
    fn platforms_have_up_to_three_parts() {
        for good in ["linux", "linux/amd64", "linux/arm/v7", "windows/amd64"] {
            assert!(is_platform(good), "{good}");
        }
        for bad in ["", "/", "linux/", "linux//v7", "a/b/c/d", "linux/amd 64"] {
            assert!(!is_platform(bad), "{bad}");
        }
    }

    #[test]
    fn a_refusal_names_what_is_wrong_and_no_secret() {
        let refused = |build: Build| check(&build).unwrap_err();
        let tag = refused(Build {
            tags: vec!["fine".into(), "NOT fine".into()],
            ..Build::default()
        });
        assert_eq!(tag.code, FailureCode::INVALID);
        assert!(tag.message.contains("NOT fine"));
        let argument = refused(Build {
            build_args: [(String::new(), Some("secret".into()))].into(),
            ..Build::default()
        });
        assert!(argument.message.contains("build argument"));
        assert!(!argument.message.contains("secret"));
        let path = refused(Build {
            dockerfile: Some(String::new()),
            ..Build::default()
        });
        assert!(path.message.contains("Dockerfile"));
        assert_eq!(check(&Build::default()), Ok(()));
    }
}

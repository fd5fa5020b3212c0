//! Exposures as people read them. Pure.

use std::fmt::Write as _;

use hub_server::api::types::{
    Access, CreatedExposure, Exposure, ExposureReplica, Exposures, Protocol,
};

use crate::cli::show::time;
use crate::cli::table::table;
use crate::cli::units::binary;

/// An exposure that was just made.
pub(super) fn created(created: &CreatedExposure) -> String {
    let exposure = &created.exposure;
    let who = match (exposure.access, created.urls.len()) {
        _ if exposure.listen.is_some() => "Whoever reaches this address of the hub gets there:",
        (Access::Login, _) => "Operators who are logged in reach it:",
        _ if exposure.token.is_none() => "Whoever knows this URL reaches it:",
        (Access::Token, 0 | 1) => "The URL holds its token, and is shown this once:",
        (Access::Token, _) => {
            "Who shows the token reaches it. The first URL holds it, and is shown this once:"
        }
        (Access::Public, 0 | 1) => "Whoever knows this URL reaches it; it is shown this once:",
        (Access::Public, _) => {
            "Whoever knows one of these URLs reaches it; the first is shown this once:"
        }
    };
    let mut text = format!(
        "{} is exposed. {who}\n\n{}",
        places(exposure),
        urls(created)
    );
    if let Some(expires) = expiry(exposure) {
        // Writing to a string does not fail.
        let _ = writeln!(text, "\nThe URL with the token holds until {expires}.");
    }
    // A name has a URL of its own where the hub has a domain.
    if let Some(name) = exposure
        .name
        .as_ref()
        .filter(|_| exposure.addresses.is_empty())
    {
        let _ = writeln!(
            text,
            "\nThe name {name} has no URL until hub-server is given a --domain."
        );
    }
    let _ = writeln!(text, "\n`hub exposures rm {}` ends that.", exposure.id);
    text
}

/// An exposure that got a new token.
pub(super) fn rotated(rotated: &CreatedExposure) -> String {
    let exposure = &rotated.exposure;
    let token = exposure.token.as_ref();
    let old = match token.and_then(|token| token.previous_until.as_deref()) {
        Some(until) => format!("The old one is good until {}.", time(until)),
        None => "The old one is good no longer.".into(),
    };
    let until =
        expiry(exposure).map_or_else(String::new, |until| format!(" It holds until {until}."));
    let url = rotated.urls.first().map_or("", |url| url.expose());
    format!(
        "Exposure {id} has a new URL, which is shown this once:\n\n  {url}\n\n{old}{until}\n\n\
         `hub exposures revoke {id}` ends that.\n",
        id = exposure.id,
    )
}

/// All of them.
pub(super) fn all(exposures: &Exposures) -> String {
    if exposures.exposures.is_empty() {
        return "Nothing is exposed. `hub expose NODE PORT` exposes a port.\n".into();
    }
    let rows: Vec<_> = exposures.exposures.iter().map(row).collect();
    let headings = [
        "ID", "NODE", "PORT", "NAME", "CARRIES", "ACCESS", "TOKEN", "CREATED",
    ];
    table(headings, &rows)
}

fn row(exposure: &Exposure) -> [String; 8] {
    let more = match exposure.replicas.len() {
        0 | 1 => String::new(),
        count => format!(" +{}", count - 1),
    };
    let container = exposure.replicas.first().and_then(container);
    [
        exposure.id.to_string(),
        format!("{}{more}", exposure.node),
        match container {
            Some(container) => format!("{container}:{}", exposure.port),
            None => exposure.port.to_string(),
        },
        exposure.name.clone().unwrap_or_else(|| "-".into()),
        carries(exposure),
        if exposure.listen.is_some() {
            "public".into()
        } else {
            access(exposure.access).into()
        },
        match (&exposure.token, expiry(exposure)) {
            (None, _) => "-".into(),
            (Some(_), None) => "yes".into(),
            (Some(_), Some(until)) => format!("until {until}"),
        },
        time(&exposure.created),
    ]
}

/// All of one.
pub(super) fn one(exposure: &Exposure) -> String {
    let mut rows = vec![("Exposure", exposure.id.to_string())];
    rows.extend(exposure.name.iter().map(|name| ("Name", name.clone())));
    let error = exposure.listen_error.iter();
    rows.extend(error.map(|error| ("Not listening", error.clone())));
    let addresses = exposure.addresses.iter();
    rows.extend(addresses.map(|address| ("Reached at", address.clone())));
    if let Some(token) = &exposure.token {
        let until = match expiry(exposure) {
            Some(until) => format!("holds until {until}"),
            None => "holds until it is revoked".into(),
        };
        rows.push(("Token", until));
        let old = token.previous_until.as_deref();
        rows.extend(old.map(|until| ("Old token", format!("good until {}", time(until)))));
    }
    rows.push(("Access", access(exposure.access).into()));
    rows.push(("Carries", carries(exposure)));
    for replica in &exposure.replicas {
        let state = if replica.connected {
            "connected"
        } else {
            "away"
        };
        rows.push(("Replica", format!("{}, {state}", place(replica))));
    }
    let settings = &exposure.settings;
    let limits = [
        (
            "Body",
            settings
                .max_body
                .map(|bytes| format!("{} at most", binary(bytes))),
        ),
        (
            "Requests",
            settings
                .max_requests
                .map(|count| format!("{count} in flight at most")),
        ),
        (
            "Sessions",
            settings
                .max_sessions
                .map(|count| format!("{count} a replica at most")),
        ),
        (
            "Rate",
            settings
                .rate
                .map(|count| format!("{count} a second for each client at most")),
        ),
        ("Sticky", settings.sticky.then(|| "yes".into())),
    ];
    rows.extend(
        limits
            .into_iter()
            .filter_map(|(name, limit)| Some((name, limit?))),
    );
    rows.push(("Created", time(&exposure.created)));
    rows.iter().fold(String::new(), |text, (name, value)| {
        text + &format!("{name:<14} {value}\n")
    })
}

/// As in "Port 80 of container web of shop-4 and port 80 of shop-5".
fn places(exposure: &Exposure) -> String {
    let places: Vec<_> = exposure.replicas.iter().map(place).collect();
    let text = places.join(" and ");
    let mut letters = text.chars();
    match letters.next() {
        Some(first) => first.to_uppercase().chain(letters).collect(),
        None => text,
    }
}

fn place(replica: &ExposureReplica) -> String {
    let of = match (&replica.container, &replica.label) {
        (Some(name), _) => format!(" of container {name}"),
        (None, Some(label)) => format!(" of the container labelled {label}"),
        (None, None) => String::new(),
    };
    format!("port {}{of} of {}", replica.port, replica.node)
}

fn container(replica: &ExposureReplica) -> Option<String> {
    let name = replica.container.clone();
    name.or_else(|| replica.label.as_ref().map(|label| format!("[{label}]")))
}

fn urls(created: &CreatedExposure) -> String {
    let urls = created.urls.iter();
    urls.fold(String::new(), |text, url| text + "  " + url.expose() + "\n")
}

fn expiry(exposure: &Exposure) -> Option<String> {
    exposure.token.as_ref()?.expires.as_deref().map(time)
}

fn access(access: Access) -> &'static str {
    match access {
        Access::Public => "public",
        Access::Token => "token",
        Access::Login => "login",
    }
}

fn carries(exposure: &Exposure) -> String {
    let name = match exposure.protocol {
        Protocol::Http => "HTTP",
        Protocol::Http2 => "HTTP/2",
        Protocol::Tcp => "TCP",
        Protocol::Udp => "UDP",
    };
    match exposure.listening.as_ref().or(exposure.listen.as_ref()) {
        Some(address) if exposure.listen_error.is_some() => {
            format!("{name} from {address} (not listening)")
        }
        Some(address) => format!("{name} from {address}"),
        None => name.into(),
    }
}

#[cfg(test)]
mod tests {
    use hub_server::api::types::{ExposureSettings, ExposureToken};

    use super::*;

    const NOON: &str = "2026-01-31T12:00:00.123Z";
    const NIGHT: &str = "2026-02-01T00:00:00.000Z";

    fn shop() -> Exposure {
        Exposure {
            id: 3,
            node: "shop-4".into(),
            port: 8080,
            replicas: vec![ExposureReplica {
                node: "shop-4".into(),
                port: 8080,
                container: None,
                label: None,
                connected: true,
            }],
            name: Some("shop".into()),
            access: Access::Public,
            protocol: Protocol::Http,
            listen: None,
            listening: None,
            listen_error: None,
            token: Some(ExposureToken {
                expires: None,
                previous_until: None,
            }),
            settings: ExposureSettings::default(),
            addresses: vec!["http://shop.example:7480/".into()],
            created: NOON.into(),
        }
    }

    fn with_urls(exposure: Exposure, urls: &[&str]) -> CreatedExposure {
        let urls = urls.iter().map(|url| (*url).to_owned().into()).collect();
        CreatedExposure { exposure, urls }
    }

    #[test]
    fn an_exposure_comes_with_its_urls() {
        let urls = ["http://h:7480/v1/data/t/", "http://shop.example:7480/"];
        let text = created(&with_urls(shop(), &urls));
        assert!(
            urls.iter().all(|url| text.contains(url)) && text.contains("rm 3"),
            "{text}"
        );
        assert!(
            text.starts_with("Port 8080 of shop-4 is exposed. "),
            "{text}"
        );
        let nameless = Exposure {
            addresses: vec![],
            ..shop()
        };
        let text = created(&with_urls(nameless, &urls[..1]));
        assert!(text.contains("shop has no URL until"), "{text}");
        let expected = "\
ID  NODE    PORT  NAME  CARRIES  ACCESS  TOKEN  CREATED
3   shop-4  8080  shop  HTTP     public  yes    2026-01-31 12:00:00Z
";
        let exposures = vec![shop()];
        assert_eq!(all(&Exposures { exposures }), expected);
    }

    #[test]
    fn who_gets_in_is_said() {
        let says = |exposure: Exposure, urls: &[&str], what: &str| {
            let text = created(&with_urls(exposure, urls));
            assert!(text.contains(what), "{text}");
        };
        let (both, one) = (["http://t/", "http://n/"], ["http://n/"]);
        says(shop(), &both, "one of these URLs reaches it; the first");
        let token = Exposure {
            access: Access::Token,
            ..shop()
        };
        says(token, &both, "Who shows the token");
        let login = Exposure {
            access: Access::Login,
            ..shop()
        };
        says(login, &both, "Operators who are logged in");
        let named = Exposure {
            token: None,
            ..shop()
        };
        says(named, &one, "Whoever knows this URL reaches it:");
        let tcp = Exposure {
            listen: Some("127.0.0.1:5432".into()),
            token: None,
            name: None,
            protocol: Protocol::Tcp,
            ..shop()
        };
        says(
            tcp.clone(),
            &["tcp://127.0.0.1:5432"],
            "Whoever reaches this address",
        );
        assert!(
            all(&Exposures {
                exposures: vec![tcp]
            })
            .contains("TCP from 127.0.0.1:5432")
        );
    }

    #[test]
    fn a_new_token_comes_with_what_becomes_of_the_old_one() {
        let urls = ["http://t/", "http://n/"];
        let text = rotated(&with_urls(shop(), &urls));
        assert!(
            text.contains("\n  http://t/\n") && text.contains("good no longer"),
            "{text}"
        );
        let graced = Exposure {
            token: Some(ExposureToken {
                expires: Some(NIGHT.into()),
                previous_until: Some(NOON.into()),
            }),
            ..shop()
        };
        let text = rotated(&with_urls(graced, &urls));
        assert!(text.contains("The old one is good until 2026-01-31 12:00:00Z. It holds until 2026-02-01 00:00:00Z."), "{text}");
    }

    #[test]
    fn one_is_shown_whole() {
        let mut exposure = shop();
        exposure.replicas.push(ExposureReplica {
            node: "shop-5".into(),
            port: 80,
            container: Some("web".into()),
            label: None,
            connected: false,
        });
        exposure.settings.max_body = Some(100 << 20);
        exposure.settings.sticky = true;
        exposure.token = Some(ExposureToken {
            expires: Some(NIGHT.into()),
            previous_until: None,
        });
        let expected = "\
Exposure       3
Name           shop
Reached at     http://shop.example:7480/
Token          holds until 2026-02-01 00:00:00Z
Access         public
Carries        HTTP
Replica        port 8080 of shop-4, connected
Replica        port 80 of container web of shop-5, away
Body           100MiB at most
Sticky         yes
Created        2026-01-31 12:00:00Z
";
        assert_eq!(one(&exposure), expected);
    }
}

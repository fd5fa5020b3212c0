#![allow(clippy::unwrap_used)]

use clap::Parser as _;

use super::*;
use crate::cli::{Cli, Command};

fn expose(line: &str) -> Result<NewExposure, String> {
    let line = format!("hub expose {line}");
    let cli = Cli::try_parse_from(line.split(' ')).map_err(|error| error.to_string())?;
    match cli.command {
        Command::Expose(arguments) => arguments.wanted().map_err(|error| error.to_string()),
        other => panic!("{other:?}"),
    }
}

fn set(line: &str) -> Result<EditExposure, String> {
    let line = format!("hub exposures set 3 {line}");
    let cli = Cli::try_parse_from(line.trim().split(' ')).map_err(|error| error.to_string())?;
    let Command::Exposures(ExposuresArgs {
        command: Some(ExposuresCommand::Set(arguments)),
    }) = cli.command
    else {
        panic!("{line}");
    };
    arguments.wanted().map_err(|error| error.to_string())
}

#[test]
fn a_port_is_all_that_is_needed() {
    let expected = NewExposure {
        node: "shop-4".into(),
        port: 8080,
        ..NewExposure::default()
    };
    assert_eq!(expose("shop-4 8080"), Ok(expected));
}

#[test]
fn an_exposure_is_what_was_said() {
    let line = "a 80 --label app=web --replica b --replica c:81 --name web --access token --http2 \
                --expires 30d --max-body 100MB --max-requests 9 --max-sessions 8 --rate 7 --sticky";
    let other = |node: &str, port| NewReplica {
        node: node.into(),
        port,
        container: None,
        label: Some("app=web".into()),
    };
    let expected = NewExposure {
        node: "a".into(),
        port: 80,
        container: None,
        label: Some("app=web".into()),
        more_replicas: vec![other("b", 80), other("c", 81)],
        name: Some("web".into()),
        access: Access::Token,
        protocol: Protocol::Http2,
        listen: None,
        token: None,
        expires_s: Some(30 * 86_400),
        settings: ExposureSettings {
            max_body: Some(100 << 20),
            max_requests: Some(9),
            max_sessions: Some(8),
            rate: Some(7),
            sticky: true,
        },
    };
    assert_eq!(expose(line), Ok(expected));
    assert_eq!(
        expose("a 80 --name web --no-token").unwrap().token,
        Some(false)
    );
}

#[test]
fn bytes_are_for_the_hubs_own_machine_unless_it_is_said() {
    let listen = |line: &str| {
        let new = expose(line).unwrap();
        (new.protocol, new.listen.unwrap())
    };
    let own = (Protocol::Tcp, "127.0.0.1:5432".into());
    assert_eq!(listen("a 5432 --tcp"), own);
    let all = (Protocol::Udp, "[::]:53".into());
    assert_eq!(listen("a 5353 --udp --listen [::]:53"), all);
}

#[test]
fn what_makes_no_sense_is_refused() {
    for wrong in [
        "a 0",
        "a 80 --container web --label app",
        "a 80 --tcp --udp",
        "a 80 --tcp --http2",
        "a 80 --listen 0.0.0.0:80",
        "a 80 --tcp --listen 80",
        "a 80 --replica b:0",
        "a 80 --replica :80",
        "a 80 --access everybody",
        "a 80 --expires 30",
        "a 80 --no-token",
        "a 80 --max-body lots",
    ] {
        assert!(expose(wrong).is_err(), "{wrong}");
    }
    for wrong in [
        "",
        "--sticky",
        "--rate x",
        "--replica b",
        "--label app",
        "--http 3",
    ] {
        assert!(set(wrong).is_err(), "{wrong}");
    }
}

#[test]
fn a_change_is_what_was_said_and_nothing_else() {
    let edit = set("--name off --access login --http 2 --max-body off --rate 5 --sticky on");
    let expected = EditExposure {
        name: Edit::Set(None),
        access: Edit::Set(Access::Login),
        protocol: Edit::Set(Protocol::Http2),
        settings: EditSettings {
            max_body: Edit::Set(None),
            rate: Edit::Set(Some(5)),
            sticky: Edit::Set(true),
            ..EditSettings::default()
        },
        ..EditExposure::default()
    };
    assert_eq!(edit, Ok(expected));
    let edit = set("--replica a:80 --replica b:81 --container web").unwrap();
    let Edit::Set(replicas) = edit.replicas else {
        panic!("{edit:?}");
    };
    let places: Vec<_> = replicas
        .iter()
        .map(|replica| (&*replica.node, replica.port, replica.container.as_deref()))
        .collect();
    assert_eq!(places, [("a", 80, Some("web")), ("b", 81, Some("web"))]);
}

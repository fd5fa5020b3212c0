//! Images: import, build with either builder, save, load.

use std::path::Path;

use super::ways::{Said, Way, Ways};

/// A context with all kinds of things in it, and some that are left out.
fn context(ways: &Ways) -> String {
    let dir = ways.dir().join("context");
    let dockerfile = format!(
        "FROM {} AS first\nARG WHO=nobody\nCOPY . /in/\n\
         RUN echo hello $WHO && ls /in /in/sub\n\
         FROM first\nENV A=b\nRUN head -c 100000 /in/large >/out\nCMD [\"cat\", \"/in/file\"]\n",
        ways.image()
    );
    std::fs::create_dir_all(dir.join("sub")).unwrap();
    let large: Vec<u8> = (0..6_000_000_u32).flat_map(u32::to_le_bytes).collect();
    for (name, content) in [
        ("Dockerfile", dockerfile.as_bytes()),
        (
            "Broken",
            format!("FROM {}\nRUN exit 5\n", ways.image()).as_bytes(),
        ),
        ("Senseless", b"FROM scratch\nMAKE sense\n"),
        (".dockerignore", b"left-out\nsub/*.tmp\n"),
        ("file", b"content\n"),
        ("large", &large),
        ("left-out", b"x"),
        ("sub/one", b"1"),
        ("sub/two.tmp", b"2"),
    ] {
        std::fs::write(dir.join(name), content).unwrap();
    }
    dir.display().to_string()
}

fn build(way: &Way, buildkit: bool, args: &[&str]) -> Said {
    let quiet: &[&str] = if buildkit {
        &["--progress", "plain"]
    } else {
        &[]
    };
    let flags = ["build", "--network", "none", "--no-cache"];
    let mut command = way.docker(&[&flags[..], quiet, args].concat());
    command.env("DOCKER_BUILDKIT", if buildkit { "1" } else { "0" });
    Said::of(command)
}

/// Whether this CLI speaks to BuildKit: by itself, or with its plugin.
pub(super) fn has_buildkit(ways: &Ways, cli: &Path) -> bool {
    let asks = |args: &[&str]| {
        let mut command = ways.direct().program(cli);
        command.args(args);
        Said::of(command)
    };
    let major = asks(&["--version"]).text();
    let major = major.split_whitespace().nth(2).unwrap_or_default();
    let major: u32 = major.split('.').next().unwrap().parse().unwrap();
    // From 23 on the client has no BuildKit of its own.
    major < 23 || asks(&["buildx", "version"]).code == Some(0)
}

#[test]
#[ignore = "needs a Docker daemon"]
fn docker_cli_builds_the_same_images() {
    let ways = Ways::open("build");
    let context = context(&ways);
    for (cli, buildkit) in ways
        .clis()
        .iter()
        .flat_map(|cli| [(cli, false), (cli, true)])
    {
        if buildkit && !has_buildkit(&ways, cli) {
            eprintln!(
                "skipped: BuildKit with {} (it has no buildx)",
                cli.display()
            );
            continue;
        }
        // From here on the daemon knows the image that all begin with.
        build(&ways.direct(), buildkit, &[&context]);
        let builder = if buildkit { "BuildKit" } else { "classic" };
        let same = |what: &str, code: i32, args: &[&str]| {
            ways.same_with(cli, &format!("{what} ({builder})"), code, |way| {
                let tag = way.name("built:1");
                let said = build(way, buildkit, &[args, &["-t", &tag, &context]].concat());
                if buildkit { steps(&said) } else { said }
            });
        };
        same("build", 0, &["--build-arg", "WHO=you"]);
        ways.same_with(cli, &format!("what was built ({builder})"), 0, |way| {
            let tag = way.name("built:1");
            way.run(&["run", "--rm", "--network", "none", &tag])
        });
        same("a target", 0, &["--target", "first"]);
        same(
            "a step that fails",
            if buildkit { 1 } else { 5 },
            &["-f", &format!("{context}/Broken")],
        );
        same(
            "a Dockerfile without sense",
            1,
            &["-f", &format!("{context}/Senseless")],
        );
        same("no such target", 1, &["--target", "nobody"]);
        same("quiet", 0, &["-q"]);
        ways.same_with(cli, &format!("a context on stdin ({builder})"), 0, |way| {
            let tag = way.name("piped:1");
            let mut command = way.docker(&["build", "--network", "none", "-q", "-t", &tag, "-"]);
            command.env("DOCKER_BUILDKIT", if buildkit { "1" } else { "0" });
            Said::fed(
                command,
                format!("FROM {}\nENV A=b\n", ways.image()).as_bytes(),
            )
        });
    }
    ways.wait_until_idle("at the end");
    ways.finish();
}

/// BuildKit's plain progress by what it says, not when and how often.
fn steps(said: &Said) -> Said {
    let lines = |text: &str| {
        // How much of the context went by now, and how much of it was known.
        let keep = text.lines().filter(|line| !line.contains("transferring"));
        // A step says "done", with a time if it took any, or that it has begun and then that.
        let keep = keep.map(|line| {
            let begun = line.strip_suffix(" done").unwrap_or(line);
            match begun.rsplit_once(' ') {
                Some((begun, took)) if took.ends_with('s') && took.contains('.') => begun,
                _ => begun,
            }
        });
        keep.collect::<Vec<_>>().join("\n")
    };
    Said {
        stdout: lines(&said.text()).into_bytes(),
        stderr: lines(&said.stderr),
        code: said.code,
    }
    .sorted()
}

#[test]
#[ignore = "needs a Docker daemon"]
fn docker_cli_saves_and_loads_the_same_images() {
    let ways = Ways::open("images");
    let large = ways.dir().join("large");
    std::fs::create_dir(&large).unwrap();
    let noise = (0..2_500_000_u32).map(|n| n.wrapping_mul(2_654_435_761).rotate_left(n % 31));
    let noise: Vec<u8> = noise.flat_map(u32::to_le_bytes).collect();
    std::fs::write(large.join("noise"), noise).unwrap();
    // No two ways have the same layer: the last to remove one removes it.
    let archive = |way: &Way| {
        std::fs::write(large.join("way"), way.name("")).unwrap();
        super::ways::tar(&large)
    };

    ways.same("import", 0, |way| {
        let (label, tag) = (format!("LABEL {}", ways.label()), way.name("noise:1"));
        let args = ["import", "-m", "made of noise", "-c", &label, "-", &tag];
        Said::fed(way.docker(&args), &archive(way))
    });
    let format = "{{.Repository}}:{{.Tag}} {{.Size}}";
    ways.same("images", 0, |way| {
        let said = way.run(&["images", "--format", format, &way.name("noise")]);
        let table = way.run(&["images", &way.name("noise")]);
        let stdout = [said.stdout, table.stdout].concat();
        Said { stdout, ..said }
    });
    ways.same("history", 0, |way| {
        way.run(&["history", &way.name("noise:1")])
    });
    ways.same("inspect", 0, |way| {
        let format = "{{json .RepoTags}} {{.Comment}} {{.Size}} {{json .RootFS}}";
        way.run(&["image", "inspect", "-f", format, &way.name("noise:1")])
    });

    // The same image, saved on both ways and loaded on the other.
    let shared = ways.image();
    ways.same("save", 0, |way| way.run(&["save", &shared]));
    ways.same("save | load", 0, |way| {
        let tag = way.name("noise:1");
        let saved = way.run(&["save", &tag]);
        assert!(saved.stdout.len() > 10_000_000, "{}", saved.stdout.len());
        assert_eq!(way.run(&["rmi", &tag]).code, Some(0));
        let loaded = Said::fed(way.docker(&["load"]), &saved.stdout);
        let again = way.run(&["save", &tag]);
        assert!(again.stdout == saved.stdout, "another image was loaded");
        loaded
    });
    ways.same("save -o, load -i", 0, |way| {
        let (tag, file) = (way.name("noise:1"), ways.dir().join(way.name("saved.tar")));
        let file = file.display().to_string();
        let saved = way.run(&["save", "-o", &file, &tag]);
        assert_eq!((saved.code, saved.stderr.as_str()), (Some(0), ""));
        way.run(&["load", "-i", &file])
    });
    ways.same("load of no image", 1, |way| {
        Said::fed(way.docker(&["load"]), b"this is no archive of an image\n")
    });
    ways.same("tag, rmi", 0, |way| {
        let (tag, other) = (way.name("noise:1"), way.name("noise:2"));
        assert_eq!(way.run(&["tag", &tag, &other]).code, Some(0));
        way.run(&["rmi", &other, &tag])
    });
    ways.same("rmi of nothing", 1, |way| {
        way.run(&["rmi", &way.name("noise:1")])
    });
    ways.same("save of nothing", 1, |way| {
        way.run(&["save", &way.name("noise:1")])
    });
    ways.wait_until_idle("at the end");
    ways.finish();
}

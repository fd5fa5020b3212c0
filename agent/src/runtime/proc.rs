//! What `/proc` tells about processes: pure parsing, and the few reads that feed it.

use std::fs;
use std::io;

/// The fields of `/proc/PID/stat` that tell processes apart.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Stat {
    /// Its pid.
    pub(super) pid: i32,
    /// Process group.
    pub(super) group: i32,
    /// Session.
    pub(super) session: i32,
    /// It has a controlling terminal.
    pub(super) terminal: bool,
    /// Start, in clock ticks since the machine booted (field 22). With the pid it names one
    /// process for as long as the machine is up.
    pub(super) start: u64,
    /// It has ended and only waits for its parent to ask for its status.
    pub(super) dead: bool,
}

/// Parses `/proc/PID/stat`. The command in it may hold blanks and parentheses, so what counts is
/// the last closing one.
pub(super) fn parse_stat(text: &str) -> Option<Stat> {
    let (pid, rest) = text.split_once(" (")?;
    let (_, rest) = rest.rsplit_once(") ")?;
    let mut fields = rest.split_ascii_whitespace();
    let state = fields.next()?;
    let group = fields.nth(1)?.parse().ok()?;
    let session = fields.next()?.parse().ok()?;
    let terminal = fields.next()?.parse::<i64>().ok()? != 0;
    // Fields are counted from 1; state is the third, the terminal the seventh, the start the 22nd.
    let start = fields.nth(22 - 7 - 1)?.parse().ok()?;
    Some(Stat {
        pid: pid.parse().ok()?,
        group,
        session,
        terminal,
        start,
        dead: matches!(state, "Z" | "X" | "x"),
    })
}

/// The pid that a process sees of itself: the last one of `NSpid` in `/proc/PID/status`.
pub(super) fn parse_inner_pid(status: &str) -> Option<i32> {
    let line = status
        .lines()
        .find_map(|line| line.strip_prefix("NSpid:"))?;
    line.split_ascii_whitespace().next_back()?.parse().ok()
}

/// Whether `/proc/PID/cgroup` says that the process belongs to this container. The runtimes put
/// the full id (64 hex digits) into the group's path, bare or as `docker-ID.scope`.
pub(super) fn in_container(cgroup: &str, id: &str) -> bool {
    id.len() >= 32 && cgroup.lines().any(|line| line.contains(id))
}

/// Reads one process; an error if it is gone or hidden.
pub(super) fn stat(pid: i32) -> io::Result<Stat> {
    let text = fs::read_to_string(format!("/proc/{pid}/stat"))?;
    parse_stat(&text).ok_or_else(|| {
        io::Error::new(
            io::ErrorKind::InvalidData,
            format!("/proc/{pid}/stat reads {text:?}"),
        )
    })
}

/// The control groups of one process, as the kernel prints them.
pub(super) fn cgroup(pid: i32) -> io::Result<String> {
    fs::read_to_string(format!("/proc/{pid}/cgroup"))
}

/// The pid that the process sees of itself.
pub(super) fn inner_pid(pid: i32) -> Option<i32> {
    parse_inner_pid(&fs::read_to_string(format!("/proc/{pid}/status")).ok()?)
}

/// Changes with every boot, so that pids and starts of an earlier one match nothing.
pub(super) fn boot_id() -> io::Result<String> {
    Ok(fs::read_to_string("/proc/sys/kernel/random/boot_id")?
        .trim()
        .to_owned())
}

/// Every process that `wanted` takes and that has not ended, by reading all of `/proc`. A process
/// that ends meanwhile is left out.
pub(super) fn living(wanted: impl Fn(&Stat) -> bool) -> io::Result<Vec<Stat>> {
    let mut members = Vec::new();
    for entry in fs::read_dir("/proc")? {
        let Some(pid) = entry?
            .file_name()
            .to_str()
            .and_then(|name| name.parse().ok())
        else {
            continue;
        };
        if let Ok(stat) = stat(pid)
            && wanted(&stat)
            && !stat.dead
        {
            members.push(stat);
        }
    }
    Ok(members)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::*;

    #[test]
    fn stat_survives_a_hostile_command_name() {
        let line =
            "4711 (a) R 1 (b c) S 1 4700 4699 0 -1 4194560 1 2 3 4 5 6 7 8 20 0 1 0 98765 9 9\n";
        assert_eq!(
            parse_stat(line),
            Some(Stat {
                pid: 4711,
                group: 4700,
                session: 4699,
                terminal: false,
                start: 98765,
                dead: false
            })
        );
        let zombie = "7 (x) Z 1 7 7 0 -1 4194560 1 2 3 4 5 6 7 8 20 0 1 0 5 9 9";
        assert!(parse_stat(zombie).unwrap().dead);
        let shell = "8 (sh) S 1 8 8 34816 8 4194560 1 2 3 4 5 6 7 8 20 0 1 0 5 9 9";
        assert!(parse_stat(shell).unwrap().terminal);
        for bad in ["", "7", "7 (x", "7 (x) S", "7 (x) S 1 2 3", "x (x) S 1 7"] {
            assert_eq!(parse_stat(bad), None, "{bad:?}");
        }
    }

    #[test]
    fn own_stat_matches_the_system() {
        let me = i32::try_from(std::process::id()).unwrap();
        let stat = stat(me).unwrap();
        assert_eq!(stat.pid, me);
        assert!(!stat.dead);
        assert_eq!(
            stat.group,
            rustix::process::getpgrp().as_raw_nonzero().get()
        );
        assert!(
            living(|one| one.group == stat.group)
                .unwrap()
                .contains(&stat)
        );
    }

    #[test]
    fn inner_pid_is_the_innermost() {
        assert_eq!(
            parse_inner_pid("Name:\tsh\nNSpid:\t4711\t31\t7\nTgid:\t4711\n"),
            Some(7)
        );
        assert_eq!(parse_inner_pid("NSpid:\t4711\n"), Some(4711));
        assert_eq!(parse_inner_pid("Name:\tsh\n"), None);
        assert_eq!(parse_inner_pid("NSpid:\tx\n"), None);
    }

    #[test]
    fn a_container_is_known_by_its_full_id_only() {
        let id = "1a00102f43f6c8e59a9672e74c75711d97d6cacfc357ce8d644f64ba5d6d0f4c";
        assert!(in_container(
            &format!("9:pids:/docker/{id}\n0::/docker/{id}\n"),
            id
        ));
        assert!(in_container(
            &format!("0::/system.slice/docker-{id}.scope\n"),
            id
        ));
        assert!(in_container(&format!("0::/../{id}\n"), id));
        assert!(!in_container("0::/user.slice\n", id));
        assert!(!in_container("0::/user.slice\n", ""));
        assert!(!in_container("0::/docker/1a\n", "1a"));
    }
}

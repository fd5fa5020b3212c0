//! The data plane beside the real thing: the same requests straight to a target and through the
//! hub, from programs that people use to programs that people run. What differs must be on the
//! guide's list, or it is a fault.
//!
//! Everything here is ignored by default, because it needs more than Rust: `./test` installs what
//! the machine can have, and says what it skips.
//!
//! | in a test's name | it needs |
//! | --- | --- |
//! | `python_` | `HUB_TEST_PYTHON`: an interpreter with httpbin, gunicorn and grpcio |
//! | `autobahn_` | `HUB_TEST_PYTHON2`: a Python 2.7 with autobahntestsuite |
//! | `nginx_` | nginx |
//! | `postgres_`, `ssh_`, `dns_` | PostgreSQL, OpenSSH's server, dnsmasq and dig |
//! | `chromium_` | Chromium |

#![allow(
    clippy::unwrap_used,
    clippy::print_stderr,
    missing_docs,
    unreachable_pub
)]

mod autobahn;
mod chromium;
mod curl;
mod grpc;
mod house;
mod httpbin;
mod nginx;
#[path = "../e2e/programs.rs"]
#[allow(dead_code)]
mod programs;
mod raw;

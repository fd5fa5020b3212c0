//! Named points at which a test can kill the agent as the kernel would: at once, with no clean-up.
//!
//! In builds with debug assertions, the process that has `HUB_KILL_AT=NAME` in its environment dies
//! of SIGKILL when it first comes to the point of that name. Release builds have none of it.

/// A point at which the process may be killed.
#[inline]
pub fn point(name: &str) {
    #[cfg(debug_assertions)]
    kill_at(name);
    #[cfg(not(debug_assertions))]
    let _ = name;
}

#[cfg(debug_assertions)]
fn kill_at(name: &str) {
    use std::sync::LazyLock;

    static AT: LazyLock<Option<String>> = LazyLock::new(|| std::env::var("HUB_KILL_AT").ok());
    if AT.as_deref() == Some(name) {
        let _ =
            rustix::process::kill_process(rustix::process::getpid(), rustix::process::Signal::KILL);
    }
}

//! What containers use.

use serde::{Deserialize, Serialize};

/// Asks for what a container uses now. Takes about a second: processor time needs two looks.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
#[cfg_attr(feature = "schema", schema(as = GetStats))]
pub struct Get {
    /// Its name or id.
    pub container: String,
}

/// What a container uses. Of one that does not run all is 0.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub struct Stats {
    /// The container's id.
    pub id: String,
    /// Its name, without a slash.
    pub name: String,
    /// When the daemon looked, as RFC 3339.
    pub time: String,
    /// Processor time since the look before, in percent of one processor. Absent at the first look.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cpu_percent: Option<f64>,
    /// Processor time in all, in nanoseconds.
    pub cpu_ns: u64,
    /// Processor time of the whole machine, in nanoseconds.
    pub system_cpu_ns: u64,
    /// Processors that it may run on.
    pub cpus: u64,
    /// Bytes of memory, without the page cache that the kernel would give up.
    pub memory: u64,
    /// Bytes of page cache that are not counted in it.
    pub memory_cache: u64,
    /// Bytes of memory that it may use.
    pub memory_limit: u64,
    /// Bytes received on all networks.
    pub network_rx: u64,
    /// Bytes sent on all networks.
    pub network_tx: u64,
    /// Bytes read from block devices.
    pub block_read: u64,
    /// Bytes written to block devices.
    pub block_write: u64,
    /// Processes and threads.
    pub pids: u64,
}

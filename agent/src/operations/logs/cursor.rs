//! Cursors: a container, and a [`Position`] in its log.

use super::position::Position;

/// How much of a container's id a cursor holds.
const CURSOR_ID: usize = 16;

/// The cursor of a position.
pub(super) fn write(id: &str, position: &Position) -> String {
    format!("{}_{position}", id.get(..CURSOR_ID).unwrap_or(id))
}

/// The container, as much of its id as a cursor holds, and the position.
pub(super) fn read(cursor: &str) -> Option<(String, Position)> {
    let (id, position) = cursor.split_once('_')?;
    let is_id = !id.is_empty() && id.bytes().all(|byte| byte.is_ascii_hexdigit());
    Some((id.to_owned(), position.parse().ok().filter(|_| is_id)?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_no_cursor_is_none() {
        for bad in ["", "_", "ab", "ab_", "_1", "xy_1", "ab_x"] {
            assert!(read(bad).is_none(), "{bad}");
        }
    }
}

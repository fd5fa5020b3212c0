//! The rules of the list of kept commands. Pure.

use hub_protocol::kind::call::exec::{Kept, KeptState};

/// The most commands that are kept. Those that have ended make room, oldest end first.
pub(crate) const MAX: usize = 100;

/// One of them, with what its task is reached by.
#[derive(Debug)]
struct Entry<T> {
    kept: Kept,
    /// Counts the ends; none for one that runs.
    ended: Option<u64>,
    task: T,
}

/// The list, oldest first.
#[derive(Debug)]
pub(crate) struct List<T> {
    entries: Vec<Entry<T>>,
    ends: u64,
}

impl<T> Default for List<T> {
    fn default() -> Self {
        Self {
            entries: Vec::new(),
            ends: 0,
        }
    }
}

/// As many run as are kept at most.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Full;

/// What an id, or the beginning of one, means.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Found<T> {
    /// This one.
    One(T),
    /// Nothing.
    None,
    /// Several.
    Many,
}

impl<T> List<T> {
    /// Adds one that runs.
    pub(crate) fn add(&mut self, kept: Kept, task: T) -> Result<(), Full> {
        if self.entries.len() >= MAX {
            let ended = self.entries.iter().enumerate();
            let ended = ended.filter_map(|(at, entry)| Some((entry.ended?, at)));
            let (_, oldest) = ended.min().ok_or(Full)?;
            self.entries.remove(oldest);
        }
        self.entries.push(Entry {
            kept,
            ended: None,
            task,
        });
        Ok(())
    }

    /// Takes one off.
    pub(crate) fn remove(&mut self, id: &str) -> bool {
        let before = self.entries.len();
        self.entries.retain(|entry| entry.kept.id != id);
        self.entries.len() < before
    }

    /// A client has come to one, or has left it.
    pub(crate) fn set_attached(&mut self, id: &str, attached: bool) {
        if let Some(entry) = self.exact(id) {
            entry.kept.attached = attached;
        }
    }

    /// One has ended.
    pub(crate) fn set_ended(&mut self, id: &str, state: KeptState) {
        self.ends += 1;
        let ends = self.ends;
        if let Some(entry) = self.exact(id) {
            entry.kept.state = state;
            entry.ended.get_or_insert(ends);
        }
    }

    fn exact(&mut self, id: &str) -> Option<&mut Entry<T>> {
        self.entries.iter_mut().find(|entry| entry.kept.id == id)
    }

    /// The one of this id or with an id that begins so; whether it has ended; how to reach it.
    pub(crate) fn find(&self, id: &str) -> Found<(&Kept, bool, &T)> {
        let exact = |entry: &&Entry<T>| entry.kept.id == id;
        let begins = |entry: &&Entry<T>| !id.is_empty() && entry.kept.id.starts_with(id);
        let mut found = self.entries.iter().filter(begins);
        let one = match (self.entries.iter().find(exact), found.next(), found.next()) {
            (Some(one), ..) | (None, Some(one), None) => one,
            (None, None, _) => return Found::None,
            (None, Some(_), Some(_)) => return Found::Many,
        };
        Found::One((&one.kept, one.ended.is_some(), &one.task))
    }

    /// All of them.
    pub(crate) fn all(&self) -> impl Iterator<Item = &Kept> {
        self.entries.iter().map(|entry| &entry.kept)
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::*;

    fn kept(id: &str) -> Kept {
        Kept {
            id: id.into(),
            container: None,
            command: "sh".into(),
            tty: false,
            started_ms: 0,
            attached: true,
            state: KeptState::Running,
        }
    }

    #[test]
    fn the_beginning_of_an_id_is_enough_where_it_is_clear() {
        let mut list = List::default();
        for (id, task) in [("aabb", 1), ("aacc", 2), ("dd", 3), ("ddee", 4)] {
            list.add(kept(id), task).unwrap();
        }
        let found = |id| match list.find(id) {
            Found::One((_, _, task)) => Found::One(*task),
            Found::None => Found::None,
            Found::Many => Found::Many,
        };
        assert_eq!(found("aab"), Found::One(1));
        assert_eq!(found("aa"), Found::Many);
        assert_eq!(found("dd"), Found::One(3));
        assert_eq!(found("dde"), Found::One(4));
        assert_eq!(found("x"), Found::None);
        assert_eq!(found(""), Found::None);
    }

    #[test]
    fn those_that_ended_make_room_oldest_first() {
        let mut list = List::default();
        for number in 0..MAX {
            list.add(kept(&format!("{number:03}")), ()).unwrap();
        }
        assert_eq!(list.add(kept("more"), ()), Err(Full));
        list.set_ended("007", KeptState::Exited { code: 0 });
        list.set_ended("003", KeptState::Exited { code: 1 });
        list.add(kept("more"), ()).unwrap();
        assert_eq!(list.find("007"), Found::None);
        assert!(matches!(list.find("003"), Found::One((_, true, ()))));
        list.add(kept("again"), ()).unwrap();
        assert_eq!(list.add(kept("full"), ()), Err(Full));
        assert!(list.remove("again") && !list.remove("again"));
        assert_eq!(list.all().count(), MAX - 1);
    }
}

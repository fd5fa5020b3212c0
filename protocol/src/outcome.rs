//! The three answers to anything asked of a node. Silence is never failure.

/// What became of something that was asked of a node.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Outcome<T, E> {
    /// Nothing happened on the node: safe to ask again, or elsewhere.
    NotStarted(E),
    /// The node did it and said this.
    Answered(T),
    /// The node took it and then went silent: it may have happened, or be happening still.
    Unknown(E),
}

impl<T, E> Outcome<T, E> {
    /// The answer, or the error of either other case.
    pub fn answered(self) -> Result<T, E> {
        match self {
            Self::Answered(answer) => Ok(answer),
            Self::NotStarted(error) | Self::Unknown(error) => Err(error),
        }
    }
}

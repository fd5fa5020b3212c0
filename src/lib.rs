//! Client of the hub's API.

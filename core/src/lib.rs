//! The policy core.

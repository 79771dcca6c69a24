//! Spreading a model's parameter blocks over parameter servers.

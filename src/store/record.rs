//! Versioned bytes and what they mean.

//! Which pool a pod gets an address from, and why.

//! The reaper against a store and a cluster in memory. Time is paused; the API says what a test told it, and lies
//! where a test wants that.

mod adopt;
mod cases;
mod controller;
mod scene;
mod watch;

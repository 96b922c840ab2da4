//! The reaper against a store and a cluster in memory, where time is paused and the API says what a test told it, and
//! lies where a test wants that; and the built program against real ones.

mod adopt;
mod cases;
pub(crate) mod controller;
mod faults;
mod fields;
mod hostile;
pub(crate) mod real;
mod scene;
mod stop;
mod table;
mod watch;

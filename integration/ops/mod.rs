//! The use cases of the plugin, against a store in memory that fails as it is told. Time is paused: waits cost
//! nothing.

mod basics;
mod choice;
mod faults;
mod fuzz;
mod histories;
mod many;
mod memory;
mod names;
mod table;
pub(crate) mod world;

//! The use cases of the plugin, against a store in memory that fails as it is told. Time is paused: waits cost
//! nothing.

mod basics;
mod faults;
mod histories;
mod many;
mod table;
mod world;

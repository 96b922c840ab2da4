//! The core: values and decisions. It reads, writes, waits, logs and dates nothing; time and chance come in as
//! arguments.
//!
//! | word | meaning |
//! |---|---|
//! | pool | a named set of ranges that serves one workload, a namespace, or everything |
//! | range | subnet, start to end, gateway, exclusions; one family |
//! | domain | the space in which an address is unique (one VLAN, one routed fabric) |
//! | lease | what a pod holds on one attachment |
//! | attachment | network, container ID, interface: what CNI calls the thing that is added and deleted |
//! | holder | whose lease it is: a pod, or a container without one |
//! | bound, held, reserved | in use by a sandbox, kept for its pod, assigned by a person |
//! | released | given back: free to others after the cool-down |
//! | declined | a stranger answered on it |
//! | unconfirmed | the last container that had it was never DELed: somebody may still answer |

pub mod addr;
pub mod audit;
pub mod choose;
pub mod kubernetes;
pub mod lease;
pub mod names;
pub mod nearest;
pub mod pool;
pub mod reap;
pub mod select;
pub mod words;
pub mod workload;

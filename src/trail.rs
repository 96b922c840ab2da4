//! The audit trail of this host: each change of a lease that is made here, by a runtime or by a person, is one line of
//! the node log, wherever the host file names one.

use std::net::IpAddr;

use serde_json::Value;

use crate::{
    config::Level,
    host::{Host, HostClock},
    ops::{Change, Clock, Log},
    telemetry,
};

/// The log of this host; quiet without a host file.
#[derive(Debug)]
pub struct Trail(telemetry::Log);

impl Trail {
    /// Where the host file says.
    #[must_use]
    pub fn of(host: Option<&Host>) -> Self {
        Self(host.map_or_else(telemetry::Log::quiet, |host| telemetry::Log::new(&host.config.log)))
    }

    /// A line that is no change of a lease.
    pub fn line(&self, level: Level, text: &str) {
        self.0.line(HostClock.now(), level, text, &[]);
    }

    /// A change that a person makes: who made it stands beside why.
    pub fn by_hand(&self, event: &str, whose: &str, addresses: &[IpAddr], why: &str) {
        let what: Vec<String> = addresses.iter().map(ToString::to_string).collect();
        let person = ["SUDO_USER", "USER"].iter().find_map(std::env::var_os);
        let by = person.map_or(Value::Null, |name| name.to_string_lossy().into_owned().into());
        let change = telemetry::Change { event, who: whose, what: &what, why, more: &[("by", by)] };
        self.0.change(HostClock.now(), &change);
    }
}

impl Log for Trail {
    fn change(&self, change: &Change) {
        let who = change.lease.as_ref().map(ToString::to_string).unwrap_or_default();
        let what: Vec<String> = change.addresses.iter().map(ToString::to_string).collect();
        let text = |value: Option<String>| value.map_or(Value::Null, Value::from);
        let more = [
            ("pool", text(change.pool.as_ref().map(ToString::to_string))),
            ("container", text(change.container.as_ref().map(ToString::to_string))),
        ];
        let change =
            telemetry::Change { event: change.what, who: &who, what: &what, why: &change.why, more: &more };
        self.0.change(HostClock.now(), &change);
    }

    fn note(&self, text: &str) {
        self.line(Level::Warn, text);
    }
}

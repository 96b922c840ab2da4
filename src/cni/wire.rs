//! Where the wire can be asked from, by what the main plugin makes.

use std::net::IpAddr;

use super::input::LinkSpec;
use crate::{
    ops::{Heard, Wire},
    probe::{self, ProbeError, Vantage},
};

/// What the CNI bridge plugin calls its bridge if nobody names one.
const DEFAULT_BRIDGE: &str = "cni0";

/// The wire that the main plugin's links are on.
pub(crate) struct LinkWire(Result<Option<Vantage>, String>);

impl LinkWire {
    /// `macvlan`: a temporary macvlan of our own, since `master` does not hear its own macvlan children. `bridge`:
    /// the bridge. Anything else cannot be asked.
    pub(crate) fn new(link: &LinkSpec) -> Self {
        Self(match (link.plugin.as_str(), link.vlan) {
            ("macvlan", _) if link.mode.as_deref() == Some("passthru") => {
                Err("in passthru mode the pod's macvlan is the only one that master takes".into())
            }
            ("macvlan", _) => match &link.master {
                Some(master) => Ok(Some(Vantage::Macvlan { master: master.clone() })),
                // The macvlan plugin takes the default route's link; it is looked up when it is needed.
                None => Ok(None),
            },
            ("bridge", None) => {
                let name = link.bridge.clone().unwrap_or_else(|| DEFAULT_BRIDGE.into());
                Ok(Some(Vantage::Interface { name }))
            }
            ("bridge", Some(vlan)) => Err(format!("the bridge itself is not in VLAN {vlan}")),
            (other, _) => Err(format!("a {other} link cannot be asked from outside")),
        })
    }
}

impl Wire for LinkWire {
    async fn probe(&self, addresses: &[IpAddr]) -> Heard {
        let vantage = match &self.0 {
            Ok(Some(vantage)) => vantage.clone(),
            Ok(None) => match probe::default_route_interface() {
                Ok(Some(master)) => Vantage::Macvlan { master },
                Ok(None) => {
                    return Heard::Failed("no master is configured and there is no default route".into());
                }
                Err(error) => return Heard::Failed(format!("cannot read the default route: {error}")),
            },
            Err(reason) => return Heard::Nowhere(reason.clone()),
        };
        match probe::probe(&vantage, addresses).await {
            Ok(claims) if claims.is_empty() => Heard::Silence,
            Ok(claims) => Heard::Claims(claims.into_iter().map(|c| (c.address, c.mac.to_string())).collect()),
            // A bridge without carrier has no port that is up: nobody but us is on it.
            Err(ProbeError::NoCarrier { .. }) if matches!(vantage, Vantage::Interface { .. }) => {
                Heard::Silence
            }
            Err(error) => Heard::Failed(error.to_string()),
        }
    }
}

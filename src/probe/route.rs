//! Which link the default route uses: the macvlan plugin's master when its configuration names none.

use std::fs;
use std::io;

/// `linux/route.h`: packets are refused, not sent. IPv6 always has such a default route, on `lo`.
const RTF_REJECT: u32 = 0x200;

/// The link of the default route in this thread's network namespace: IPv4's, else IPv6's.
pub fn default_route_interface() -> io::Result<Option<String>> {
    // A kernel without that family has no such file.
    let read = |table| match fs::read_to_string(format!("/proc/thread-self/net/{table}")) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(String::new()),
        text => text,
    };
    Ok(match best(&read("route")?, ipv4_default) {
        Some(link) => Some(link),
        None => best(&read("ipv6_route")?, ipv6_default),
    })
}

struct DefaultRoute {
    link: String,
    metric: u32,
    flags: u32,
}

fn best(table: &str, parse: fn(&[&str]) -> Option<DefaultRoute>) -> Option<String> {
    table
        .lines()
        .filter_map(|line| parse(&line.split_whitespace().collect::<Vec<_>>()))
        .filter(|route| route.flags & RTF_REJECT == 0)
        .min_by_key(|route| route.metric)
        .map(|route| route.link)
}

/// A line of `/proc/net/route`: numbers are hexadecimal, the metric is not.
fn ipv4_default(fields: &[&str]) -> Option<DefaultRoute> {
    let [link, "00000000", _gateway, flags, _references, _use, metric, "00000000", ..] = *fields else {
        return None;
    };
    Some(DefaultRoute { link: link.to_owned(), metric: metric.parse().ok()?, flags: hexadecimal(flags)? })
}

/// A line of `/proc/net/ipv6_route`.
fn ipv6_default(fields: &[&str]) -> Option<DefaultRoute> {
    const ANY: &str = "00000000000000000000000000000000";
    let [ANY, "00", _source, _prefix, _next_hop, metric, _references, _use, flags, link] = *fields else {
        return None;
    };
    Some(DefaultRoute { link: link.to_owned(), metric: hexadecimal(metric)?, flags: hexadecimal(flags)? })
}

fn hexadecimal(text: &str) -> Option<u32> {
    u32::from_str_radix(text, 16).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_ipv4_default_route_with_the_lowest_metric_wins() {
        let table = "\
Iface\tDestination\tGateway \tFlags\tRefCnt\tUse\tMetric\tMask\t\tMTU\tWindow\tIRTT
wlan0\t00000000\tFE00000A\t0003\t0\t0\t600\t00000000\t0\t0\t0
eth0\t00000000\tFE00000A\t0003\t0\t0\t100\t00000000\t0\t0\t0
br0\t00000000\tFE00000A\t0201\t0\t0\t0\t00000000\t0\t0\t0
eth1\t0000000A\t00000000\t0001\t0\t0\t0\t00FCFFFF\t0\t0\t0
";
        assert_eq!(best(table, ipv4_default).as_deref(), Some("eth0"));
    }

    #[test]
    fn the_refused_ipv6_default_route_of_every_kernel_is_none() {
        let refused = "00000000000000000000000000000000 00 00000000000000000000000000000000 00 \
                       00000000000000000000000000000000 ffffffff 00000001 00000000 00200200       lo\n";
        assert_eq!(best(refused, ipv6_default), None);
        let eth0 = "00000000000000000000000000000000 00 00000000000000000000000000000000 00 \
                    fe800000000000000000000000000001 00000400 00000001 00000000 00000003     eth0\n";
        assert_eq!(best(&[refused, eth0].concat(), ipv6_default).as_deref(), Some("eth0"));
    }
}

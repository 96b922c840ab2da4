//! The invocations that real plugins and runtimes made, played to the built program in their order.

use std::collections::BTreeMap;

use serde_json::Value;

use crate::support::{
    call::Call,
    ground,
    parts::{Part, Version, require},
};

const CAPTURED: &str = include_str!("fixtures/cni-invocations.json");

#[test]
fn every_captured_invocation_is_answered() {
    require!(Part::Etcd(Version::V36));
    let captured: Vec<Value> = serde_json::from_str(CAPTURED).unwrap();
    assert_eq!(captured.len(), 55);
    let host = ground::on_etcd().with("inlineRanges", "allow");
    let mut leased: BTreeMap<String, String> = BTreeMap::new();
    let mut group = "";
    for one in &captured {
        let capture = one["capture"].as_str().unwrap();
        let its_group = capture.split_once('/').unwrap().0;
        if its_group != group {
            // a group ends with its own DELs
            ground::is_empty(&host);
            leased.clear();
            group = its_group;
        }
        let environment = one["env"].as_object().unwrap();
        let verb = environment["CNI_COMMAND"].as_str().unwrap();
        let stdin = one["stdin"].as_str().unwrap();
        let conf: Value = serde_json::from_str(stdin).unwrap();
        let mut call = Call::command(verb, &host).stdin(stdin);
        for name in ["CNI_CONTAINERID", "CNI_IFNAME", "CNI_NETNS", "CNI_ARGS", "CNI_PATH"] {
            call = call.without_env(name);
        }
        for (name, value) in environment {
            call = call.env(name, value.as_str().unwrap());
        }
        let answer = call.run();
        match verb {
            "ADD" => {
                let result = answer.result();
                let version = conf["cniVersion"].as_str().filter(|text| !text.is_empty()).unwrap_or("0.1.0");
                assert_eq!(result["cniVersion"], version, "{capture}");
                let addresses = answer.addresses();
                assert_eq!(addresses.len(), 1, "{capture}");
                match conf["runtimeConfig"]["ips"][0].as_str() {
                    Some(asked) => assert_eq!(addresses[0], asked, "{capture}"),
                    None => {
                        let last =
                            addresses[0].strip_prefix("10.9.0.").and_then(|rest| rest.strip_suffix("/24"));
                        let last: u8 =
                            last.unwrap_or_else(|| panic!("{capture}: {addresses:?}")).parse().unwrap();
                        let bound = |key: &str| -> u8 {
                            conf["ipam"][key].as_str().unwrap().rsplit_once('.').unwrap().1.parse().unwrap()
                        };
                        assert!(
                            (bound("rangeStart")..=bound("rangeEnd")).contains(&last),
                            "{capture}: {last}"
                        );
                    }
                }
                let gateway = result.pointer("/ips/0/gateway").or_else(|| result.pointer("/ip4/gateway"));
                assert_eq!(gateway.and_then(Value::as_str), Some("10.9.0.254"), "{capture}");
                let route = result.pointer("/routes/0").or_else(|| result.pointer("/ip4/routes/0")).unwrap();
                assert_eq!(
                    *route,
                    serde_json::json!({ "dst": "0.0.0.0/0", "gw": "10.9.0.254" }),
                    "{capture}"
                );
                leased.insert(environment["CNI_CONTAINERID"].as_str().unwrap().into(), addresses[0].clone());
            }
            "CHECK" => {
                let believed = conf["prevResult"]["ips"][0]["address"].as_str().unwrap();
                let ours = &leased[environment["CNI_CONTAINERID"].as_str().unwrap()];
                if ours == believed {
                    answer.is_silent();
                } else {
                    // the capture's IPAM plugin had chosen another address
                    assert!(answer.error_text(101).contains("prevResult"), "{capture}");
                    let fitting = stdin.replace(believed, ours);
                    let mut call = Call::command(verb, &host).stdin(fitting);
                    for (name, value) in environment {
                        call = call.env(name, value.as_str().unwrap());
                    }
                    call.run().is_silent();
                }
            }
            "VERSION" => assert_eq!(answer.result()["cniVersion"], "1.1.0", "{capture}"),
            _ => answer.is_silent(),
        }
    }
    ground::is_empty(&host);
}

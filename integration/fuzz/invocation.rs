//! What a runtime sends: environment, `CNI_ARGS`, and the network's configuration on standard input.

use std::{collections::BTreeMap, ffi::OsString, os::unix::ffi::OsStringExt};

use leasehold::{
    cni::{
        input::{self, AddRequest, Attachment, Command},
        reply::{self, Answer, CniVersion, Error, Given},
    },
    domain::addr::Family,
};
use serde_json::Value;

use super::{MARK, pools::range_holds, with_marked_passwords};

type Environment = BTreeMap<String, OsString>;

const VERBS: [&str; 6] = ["ADD", "CHECK", "DEL", "GC", "STATUS", "VERSION"];
const NETWORK: &[u8] =
    br#"{"cniVersion":"1.1.0","name":"lan","type":"macvlan","ipam":{"type":"leasehold"},"cni.dev/valid-attachments":[]}"#;
/// What an error of parsing may say: version, field, environment, decoding, configuration.
const CODES: [u64; 5] = [1, 2, 4, 6, 7];

pub(crate) fn cni_args(input: &[u8]) {
    if input.contains(&0) {
        return; // no environment can hold it
    }
    let mut environment = usual();
    environment.insert("CNI_ARGS".into(), OsString::from_vec(input.into()));
    every_verb(&environment, NETWORK);
}

/// Lines `NAME=VALUE`.
pub(crate) fn environment(input: &[u8]) {
    let lines = input.split(|byte| *byte == b'\n').filter(|line| !line.contains(&0));
    let pairs = lines.filter_map(|line| {
        let at = line.iter().position(|byte| *byte == b'=')?;
        Some((String::from_utf8(line[..at].into()).ok()?, OsString::from_vec(line[at + 1..].into())))
    });
    let environment: Environment = pairs.collect();
    let _ = ask(&environment, NETWORK);
    every_verb(&environment, NETWORK);
}

pub(crate) fn network(input: &[u8]) {
    every_verb(&usual(), input);
    if let Ok(mut document) = serde_json::from_slice::<Value>(input)
        && with_marked_passwords(&mut document)
        && let Err(error) = ask(&usual(), document.to_string().as_bytes())
    {
        assert!(!error.to_string().contains(MARK), "a secret is shown: {error}");
    }
}

fn usual() -> Environment {
    let pairs = [
        ("CNI_COMMAND", "ADD"),
        ("CNI_CONTAINERID", "c1"),
        ("CNI_IFNAME", "eth0"),
        ("CNI_NETNS", "/var/run/netns/none"),
        ("CNI_ARGS", "IgnoreUnknown=1;K8S_POD_NAMESPACE=shop;K8S_POD_NAME=db-0;K8S_POD_UID=u1"),
    ];
    pairs.map(|(name, value)| (name.into(), value.into())).into()
}

fn ask(environment: &Environment, stdin: &[u8]) -> Result<Command, Error> {
    let asked = input::parse(|name| environment.get(name).cloned(), || Ok(stdin.into()));
    if let Err(error) = &asked {
        let document = error.document(input::version_of(stdin));
        let mut printed = Vec::new();
        reply::write(&mut printed, &document).unwrap();
        assert_eq!(serde_json::from_slice::<Value>(&printed).ok().as_ref(), Some(&document));
        assert!(CODES.contains(&document["code"].as_u64().unwrap()), "{document}");
        assert!(document["msg"].as_str().is_some_and(|msg| !msg.is_empty()), "{document}");
        assert!(document["cniVersion"].as_str().and_then(CniVersion::of).is_some(), "{document}");
    }
    asked
}

/// What can be added can be deleted, as the same attachment.
fn every_verb(environment: &Environment, stdin: &[u8]) {
    let mut environment = environment.clone();
    let answers = VERBS.map(|verb| {
        environment.insert("CNI_COMMAND".into(), verb.into());
        ask(&environment, stdin)
    });
    let Ok(Command::Add(add)) = &answers[0] else { return };
    printed(add);
    let attachment = |answer: &Result<Command, Error>| -> Option<Attachment> {
        match answer {
            Ok(Command::Check(check)) => Some(check.attachment.clone()),
            Ok(Command::Del(del)) => Some(del.attachment.clone()),
            // CHECK is younger than ADD.
            Err(_) | Ok(_) => None,
        }
    };
    assert_eq!(attachment(&answers[2]).as_ref(), Some(&add.attachment), "{:?}", answers[2]);
    assert!(attachment(&answers[1]).is_none_or(|it| it == add.attachment), "{:?}", answers[1]);
}

/// An answer out of its own ranges is one JSON document.
fn printed(add: &AddRequest) {
    let Some(inline) = &add.inline else { return };
    inline.sets.iter().flatten().for_each(range_holds);
    let first = |set: &Vec<leasehold::domain::pool::Range>| {
        let number = set[0].usable().nth(0).unwrap();
        Given {
            address: set[0].family().address(number),
            length: set[0].subnet().length(),
            gateway: set[0].gateway(),
        }
    };
    let addresses: Vec<Given> = inline.sets.iter().map(first).collect();
    let families: Vec<Family> = addresses.iter().map(|given| Family::of(given.address)).collect();
    let answer = Answer { addresses, routes: add.routes.clone(), dns: add.dns.clone() };
    let result = reply::result(add.version, &answer);
    assert_eq!(result.as_ref().err(), reply::fits(add.version, &families).as_ref().err());
    if let Ok(document) = result {
        let mut printed = Vec::new();
        reply::write(&mut printed, &document).unwrap();
        assert_eq!(serde_json::from_slice::<Value>(&printed).ok().as_ref(), Some(&document));
        assert_eq!(document["cniVersion"], add.version.as_str());
    }
}

//! What a container runtime may expect of an IPAM plugin, asked of the built program with a real store below it. The
//! points are those that a conformance list of CNI 0.1.0 to 1.1.0 counts; parsing has its own tests beside its source.
#![expect(clippy::disallowed_methods, reason = "deadlines are of the real clock")]

use std::{
    collections::BTreeSet,
    fs,
    path::Path,
    process::Command,
    time::{Duration, Instant},
};

use serde_json::{Value, json};

use crate::support::{
    call::{Answer, Call},
    etcd::{Etcd, USER},
    ground,
    host::HostFile,
    parts::{Part, Version, leasehold, require},
    process::{eventually, run},
    proxy::{Fault, Proxy},
};

const VERSIONS: [&str; 7] = ["0.1.0", "0.2.0", "0.3.0", "0.3.1", "0.4.0", "1.0.0", "1.1.0"];

/// Everybody, 10.0.0.10 to 10.0.0.13.
fn r4(host: &HostFile) {
    r(host, "lan", "10.0.0.10", "10.0.0.13");
}

/// Everybody, this range, no cool-down.
fn r(host: &HostFile, name: &str, start: &str, end: &str) {
    let ranges = json!([{ "subnet": "10.0.0.0/24", "start": start, "end": end, "gateway": "10.0.0.1" }]);
    ground::pool(
        host,
        json!({ "name": name, "networks": ["*"], "serves": ["*/*"], "ranges": ranges, "coolDown": "0s" }),
    );
}

fn etcd_with_r4() -> HostFile {
    let host = ground::on_etcd();
    r4(&host);
    host
}

/// One address of each family, and every kind of route.
fn pool_of_shapes(host: &HostFile) {
    let document = json!({
        "name": "shapes", "networks": ["*"], "serves": ["*/*"], "coolDown": "0s",
        "ranges": [
            { "subnet": "10.9.0.0/24", "start": "10.9.0.77", "end": "10.9.0.77", "gateway": "10.9.0.254" },
            { "subnet": "fd00:9::/64", "start": "fd00:9::77", "end": "fd00:9::77", "gateway": "fd00:9::fe" },
        ],
        "routes": [
            { "dst": "0.0.0.0/0" },
            { "dst": "10.50.0.0/16", "gw": "10.9.0.253", "mtu": 1400, "advmss": 1360, "priority": 100, "table": 200,
              "scope": 0 },
            { "dst": "::/0" },
        ],
        "dns": { "nameservers": ["10.9.0.53"], "domain": "lab.test", "search": ["lab.test"], "options": ["ndots:2"] },
    });
    ground::pool(host, document);
}

/// One JSON document, or nothing at all.
#[track_caller]
fn is_one_document_or_nothing(answer: &Answer) {
    let text = answer.0.stdout();
    if !text.is_empty() {
        let document: Value =
            serde_json::from_str(text).unwrap_or_else(|error| panic!("{error}: {answer:?}"));
        assert!(document.is_object(), "{document}");
        assert_eq!(text.lines().count(), 1, "{text:?}");
    }
}

// A. Invocation

#[test]
fn point_1_without_a_command_it_says_who_it_is() {
    let host = HostFile::local();
    let unset = Call::add(&host).without_env("CNI_COMMAND").run();
    let empty = Call::command("", &host).run();
    let bare = Answer(run(Command::new(leasehold()).env_clear(), b""));
    for answer in [unset, empty, bare] {
        answer.is_silent();
        let lines: Vec<_> = answer.0.stderr().lines().collect();
        assert!(lines[0].starts_with("CNI plugin leasehold v"), "{lines:?}");
        assert_eq!(
            lines[1..],
            ["CNI protocol versions supported: 0.1.0, 0.2.0, 0.3.0, 0.3.1, 0.4.0, 1.0.0, 1.1.0"]
        );
    }
}

#[test]
fn point_2_an_unknown_command_is_named() {
    let host = HostFile::local();
    for command in ["NOPE", "add"] {
        let error = Call::command(command, &host).run().error(4);
        assert_eq!(error["msg"], format!("unknown CNI_COMMAND: {command}"));
    }
}

#[test]
fn point_3_no_input_ends_it_by_a_signal() {
    let host = ground::on_local();
    let whole = br#"{"cniVersion":"1.0.0","name":"n","ipam":{"type":"leasehold","subnet":"10.0.0.0/24"},"args":{"cni":{"ips":["10.0.0.9"]}}}"#;
    let mut state: u64 = 0x9e37_79b9_7f4a_7c15;
    let mut chance = |below: usize| {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        usize::try_from(state >> 33).unwrap() % below
    };
    let verbs = ["ADD", "DEL", "CHECK", "GC", "STATUS", "VERSION"];
    for round in 0..150 {
        let mut bytes = whole.to_vec();
        for _ in 0..chance(6) {
            let at = chance(bytes.len());
            match chance(3) {
                0 => bytes[at] = u8::try_from(chance(256)).unwrap(),
                1 => drop(bytes.remove(at)),
                _ => bytes.truncate(at + 1),
            }
        }
        let call = Call::command(verbs[round % verbs.len()], &host).stdin(&bytes);
        let answer = call.container(&format!("c{round}")).run();
        let code = answer.0.code();
        assert!(matches!(code, Some(0 | 1)), "{}: {answer:?}", String::from_utf8_lossy(&bytes));
        is_one_document_or_nothing(&answer);
        assert!(code == Some(0) || !answer.0.stdout.is_empty(), "an error says why");
    }
}

#[test]
fn point_4_a_success_says_nothing_on_stderr() {
    require!(Part::Etcd(Version::V36));
    let host = etcd_with_r4();
    let added = Call::add(&host).pod("shop/web-1").run();
    let result = added.result();
    let check = Call::check(&host).pod("shop/web-1").field("prevResult", result).run();
    let gc = Call::gc(&host).field("cni.dev/valid-attachments", json!([])).run();
    for answer in [added, check, gc, Call::status(&host).run(), Call::del(&host).run()] {
        answer.0.success();
        assert_eq!(answer.0.stderr(), "");
    }
    ground::is_empty(&host);
}

// B. VERSION

#[test]
fn point_5_6_7_9_version_needs_nothing_and_echoes() {
    let host = HostFile::local();
    let all: Value = VERSIONS.to_vec().into();
    let version = |stdin: &str| Call::command("VERSION", &host).without_env("LEASEHOLD_CONFIG").stdin(stdin);
    for (stdin, echo) in [
        (r#"{"cniVersion":"1.1.0"}"#, "1.1.0"),
        (r#"{"cniVersion":"0.3.1"}"#, "0.3.1"),
        ("", "1.1.0"),
        ("{{{", "1.1.0"),
        (r#"{"cniVersion":"7.0.0"}"#, "1.1.0"),
    ] {
        let answer = version(stdin).run();
        let wanted = json!({ "cniVersion": echo, "supportedVersions": all });
        assert_eq!((answer.result(), answer.0.stdout().lines().count()), (wanted, 1));
        assert_eq!(answer.0.stderr(), "");
    }
    let bare = run(Command::new(leasehold()).env_clear().env("CNI_COMMAND", "VERSION"), b"");
    assert_eq!(Answer(bare).result()["supportedVersions"], all);
    let dummies =
        version("").container("dummy").ifname("dummy").env("CNI_NETNS", "dummy").env("CNI_PATH", "dummy");
    dummies.run().result();
    // a pipe that nobody closes
    let script = format!("sleep 20 | CNI_COMMAND=VERSION {} & wait $!", leasehold().display());
    let start = Instant::now();
    let open = run(
        Command::new("/bin/sh").args(["-c", &format!("{{ {script}; }} ; kill %1 2>/dev/null; true")]),
        b"",
    );
    assert!(start.elapsed() < Duration::from_secs(30));
    assert_eq!(Answer(open).result()["cniVersion"], "1.1.0");
}

// C. Environment

#[test]
fn point_15_nobody_needs_cni_path() {
    require!(Part::Etcd(Version::V36));
    let host = etcd_with_r4();
    let bare = |call: Call| call.without_env("CNI_PATH").run();
    let result = bare(Call::add(&host)).result();
    bare(Call::check(&host).field("prevResult", result)).is_silent();
    bare(Call::status(&host)).is_silent();
    bare(Call::gc(&host)).is_silent();
    bare(Call::del(&host)).is_silent();
    ground::is_empty(&host);
}

#[test]
fn point_19_a_proxy_in_the_environment_is_ignored() {
    require!(Part::Etcd(Version::V36));
    let host = etcd_with_r4();
    let mut call = Call::add(&host);
    for name in
        ["HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY", "http_proxy", "https_proxy", "all_proxy", "grpc_proxy"]
    {
        call = call.env(name, "http://127.0.0.1:1");
    }
    assert_eq!(call.run().addresses().len(), 1);
}

// D. Standard input

#[test]
fn point_20_what_is_not_a_json_object_is_refused() {
    let host = HostFile::local();
    let good = r#"{"cniVersion":"1.0.0","name":"n","ipam":{"type":"leasehold"}}"#;
    for text in ["", "{{{", "[]", "\"x\"", &format!("\u{feff}{good}"), &format!("{good}x")] {
        for call in [Call::add(&host), Call::del(&host)] {
            call.stdin(text).run().error(6);
        }
    }
    Call::del(&ground::on_local()).stdin(format!("{good}\n \n")).run().is_silent();
}

#[test]
fn point_22_names_of_any_length_do_not_break_it() {
    require!(Part::Etcd(Version::V36));
    let host = etcd_with_r4();
    let long = "n".repeat(300);
    for network in ["te%%st", "-net", "a b", "a/b", "../x"] {
        let error = Call::add(&host).network(network).run().error(7);
        assert_eq!(error["details"], network);
    }
    Call::add(&host).network(&long).run().error(7);
    let id = "c".repeat(300);
    assert_eq!(Call::add(&host).network("a.b-c_d").container(&id).run().addresses().len(), 1);
    Call::del(&host).network("a.b-c_d").container(&id).run().is_silent();
    ground::is_empty(&host);
}

#[test]
fn point_28_a_closed_stdin_is_an_error() {
    let host = HostFile::local();
    let script = format!("exec {} <&-", leasehold().display());
    let mut command = Command::new("/bin/sh");
    command
        .args(["-c", &script])
        .env("CNI_COMMAND", "ADD")
        .env("CNI_CONTAINERID", "c1")
        .env("CNI_IFNAME", "eth0");
    command.env("CNI_NETNS", "/none").env("LEASEHOLD_CONFIG", host.path());
    let answer = Answer(run(&mut command, b""));
    assert_eq!(answer.0.code(), Some(1));
    is_one_document_or_nothing(&answer);
    let error: Value = serde_json::from_str(answer.0.stdout()).unwrap();
    assert!(error["code"] == 5 || error["code"] == 6, "{error}");
}

// E. Versions

#[test]
fn point_30_31_every_version_is_answered_in_itself() {
    require!(Part::Etcd(Version::V36));
    let host = etcd_with_r4();
    for version in VERSIONS {
        let result = Call::add(&host).version(version).run().result();
        assert_eq!(result["cniVersion"], version);
        Call::del(&host).version(version).run().is_silent();
    }
    for version in [Value::Null, "".into()] {
        let result = Call::add(&host).field("cniVersion", version).run().result();
        assert_eq!(result["cniVersion"], "0.1.0");
        assert!(result["ip4"]["ip"].is_string() && result.get("ips").is_none());
        Call::del(&host).run().is_silent();
    }
    ground::is_empty(&host);
}

#[test]
fn point_32_33_34_35_other_versions_are_refused_and_change_nothing() {
    require!(Part::Etcd(Version::V36));
    let host = etcd_with_r4();
    Call::add(&host).container("held").run().result();
    let before = ground::look(&host).revisions;
    for version in ["1.2.0", "2.0.0", "1.0", "0.3.2", "v1.0.0", "1.0.0 ", "abc"] {
        for call in [Call::add(&host), Call::del(&host).container("held")] {
            let error = call.version(version).run().error(1);
            assert_eq!(error["msg"], "incompatible CNI versions");
            let text = error["details"].as_str().unwrap();
            assert!(
                text.starts_with(&format!("config is {version:?}, plugin supports [\"0.1.0\"")),
                "{text}"
            );
        }
    }
    Call::add(&host).field("cniVersion", 1).run().error(6);
    let below = [Value::Null, "0.1.0".into(), "0.2.0".into(), "0.3.0".into(), "0.3.1".into()];
    for version in &below {
        let error = Call::check(&host).field("cniVersion", version.clone()).run().error(1);
        assert_eq!(error["msg"], "config version does not allow CHECK");
    }
    for version in below.iter().cloned().chain(["0.4.0".into(), "1.0.0".into()]) {
        for verb in ["GC", "STATUS"] {
            let error = Call::command(verb, &host).field("cniVersion", version.clone()).run().error(1);
            assert_eq!(error["msg"], format!("config version does not allow {verb}"));
        }
    }
    for verb in ["CHECK", "GC", "STATUS"] {
        let error = Call::command(verb, &host).version("1.2.0").run().error(1);
        assert_eq!(error["msg"], format!("plugin version does not allow {verb}"));
        Call::command(verb, &host).version("abc").run().error(6);
    }
    assert_eq!(ground::look(&host).revisions, before);
}

// F. The result

#[test]
fn point_36_to_43_the_exact_document_of_every_version() {
    require!(Part::Etcd(Version::V36));
    let host = ground::on_etcd();
    pool_of_shapes(&host);
    let dns = json!({ "nameservers": ["10.9.0.53"], "domain": "lab.test", "search": ["lab.test"], "options": ["ndots:2"] });
    let (v4, v6) = ("10.9.0.77/24", "fd00:9::77/64");
    let (gw4, gw6) = ("10.9.0.254", "fd00:9::fe");
    let plain = json!([
        { "dst": "0.0.0.0/0", "gw": gw4 }, { "dst": "10.50.0.0/16", "gw": "10.9.0.253" }, { "dst": "::/0", "gw": gw6 },
    ]);
    let mut full = plain.clone();
    full[1] = json!({ "dst": "10.50.0.0/16", "gw": "10.9.0.253", "mtu": 1400, "advmss": 1360, "priority": 100,
                      "table": 200, "scope": 0 });
    for version in VERSIONS {
        let wanted = match version {
            "0.1.0" | "0.2.0" => json!({
                "cniVersion": version, "dns": dns,
                "ip4": { "ip": v4, "gateway": gw4, "routes": [plain[0], plain[1]] },
                "ip6": { "ip": v6, "gateway": gw6, "routes": [plain[2]] },
            }),
            "0.3.0" | "0.3.1" | "0.4.0" => json!({
                "cniVersion": version, "dns": dns, "routes": plain,
                "ips": [{ "version": "4", "address": v4, "gateway": gw4 },
                        { "version": "6", "address": v6, "gateway": gw6 }],
            }),
            _ => json!({
                "cniVersion": version, "dns": dns, "routes": full,
                "ips": [{ "address": v4, "gateway": gw4 }, { "address": v6, "gateway": gw6 }],
            }),
        };
        let answer = Call::add(&host).version(version).run();
        assert_eq!(answer.result(), wanted);
        assert_eq!(answer.0.stdout().lines().count(), 1, "point 47: one document");
        Call::del(&host).version(version).run().is_silent();
    }
    ground::is_empty(&host);
}

#[test]
fn point_37_two_of_a_family_do_not_fit_an_old_version() {
    require!(Part::Etcd(Version::V36));
    let host = ground::on_etcd().with("inlineRanges", "allow");
    let ranges = json!([[{ "subnet": "10.1.0.0/24" }], [{ "subnet": "10.2.0.0/24" }]]);
    let routes = json!([{ "dst": "0.0.0.0/0" }, { "dst": "::/0" }]);
    let call = |version: &str| Call::add(&host).version(version).ipam("ranges", ranges.clone());
    for version in ["0.1.0", "0.2.0"] {
        let text = call(version).run().error_text(7);
        assert!(text.contains("more than 1 address per family"), "{text}");
        ground::is_empty(&host);
    }
    assert_eq!(call("0.3.0").ipam("routes", routes.clone()).run().addresses().len(), 2);
    let old = Call::add(&host)
        .version("0.2.0")
        .container("c2")
        .ipam("subnet", "10.3.0.0/24")
        .ipam("routes", routes);
    let result = old.run().result();
    assert_eq!(result["ip4"]["routes"], json!([{ "dst": "0.0.0.0/0", "gw": "10.3.0.1" }]));
    assert!(result.get("ip6").is_none());
}

#[test]
fn point_44_what_belongs_to_the_subnet_is_never_leased() {
    require!(Part::Etcd(Version::V36));
    let host = ground::on_etcd();
    let mut document = json!({
        "name": "tiny", "networks": ["with"], "serves": ["*/*"], "coolDown": "0s",
        "ranges": [{ "subnet": "10.0.0.0/29", "gateway": "10.0.0.6" }],
    });
    ground::pool(&host, document.clone());
    document["name"] = "bare".into();
    document["networks"] = json!(["without"]);
    document["ranges"] = json!([{ "subnet": "10.0.1.0/29" }]);
    ground::pool(&host, document);
    let all = |network: &str, bridge: bool| -> BTreeSet<String> {
        let mut seen = BTreeSet::new();
        for number in 0..8 {
            let mut call = Call::add(&host).network(network).container(&format!("{network}{number}"));
            if bridge {
                call = call.field("type", "bridge").field("isGateway", true);
            }
            let answer = call.run();
            if answer.0.code() != Some(0) {
                let total = if bridge || network == "with" { 5 } else { 6 };
                assert!(answer.error_text(11).contains(&format!("{total} of {total}")), "{answer:?}");
                break;
            }
            seen.extend(answer.addresses());
        }
        seen
    };
    let range = |subnet: u8, last: std::ops::RangeInclusive<u8>| -> BTreeSet<String> {
        last.map(|last| format!("10.0.{subnet}.{last}/29")).collect()
    };
    assert_eq!(all("with", false), range(0, 1..=5));
    // bridge takes the first address for itself where no gateway is known
    assert_eq!(all("without", true), range(1, 2..=6));
    let answer = Call::add(&host).network("without").container("other").run();
    assert_eq!(answer.addresses(), ["10.0.1.1/29"]);
    assert_eq!(answer.result()["ips"][0].get("gateway"), None, "B102: nobody guesses a gateway");
}

#[test]
fn point_46_both_families_or_none() {
    require!(Part::Etcd(Version::V36));
    let host = ground::on_etcd().with("deadlines", json!({ "add": "2s" }));
    pool_of_shapes(&host);
    let proxy = Proxy::to(ground::address_of(&host));
    let ours = host.node("n2").endpoints([proxy.url("http")]).with("node", "n1");
    assert_eq!(Call::add(&ours).run().addresses().len(), 2);
    let commits: Vec<_> = proxy.transactions().into_iter().filter(|txn| txn.is_commit()).collect();
    assert_eq!(commits.len(), 1, "one transaction for both");
    // one family is full: nothing of the other
    let text = Call::add(&host).container("c2").run().error_text(11);
    assert!(text.contains("1 of 1"), "{text}");
    assert_eq!(ground::only_lease(&host).addresses.len(), 2);
    Call::del(&host).run().is_silent();
    // the store goes away before the commit
    proxy.set(Fault::LoseCommit(1));
    assert_eq!(Call::add(&ours).run().addresses().len(), 2, "sent again");
    assert_eq!(ground::only_lease(&host).addresses.len(), 2);
}

// G. ADD

#[test]
fn point_48_a_requested_address_or_an_error() {
    require!(Part::Etcd(Version::V36));
    let host = etcd_with_r4();
    let call = || Call::add(&host).field("runtimeConfig", Value::Null);
    let runtime = |ip: &str| json!({ "ips": [ip] });
    let args = |ip: &str| json!({ "cni": { "ips": [ip] } });
    let all = call().field("runtimeConfig", runtime("10.0.0.11/24")).field("args", args("10.0.0.12"));
    let got = |call: Call| {
        let answer = call.run();
        Call::del(&host).run().is_silent();
        answer.addresses()
    };
    assert_eq!(got(all.arg("IP", "10.0.0.13")), ["10.0.0.11/24"]);
    assert_eq!(got(call().field("args", args("10.0.0.12/24")).arg("IP", "10.0.0.13")), ["10.0.0.12/24"]);
    assert_eq!(got(call().arg("IP", "10.0.0.13/24")), ["10.0.0.13/24"]);
    assert_eq!(got(call().arg("IP", "10.0.0.13")), ["10.0.0.13/24"]);
    call().arg("IP", "10.0.0.12").container("other").run().result();
    let taken = call().arg("IP", "10.0.0.12").run().error_text(100);
    assert!(taken.contains("10.0.0.12 is not free") && taken.contains("_/other"), "{taken}");
    for (wrong, why) in [
        ("10.0.0.14", "outside its ranges"),
        ("10.0.0.1", "the gateway"),
        ("10.0.0.0", "the network address"),
        ("fd00::1", "no IPv6 range"),
    ] {
        let text = call().arg("IP", wrong).run().error_text(100);
        assert!(text.contains("is in no pool that may be used") && text.contains(why), "{text}");
    }
    let both = call().arg("IP", "10.0.0.11,10.0.0.13").run().error_text(100);
    assert!(both.contains("no single pool can give all the requested addresses at once"), "{both}");
    assert_eq!(ground::leases(&host).len(), 1, "never another address instead");
    // a list with one for each family
    let dual = ground::on_etcd();
    pool_of_shapes(&dual);
    let both = Call::add(&dual).arg("IP", "fd00:9::77,10.9.0.77/24").run();
    assert_eq!(both.addresses(), ["10.9.0.77/24", "fd00:9::77/64"]);
}

#[test]
fn point_49_cni_args_in_any_order_and_repeated() {
    require!(Part::Etcd(Version::V36));
    let host = etcd_with_r4();
    let add = |args: &str| Call::add(&host).env("CNI_ARGS", args).run();
    let first = add("IgnoreUnknown=1;K8S_POD_NAMESPACE=shop;K8S_POD_NAME=db-0;K8S_POD_UID=u1").addresses();
    for args in [
        "K8S_POD_UID=u1;K8S_POD_NAME=db-0;IgnoreUnknown=true;FOO=bar;K8S_POD_NAMESPACE=shop",
        "IgnoreUnknown=TRUE;K8S_POD_NAMESPACE=x;K8S_POD_NAME=y;K8S_POD_NAMESPACE=shop;K8S_POD_NAME=db-0",
        "IgnoreUnknown=1;K8S_POD_NAMESPACE=shop;K8S_POD_NAME=db-0;A=b=c;;",
    ] {
        assert_eq!(add(args).addresses(), first, "{args}");
    }
    assert_eq!(ground::only_lease(&host).id.holder.to_string(), "shop/db-0");
    let error = add("K8S_POD_NAMESPACE=shop;K8S_POD_NAME=db-0;FOO=bar").error(4);
    assert!(error["msg"].as_str().unwrap().contains("CNI_ARGS"));
    // DEL and CHECK never fail on them
    Call::check(&host)
        .env("CNI_ARGS", "K8S_POD_NAMESPACE=shop;K8S_POD_NAME=db-0;FOO=bar;;=")
        .run()
        .is_silent();
    Call::del(&host).env("CNI_ARGS", ";;FOO;K8S_POD_NAME=//").run().is_silent();
    ground::is_empty(&host);
}

#[test]
fn point_51_an_earlier_result_is_ignored() {
    require!(Part::Etcd(Version::V36));
    let host = etcd_with_r4();
    let before = json!({ "cniVersion": "1.0.0", "interfaces": [{ "name": "eth0" }],
                         "ips": [{ "address": "192.168.7.7/24", "interface": 0 }], "routes": [{ "dst": "0.0.0.0/0" }] });
    let result = Call::add(&host).field("prevResult", before).run().result();
    assert_eq!(result["ips"].as_array().unwrap().len(), 1);
    let ip = &result["ips"][0];
    assert!(ip["address"].as_str().unwrap().starts_with("10.0.0.1") && ip.get("interface").is_none());
    assert!(result.get("interfaces").is_none() && result.get("routes").is_none(), "points 40, 51: {result}");
}

#[test]
fn point_52_b021_the_same_again_is_answered_the_same() {
    require!(Part::Etcd(Version::V36));
    let host = etcd_with_r4();
    let pod = Call::add(&host).pod("shop/db-0").uid("u1");
    let first = pod.run().result();
    let before = ground::look(&host).revisions;
    assert_eq!(pod.run().result(), first);
    assert_eq!(ground::look(&host).revisions, before, "nothing is written");
    let bare = Call::add(&host).container("c2");
    assert_eq!(bare.run().result(), bare.run().result());
    assert_eq!(ground::leases(&host).len(), 2);
}

#[test]
fn point_53_b024_b128_each_attachment_has_its_own() {
    require!(Part::Etcd(Version::V36));
    let host = etcd_with_r4();
    let add = |ifname: &str, network: &str| {
        Call::add(&host).pod("shop/db-0").ifname(ifname).network(network).run().addresses()
    };
    let attachments = [("net1", "lan100"), ("net2", "lan100"), ("net1", "lan200")];
    let first: Vec<_> = attachments.iter().map(|(ifname, network)| add(ifname, network)).collect();
    assert_eq!(first.iter().flatten().collect::<BTreeSet<_>>().len(), 3);
    let again: Vec<_> = attachments.iter().map(|(ifname, network)| add(ifname, network)).collect();
    assert_eq!(first, again);
    Call::del(&host).pod("shop/db-0").ifname("net1").run().is_silent();
    let left: BTreeSet<_> = ground::leases(&host).into_iter().map(|lease| lease.id.to_string()).collect();
    assert_eq!(left, ["shop/db-0 net1 on lan200", "shop/db-0 net2 on lan100"].map(String::from).into());
}

#[test]
fn point_54_b130_fifty_at_once() {
    require!(Part::Etcd(Version::V36));
    let host = ground::on_etcd();
    r(&host, "wide", "10.0.0.10", "10.0.0.200");
    let at_once = |host: &HostFile, network: &str| -> Vec<Answer> {
        let call = |number| Call::add(host).network(network).container(&format!("c{number}")).start();
        let running: Vec<_> = (0..50).map(call).collect();
        running.into_iter().map(|running| Answer(running.wait())).collect()
    };
    let got: BTreeSet<String> = at_once(&host, "n").iter().flat_map(Answer::addresses).collect();
    assert_eq!(got.len(), 50);
    let log = host.log();
    let lines: Vec<Value> = log.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    assert_eq!(
        lines.iter().filter(|line| line["event"] == "lease.bound").count(),
        50,
        "whole lines, one each"
    );

    let small = ground::on_etcd();
    r(&small, "small", "10.0.0.10", "10.0.0.19");
    let answers = at_once(&small, "n");
    let (good, bad): (Vec<_>, Vec<_>) = answers.iter().partition(|answer| answer.0.code() == Some(0));
    let distinct: BTreeSet<String> = good.iter().flat_map(|answer| answer.addresses()).collect();
    assert_eq!((distinct.len(), bad.len()), (10, 40));
    for answer in bad {
        let text = answer.error_text(11);
        assert!(text.starts_with("pool small is full (10 of 10)"), "{text}");
    }
    assert_eq!(ground::leases(&small).len(), 10);
}

#[test]
fn point_56_a_caller_that_was_killed_leaves_nothing() {
    require!(Part::Etcd(Version::V36));
    let host = etcd_with_r4();
    // its caller is gone when the answer comes
    assert_ne!(Call::add(&host).pod("shop/web-1").start_deaf().wait().code(), Some(0));
    ground::is_empty(&host);
    // DEL runs while ADD still waits for its commit; then the commit lands
    let proxy = Proxy::to(ground::address_of(&host));
    let slow = host.node("n1").endpoints([proxy.url("http")]);
    proxy.set(Fault::HoldCommit(1));
    let add = Call::add(&slow).pod("shop/web-1").start_deaf();
    proxy.held();
    Call::del(&host).pod("shop/web-1").run().is_silent();
    proxy.release();
    assert_ne!(add.wait().code(), Some(0));
    ground::is_empty(&host);
}

#[test]
fn point_57_64_without_the_store_add_says_so_and_del_is_kept_for_later() {
    require!(Part::Etcd(Version::V36));
    let host = ground::on_etcd().with("deadlines", json!({ "add": "2s", "del": "1s" }));
    r4(&host);
    let proxy = Proxy::to(ground::address_of(&host));
    let node = host.node("n1").endpoints([proxy.url("http")]);
    let kept = Call::add(&node).run().addresses();
    for fault in [Fault::Refuse, Fault::BlackHole] {
        proxy.set(fault);
        let answer = Call::add(&node).container("c2").run();
        let text = answer.error_text(11);
        assert!(text.contains("store") && text.contains(&proxy.url("http")), "{fault:?}: {text}");
        assert!(answer.0.took < Duration::from_secs(5), "{fault:?}: {:?}", answer.0.took);
    }
    Call::del(&node).run().is_silent();
    assert!(node.log().contains("lease.journaled"), "{}", node.log());
    proxy.set(Fault::Pass);
    assert_eq!(ground::only_lease(&host).addresses[0].address.to_string() + "/24", kept[0]);
    // any later run on the node tells it
    Call::del(&node).container("c3").run().is_silent();
    ground::is_empty(&host);
}

#[test]
fn a_resolv_conf_that_is_no_plain_file_is_refused_at_once() {
    let host = ground::on_local();
    let fifo = host.folder().join("fifo");
    run(Command::new("mkfifo").arg(&fifo), b"").success();
    let large = host.folder().join("large");
    fs::write(&large, "search lab.test\n".repeat(100_000)).unwrap();
    for path in [Path::new("/dev/zero"), &fifo, Path::new("/etc"), &large, Path::new("/proc/kmsg")] {
        let call = Call::add(&host).ipam("subnet", "10.0.0.0/24").ipam("resolvConf", path.to_str().unwrap());
        let answer = call.run();
        let text = answer.error_text(7);
        assert!(text.contains("resolvConf") && text.contains(path.to_str().unwrap()), "{text}");
        assert!(answer.0.took < Duration::from_secs(5));
    }
    ground::is_empty(&host);
}

// H. DEL

#[test]
fn point_64_a_del_that_nobody_takes_fails_in_words_that_no_runtime_takes_for_success() {
    require!(Part::Etcd(Version::V36));
    let host = ground::on_etcd().with("deadlines", json!({ "add": "1s", "del": "1s" }));
    r4(&host);
    let blocked = host.folder().join("file");
    fs::write(&blocked, "").unwrap();
    let proxy = Proxy::to(ground::address_of(&host));
    for state in [blocked.join("state"), Path::new("/proc/none").to_owned()] {
        let node = host.node("n1").endpoints([proxy.url("http")]).with("stateDir", state.to_str().unwrap());
        proxy.set(Fault::Pass);
        Call::add(&host).run().result();
        proxy.set(Fault::Refuse);
        let text = Call::del(&node).run().error_text(11).to_ascii_lowercase();
        assert!(
            text.contains("journal") && text.contains(&state.to_str().unwrap().to_ascii_lowercase()),
            "{text}"
        );
        assert!(!text.contains("not found") && !text.contains("no such file"), "{text}");
        assert_eq!(ground::leases(&host).len(), 1);
        proxy.set(Fault::Pass);
        Call::del(&node).run().is_silent();
        ground::is_empty(&host);
        // nor does a state folder that cannot be had stop a pod
        Call::add(&node).run().result();
        Call::del(&node).run().is_silent();
    }
}

// Bad input, a row each of the design's table, on the built program

#[test]
fn bad_input_an_unknown_key_in_ipam_is_2_and_names_the_nearest_but_stops_no_end() {
    require!(Part::Etcd(Version::V36));
    let host = etcd_with_r4();
    Call::add(&host).pod("shop/a").run().result();
    let text = Call::add(&host).pod("shop/b").container("b").ipam("pol", "r4").run().error_text(2);
    assert!(text.contains("pol") && text.contains("r4") && text.contains("pool"), "{text}");
    assert_eq!(ground::leases(&host).len(), 1, "nothing was leased");
    Call::status(&host).version("1.1.0").ipam("pol", "r4").run().is_silent();
    Call::del(&host).pod("shop/a").ipam("pol", "r4").run().is_silent();
    ground::is_empty(&host);
}

#[test]
fn bad_input_a_pod_that_no_pool_serves_is_7_with_all_names_and_the_command() {
    require!(Part::Etcd(Version::V36));
    let host = ground::on_etcd();
    let text = Call::add(&host).pod("shop/web-0").network("elsewhere").run().error_text(7);
    for part in ["network elsewhere", "shop/web-0", "shop/web,", "shop/*", "*/*", "leasehold pool create"] {
        assert!(text.contains(part), "{part}: {text}");
    }
}

#[test]
fn bad_input_faults_of_inline_ranges_name_field_and_value() {
    let host = HostFile::local();
    let cases = [
        (
            json!([[{ "subnet": "10.0.0.0/24", "rangeStart": "10.0.0.9", "rangeEnd": "10.0.0.5" }]]),
            "10.0.0.9",
        ),
        (json!([[{ "subnet": "10.0.0.0/24", "rangeStart": "10.9.0.9" }]]), "10.9.0.9"),
        (json!([[{ "subnet": "10.0.0.0/24", "rangeEnd": "fd00::9" }]]), "fd00::9"),
        (json!([[{ "subnet": "10.0.0.0/24", "gateway": "10.7.0.1" }]]), "10.7.0.1"),
        (json!([[{ "subnet": "10.0.0.1/24" }]]), "10.0.0.1/24"),
        (json!([[{ "subnet": "10.0.0.0/32", "gateway": "10.0.0.0" }]]), "nothing usable"),
        (json!([[{ "subnet": "10.0.0.0/24" }], [{ "subnet": "10.0.0.0/25" }]]), "overlap"),
    ];
    for (ranges, part) in cases {
        let text = Call::add(&host).ipam("ranges", ranges).run().error_text(7);
        assert!(text.contains("ranges[") && text.contains(part), "{part}: {text}");
    }
}

/// The plugin knows no API server: not one that is down, and not one whose credentials have expired.
#[test]
fn b034_neither_add_nor_del_asks_an_api_server() {
    require!(Part::Etcd(Version::V36));
    let host = etcd_with_r4();
    let dead =
        [("KUBERNETES_SERVICE_HOST", "127.0.0.1"), ("KUBERNETES_SERVICE_PORT", "1"), ("KUBECONFIG", "/none")];
    let with =
        |call: Call| dead.iter().fold(call.pod("shop/db-0"), |call, (name, value)| call.env(name, *value));
    assert_eq!(with(Call::add(&host)).run().addresses().len(), 1);
    with(Call::del(&host)).run().is_silent();
    ground::is_empty(&host);
}

#[test]
fn point_58_b026_del_of_what_is_not_there_is_a_success() {
    require!(Part::Etcd(Version::V36));
    let host = etcd_with_r4();
    for _ in 0..3 {
        Call::del(&host).pod("shop/db-0").run().is_silent();
    }
    Call::add(&host).pod("shop/db-0").run().result();
    for _ in 0..3 {
        Call::del(&host).pod("shop/db-0").run().is_silent();
    }
    ground::is_empty(&host);
}

#[test]
fn point_59_b004_del_goes_by_container_whatever_else_is_said() {
    require!(Part::Etcd(Version::V36));
    let host = etcd_with_r4();
    let foreign = json!({ "cniVersion": "0.2.0", "ip4": { "ip": "10.0.0.12/24" } });
    let dels: [fn(Call, &Value) -> Call; 6] = [
        |call, _| call,
        |call, foreign| call.field("prevResult", foreign.clone()),
        |call, _| call.field("prevResult", 7).field("ipam", json!({ "type": "leasehold", "colour": "red" })),
        |call, _| call.without_env("CNI_NETNS").field("ipam", Value::Null),
        |call, _| call.env("CNI_NETNS", ""),
        |call, _| call.env("CNI_NETNS", "/nonexistent").pod("other/pod"),
    ];
    Call::add(&host).pod("shop/web-x").container("stays").run().result();
    for change in dels {
        Call::add(&host).pod("shop/web-1").run().result();
        change(Call::del(&host), &foreign).run().is_silent();
        assert_eq!(ground::only_lease(&host).id.holder.to_string(), "shop/web-x");
    }
}

#[test]
fn point_62_b028_a_late_del_leaves_the_successor_alone() {
    require!(Part::Etcd(Version::V36));
    let host = etcd_with_r4();
    let (pod, uid) = ("shop/db-0", "u");
    let old = Call::add(&host).pod(pod).uid(uid).container("a").run().addresses();
    let new = Call::add(&host).pod(pod).uid(uid).container("b").run();
    assert_eq!(new.addresses(), old);
    Call::del(&host).pod(pod).uid(uid).container("a").run().is_silent();
    Call::del(&host).pod(pod).uid(uid).container("a").run().is_silent();
    Call::check(&host).pod(pod).container("b").field("prevResult", new.result()).run().is_silent();
    let stale = Call::check(&host).pod(pod).container("a").field("prevResult", new.result()).run();
    assert!(stale.error_text(101).contains("bound to container b"), "B132");
    Call::del(&host).pod(pod).container("b").run().is_silent();
    ground::is_empty(&host);
}

// I. CHECK

#[test]
fn point_65_66_67_check_compares_what_is_ours() {
    require!(Part::Etcd(Version::V36));
    let host = etcd_with_r4();
    for version in ["0.4.0", "1.0.0", "1.1.0"] {
        let address = Call::add(&host).pod("shop/web-1").version(version).run().addresses().remove(0);
        let check = || Call::check(&host).pod("shop/web-1").version(version);
        let chain = json!({
            "cniVersion": version,
            "interfaces": [{ "name": "veth0" }, { "name": "eth0", "sandbox": "/x" }],
            "ips": [{ "version": "4", "address": "192.168.1.1/24", "interface": 0 },
                    { "version": "4", "address": address, "interface": 1, "gateway": "10.0.0.254" }],
            "dns": { "nameservers": ["1.1.1.1"] },
        });
        check().field("prevResult", chain.clone()).run().is_silent();
        check().run().is_silent(); // nothing to compare with: the lease alone
        let mut bare = chain.clone();
        bare.as_object_mut().unwrap().remove("cniVersion");
        bare["dns"] = json!({});
        check().field("prevResult", bare).run().is_silent();
        let mut wrong = chain.clone();
        wrong["ips"] = json!([{ "version": "4", "address": "10.0.0.200/24" }]);
        let text = check().field("prevResult", wrong).run().error_text(101);
        assert!(text.contains("prevResult"), "{text}");
        Call::del(&host).pod("shop/web-1").run().is_silent();
        let text = check().field("prevResult", chain).run().error_text(101);
        assert!(text.contains("has no lease"), "{text}");
    }
}

// J. GC, STATUS

#[test]
fn point_68_69_70_b050_gc_frees_what_is_not_in_the_list_here() {
    require!(Part::Etcd(Version::V36));
    let host = ground::on_etcd();
    r(&host, "lan", "10.0.0.10", "10.0.0.100");
    let other = host.node("n2");
    Call::add(&other).container("elsewhere").run().result();
    Call::add(&host).container("foreign").network("lan200").run().result();
    let kept = ["_/elsewhere", "_/foreign"];
    let names = || -> BTreeSet<String> {
        ground::leases(&host).into_iter().map(|lease| lease.id.holder.to_string()).collect()
    };
    let with = |more: &[&str]| -> BTreeSet<String> {
        kept.iter().chain(more).map(|name| (*name).to_string()).collect()
    };
    let refill = || {
        for id in ["c1", "c2", "c3"] {
            Call::add(&host).container(id).run().result();
        }
    };
    let item = |id: &str| json!({ "containerID": id, "ifname": "eth0" });
    let gc = |fields: &[(&str, Value)]| {
        let call = fields.iter().fold(Call::gc(&host), |call, (name, value)| call.field(name, value.clone()));
        call.run().is_silent();
    };
    let (new, old) = ("cni.dev/valid-attachments", "cni.dev/attachments");
    refill();
    gc(&[]);
    assert_eq!(names(), with(&["_/c1", "_/c2", "_/c3"]), "key absent: nothing");
    gc(&[(new, json!([item("c1"), item("c2")]))]);
    assert_eq!(names(), with(&["_/c1", "_/c2"]));
    refill();
    gc(&[(old, json!([item("c1"), item("c3")]))]);
    assert_eq!(names(), with(&["_/c1", "_/c3"]));
    refill();
    gc(&[(new, json!([item("c1")])), (old, json!([item("c2")]))]);
    assert_eq!(names(), with(&["_/c1", "_/c2"]), "in either list: in use");
    gc(&[(new, json!([item("c1")])), (old, json!([item("c1")]))]);
    assert_eq!(names(), with(&["_/c1"]));
    for nothing in [json!([]), Value::Null] {
        refill();
        gc(&[(new, nothing)]);
        assert_eq!(names(), with(&[]));
    }
    let sticky = Call::add(&host).pod("shop/db-0").field("args", json!({ "cni": { "sticky": true } })).run();
    gc(&[(new, json!([]))]);
    let lease =
        ground::leases(&host).into_iter().find(|lease| lease.id.holder.to_string() == "shop/db-0").unwrap();
    assert_eq!(lease.state().as_str(), "held", "a sticky lease is kept for its pod");
    let again = Call::add(&host).pod("shop/db-0").container("c9").run();
    assert_eq!(again.addresses(), sticky.addresses());
}

#[test]
fn point_73_status_is_local_unless_told_otherwise() {
    require!(Part::Etcd(Version::V36));
    let host = ground::on_etcd();
    r(&host, "one", "10.0.0.10", "10.0.0.10");
    let proxy = Proxy::to(ground::address_of(&host));
    let node = host.node("n2").endpoints([proxy.url("http")]);
    let asking = host.node("n3").endpoints([proxy.url("http")]).with("statusChecksStore", true);
    Call::add(&host).run().result();
    let before = ground::look(&host).revisions;
    for host in [&node, &asking] {
        Call::status(host).run().is_silent(); // full is no reason
    }
    for fault in [Fault::Refuse, Fault::BlackHole] {
        proxy.set(fault);
        Call::status(&node).run().is_silent();
        let answer = Call::status(&asking).run();
        let text = answer.error_text(50);
        assert!(text.contains("the store"), "{text}");
        assert!(answer.0.took < Duration::from_millis(3500), "{fault:?}: {:?}", answer.0.took);
    }
    proxy.set(Fault::Pass);
    assert_eq!(ground::look(&host).revisions, before);
    // what is local is looked at
    let broken = host.node("n4");
    broken.write("{");
    Call::status(&broken).run().error(50);
}

// What people met in the field

#[test]
fn b126_sigterm_leaves_one_document_and_no_lease() {
    require!(Part::Etcd(Version::V36));
    let host = etcd_with_r4();
    let proxy = Proxy::to(ground::address_of(&host));
    let node = host.node("n1").endpoints([proxy.url("http")]);
    proxy.set(Fault::HoldCommit(1));
    let add = Call::add(&node).start();
    proxy.held();
    add.signal("TERM");
    let answer = Answer(add.wait());
    assert!(answer.error_text(11).starts_with("terminated"));
    is_one_document_or_nothing(&answer);
    proxy.release();
    assert_eq!(ground::leases(&host).len(), 1, "it landed after its sender had gone");
    Call::del(&node).container("another").run().is_silent();
    ground::is_empty(&host);

    // before anything could be sent
    let terminated = |call: Call| {
        let connections = proxy.connections();
        let running = call.field("cni.dev/valid-attachments", json!([])).start();
        eventually("a connection", || (proxy.connections() > connections).then_some(()));
        running.signal("TERM");
        Answer(running.wait())
    };
    Call::add(&node).container("ends").run().result();
    proxy.set(Fault::BlackHole);
    for call in [Call::add(&node), Call::check(&node), Call::gc(&node)] {
        let answer = terminated(call);
        assert_ne!(answer.0.code(), Some(0));
        is_one_document_or_nothing(&answer);
    }
    // the runtime may never ask again: it is told later
    terminated(Call::del(&node).container("ends")).is_silent();
    proxy.set(Fault::Pass);
    assert_eq!(ground::leases(&host).len(), 1);
    Call::del(&node).container("another").run().is_silent();
    ground::is_empty(&host);
}

#[test]
fn b126_a_panic_is_one_document_or_nothing() {
    let host = HostFile::local();
    let mut internal = 0;
    // too little memory for a thread is a panic, for a text an abort
    for kib in (2_000..40_000).step_by(500) {
        let script = format!("ulimit -v {kib}; exec {}", leasehold().display());
        let mut command = Command::new("/bin/sh");
        command.args(["-c", &script]).env_clear().env("LEASEHOLD_CONFIG", host.path());
        command.env("CNI_COMMAND", "VERSION");
        let answer = Answer(run(&mut command, b"{}"));
        is_one_document_or_nothing(&answer);
        if answer.0.code() == Some(0) {
            break;
        }
        if let Ok(error) = serde_json::from_slice::<Value>(&answer.0.stdout) {
            assert_eq!((&error["code"], answer.0.code()), (&json!(102), Some(1)), "{error}");
            internal += 1;
        }
    }
    assert!(internal > 0, "no panic was seen");
}

#[test]
fn b129_no_secret_is_said_or_logged() {
    require!(Part::Etcd(Version::V36));
    let etcd = Etcd::with(Version::V36).auth().start();
    let log = |host: &HostFile| json!({ "file": host.folder().join("leasehold.log"), "level": "debug" });
    let host = HostFile::on(&etcd);
    let settings = log(&host);
    let host = host.with("log", settings).with("deadlines", json!({ "add": "1s", "del": "1s" }));
    ground::register(&host);
    r4(&host);
    Call::add(&host).run().result();
    let mut answers = vec![Call::add(&host).run(), Call::del(&host).run(), Call::status(&host).run()];
    let mut settings = etcd.settings();
    settings["password"] = "wrong-hunter2".into();
    let wrong = host.node("n2").with("store", json!({ "etcd": settings }));
    let settings = log(&wrong);
    let wrong = wrong.with("log", settings).with("statusChecksStore", true);
    answers.extend([Call::add(&wrong).run(), Call::del(&wrong).run(), Call::status(&wrong).run()]);
    let in_ipam = Call::add(&host).ipam("password", "hunter3").run();
    in_ipam.error(7);
    answers.push(in_ipam);
    let strange = host.node("n3");
    let text = fs::read_to_string(strange.path()).unwrap().replace("\"password\":\"", "\"passwort\":\"");
    strange.write(&text);
    answers.push(Call::add(&strange).run());
    let mut said: String =
        answers.iter().map(|answer| format!("{}{}", answer.0.stdout(), answer.0.stderr())).collect();
    for host in [&host, &wrong, &strange] {
        said += &host.log();
    }
    for secret in [USER.1, "hunter2", "hunter3"] {
        assert!(!said.contains(secret), "{said}");
    }
    assert!(said.contains("refused"), "{said}");
}

#[test]
fn b130_a_log_that_cannot_be_written_stops_nobody() {
    let host = ground::on_local();
    r4(&host);
    let blocked = host.folder().join("file");
    fs::write(&blocked, "").unwrap();
    let unwritable = |file: &Path| json!({ "file": file, "level": "debug" });
    for file in [blocked.join("x.log"), host.folder().to_owned()] {
        let host = host.node("n1").with("log", unwritable(&file)).with("cluster", "local");
        Call::add(&host).run().result();
        Call::del(&host).run().is_silent();
    }
    ground::is_empty(&host);
    let stdout = host.node("n1").with("log", unwritable(Path::new("/dev/stdout")));
    Call::add(&stdout).run().error(7);
}

// The embedded store

#[test]
fn the_embedded_store_behaves_the_same() {
    let host = ground::on_local();
    pool_of_shapes(&host);
    let pod = Call::add(&host).pod("shop/db-0").uid("u1");
    let first = pod.run().result();
    assert_eq!(pod.run().result(), first);
    let text = Call::add(&host).pod("shop/db-1").container("c2").run().error_text(11);
    assert!(text.starts_with("pool shapes is full (1 of 1)"), "{text}");
    Call::check(&host).pod("shop/db-0").field("prevResult", first.clone()).run().is_silent();
    let taken_over = Call::add(&host).pod("shop/db-0").uid("u2").container("c9").run();
    assert_eq!(taken_over.result(), first);
    Call::del(&host).pod("shop/db-0").run().is_silent();
    assert_eq!(ground::leases(&host).len(), 1, "a late DEL");
    Call::gc(&host).field("cni.dev/valid-attachments", json!([])).run().is_silent();
    ground::is_empty(&host);
    Call::status(&host).run().is_silent();
    assert_ne!(Call::add(&host).start_deaf().wait().code(), Some(0));
    ground::is_empty(&host);
}

#[test]
fn the_embedded_store_serves_32_at_once() {
    let host = ground::on_local();
    r(&host, "exact", "10.0.0.10", "10.0.0.41");
    let at_once = |verb: fn(&HostFile) -> Call| -> Vec<Answer> {
        let running: Vec<_> = (0..32).map(|n| verb(&host).container(&format!("c{n}")).start()).collect();
        running.into_iter().map(|running| Answer(running.wait())).collect()
    };
    let got: BTreeSet<String> = at_once(Call::add).iter().flat_map(Answer::addresses).collect();
    assert_eq!(got.len(), 32);
    let text = Call::add(&host).container("late").run().error_text(11);
    assert!(text.contains("32 of 32"), "{text}");
    assert_eq!(ground::leases(&host).len(), 32);
    at_once(Call::del).iter().for_each(Answer::is_silent);
    ground::is_empty(&host);
}

//! The command line on a real etcd: exact tables, JSON, exit codes, and what bad input gets.

use serde_json::Value;

use crate::support::{
    call::{Call, Cli},
    etcd::Etcd,
    folder::Folder,
    host::HostFile,
    parts::{Part, Version, require},
    process::Finished,
};

const POOLS: &str = "
name: shop-db
networks: [lan100]
serves: [shop/db]
ranges:
- {subnet: 10.0.0.0/22, start: 10.0.0.1, end: 10.0.0.10, gateway: 10.0.0.254, exclude: [10.0.0.5]}
routes: [{dst: 0.0.0.0/0}]
---
name: lan
networks: [lan100]
serves: ['*/*']
ranges:
- {subnet: 10.0.0.0/22, start: 10.0.1.1, end: 10.0.3.254}
";

fn cli(host: &HostFile, line: &str) -> Finished {
    Cli::new(host).line(line).run()
}

/// An etcd with a cluster and two pools, and a node.
fn site(etcd: &Etcd) -> HostFile {
    let host = HostFile::on(etcd);
    cli(&host, "cluster add prod-a --uid 11111111-2222-4333-8444-555555555555").success();
    Cli::new(&host).line("pool apply -f -").stdin(POOLS).run().success();
    host
}

fn bind(host: &HostFile, pod: &str, container: &str) {
    Call::add(host).pod(pod).uid("u-7").container(container).run().result();
}

#[track_caller]
fn ends(finished: &Finished, code: i32, stdout: &str, stderr: &str) {
    assert_eq!((finished.stdout(), finished.stderr()), (stdout, stderr));
    assert_eq!(finished.code(), Some(code));
}

/// Ages are not the subject.
fn ageless(text: &str) -> String {
    let aged = |word: &str| {
        word.len() > 1
            && word.ends_with(['s', 'm', 'h', 'd'])
            && word[..word.len() - 1].bytes().all(|b| b.is_ascii_digit())
    };
    text.lines()
        .map(|line| line.split_whitespace().filter(|word| !aged(word)).collect::<Vec<_>>().join(" ") + "\n")
        .collect()
}

#[test]
fn b142_pools_and_leases_are_told_as_they_are() {
    require!(Part::Etcd(Version::V34));
    let etcd = Etcd::start(Version::V34);
    let host = site(&etcd);
    bind(&host, "shop/db-0", "c1");
    let address = cli(&host, "lease list --pool shop-db -o json").success().to_owned();
    let list: Value = serde_json::from_str(&address).unwrap();
    let lease = &list["items"][0];
    let address = lease["address"].as_str().unwrap();
    for (field, wanted) in [
        ("state", "bound"),
        ("domain", "default"),
        ("cluster", "prod-a"),
        ("namespace", "shop"),
        ("pod", "db-0"),
        ("network", "lan100"),
        ("ifname", "eth0"),
        ("pool", "shop-db"),
        ("node", "n1"),
        ("container", "c1"),
        ("uid", "u-7"),
    ] {
        assert_eq!(lease[field], wanted, "b142: {field}");
    }
    assert!(lease["acquired"].as_str().unwrap().ends_with('Z') && lease["sticky"] == true);
    assert_eq!(list["revision"], etcd.revision());
    ends(
        &cli(&host, "pool list"),
        0,
        "NAME      NETWORKS   SERVES    SIZE   BOUND   HELD   COOLING   RESERVED   DECLINED   FREE   USED   DOUBT\n\
         lan       lan100     */*        766       0      0         0          0          0    766     0%       0\n\
         shop-db   lan100     shop/db      9       1      0         0          0          0      8    11%       0\n",
        "",
    );
    assert_eq!(
        ageless(cli(&host, "lease list -n shop").success()),
        format!(
            "ADDRESS STATE POD IF NETWORK POOL NODE AGE WHY\n{address} bound shop/db-0 eth0 lan100 shop-db n1\n"
        )
    );
    ends(&cli(&host, "lease list -o name"), 0, "lease/shop/db-0\n", "");
    ends(&cli(&host, "pool list -o name"), 0, "pool/lan\npool/shop-db\n", "");
    assert_eq!(cli(&host, "lease list -n other --no-headers").success(), "");
    assert!(cli(&host, "lease list -o wide").stderr().starts_with("revision "));
    assert!(cli(&host, &format!("lease show {address}")).success().contains("pod         shop/db-0\n"));
    ends(
        &cli(&host, "lease show 10.9.9.9"),
        5,
        "",
        "error: nobody has 10.9.9.9 (domains looked in: default)\nhint: `leasehold lease list` shows what is leased\n",
    );
    ends(
        &cli(&host, "pool show shop-bd"),
        5,
        "",
        "error: no pool shop-bd\nhint: did you mean shop-db? `leasehold pool list` shows all\n",
    );
    ends(&cli(&host, "version"), 0, concat!("leasehold ", env!("CARGO_PKG_VERSION"), "\n"), "");
    assert!(cli(&host, "completion bash").success().contains("_leasehold"));
    assert_eq!(cli(&host, "lease list --colour").code(), Some(2));
}

#[test]
fn b141_a_running_pod_keeps_its_address() {
    require!(Part::Etcd(Version::V34));
    let etcd = Etcd::start(Version::V34);
    let host = site(&etcd);
    bind(&host, "shop/db-0", "c1");
    let before = etcd.dump("/leasehold/");
    let address = cli(&host, "lease list -o json").success().to_owned();
    let address: Value = serde_json::from_str(&address).unwrap();
    let address = address["items"][0]["address"].as_str().unwrap().to_owned();
    ends(
        &cli(&host, &format!("lease release {address}")),
        4,
        "",
        &format!(
            "error: shop/db-0 uses {address} on node n1\nhint: delete the pod, and its lease ends with it; --force releases the address of a pod that may still answer on it\n"
        ),
    );
    assert_eq!(cli(&host, "lease move shop/db-0 shop/db-1").code(), Some(4));
    assert_eq!(cli(&host, "cluster delete prod-a").code(), Some(4));
    assert_eq!(cli(&host, "pool delete shop-db").code(), Some(4));
    assert_eq!(etcd.dump("/leasehold/"), before);
    let dry = cli(&host, "lease release shop/db-0 --force --dry-run");
    let line = format!(
        "{address} released from shop/db-0 eth0 on lan100, which uses it; it is probed before its next use"
    );
    assert_eq!(dry.success(), format!("{line} (dry run)\n"));
    assert_eq!(etcd.dump("/leasehold/"), before);
    assert_eq!(cli(&host, "lease release shop/db-0 --force").success(), format!("{line}\n"));
    cli(&host, "check").success();
    // B100, B098: a late DEL, and another spelling of the address.
    Call::del(&host).pod("shop/db-0").container("c1").run().is_silent();
    let mapped = format!("lease show ::ffff:{address}");
    assert!(cli(&host, &mapped).success().contains("released"));
}

#[test]
fn b125_what_is_reserved_is_given_to_nobody_else() {
    require!(Part::Etcd(Version::V34));
    let etcd = Etcd::start(Version::V34);
    let host = site(&etcd);
    let reserve =
        |arguments: &[&str]| Cli::new(&host).args(["lease", "reserve"]).args(arguments.to_vec()).run();
    assert_eq!(
        reserve(&["10.0.1.2", "--reason", "printer, 2nd floor"]).success(),
        "10.0.1.2 reserved for a device (printer, 2nd floor)\n"
    );
    assert_eq!(
        reserve(&["shop/db", "--addresses", "10.0.0.1-10.0.0.2"]).success(),
        "10.0.0.1 reserved for shop/db-0 eth0 on lan100\n10.0.0.2 reserved for shop/db-1 eth0 on lan100\n"
    );
    assert_eq!(reserve(&["shop/db-9", "--address", "10.0.0.1"]).code(), Some(4));
    assert_eq!(reserve(&["shop/web-9", "--address", "10.0.0.3"]).code(), Some(1));
    assert_eq!(reserve(&["10.0.1.3"]).code(), Some(2));
    assert_eq!(
        ageless(cli(&host, "lease list").success()),
        "ADDRESS STATE POD IF NETWORK POOL NODE AGE WHY\n\
         10.0.0.1 reserved shop/db-0 eth0 lan100 shop-db -\n\
         10.0.0.2 reserved shop/db-1 eth0 lan100 shop-db -\n\
         10.0.1.2 reserved - - - lan - printer, 2nd floor\n"
    );
    let added = Call::add(&host).pod("shop/db-1").container("c1").run();
    assert_eq!(added.addresses(), ["10.0.0.2/22"]);
    Call::del(&host).pod("shop/db-1").container("c1").run().is_silent();
    assert!(cli(&host, "lease show shop/db-1").success().contains("state       reserved"));
    assert_eq!(
        cli(&host, "lease move shop/db-1 shop/db-5").success(),
        "lease/shop/db-1 moved to shop/db-5: 10.0.0.2\n"
    );
    assert_eq!(
        cli(&host, "lease release --workload shop/db").success(),
        "10.0.0.1 released from shop/db-0 eth0 on lan100\n10.0.0.2 released from shop/db-5 eth0 on lan100; it is probed before its next use\n"
    );
    cli(&host, "check").success();
}

#[test]
fn check_sees_that_the_store_lost_its_own_record() {
    require!(Part::Etcd(Version::V34));
    let etcd = Etcd::start(Version::V34);
    let host = site(&etcd);
    cli(&host, "check").success();
    etcd.del("/leasehold/v1/meta");
    let seen = cli(&host, "check");
    assert_eq!(seen.code(), Some(3));
    assert!(seen.stderr().contains("v1/meta, is missing"), "{}", seen.stderr());
    assert!(!seen.stderr().contains("nothing is wrong"), "{}", seen.stderr());
}

#[test]
fn b013_check_shows_and_mends_half_pairs() {
    require!(Part::Etcd(Version::V34));
    let etcd = Etcd::start(Version::V34);
    let host = site(&etcd);
    etcd.put(
        "/leasehold/v1/addresses/default/4/0a000003",
        r#"{"v":1,"lease":"prod-a/shop/db-3/lan100/eth0"}"#,
    );
    etcd.put(
        "/leasehold/v1/leases/prod-a/shop/db-4/lan100/eth0",
        r#"{"v":1,"state":"held","sticky":true,"addresses":[{"address":"10.0.0.4","domain":"default","pool":"shop-db"}]}"#,
    );
    etcd.put("/leasehold/v1/leases/prod-a/shop/db-6/lan100/eth0", "broken");
    let seen = cli(&host, "check");
    assert_eq!(seen.code(), Some(3));
    assert_eq!(
        seen.stdout(),
        "SEVERITY   REPAIR       NOTE\n\
         error      by hand      v1/leases/prod-a/shop/db-6/lan100/eth0 cannot be read (expected value at line 1 column 1); it is never handed out and never deleted: put it right with etcdctl, or delete it, and `leasehold check --repair` writes it again if its address names it\n\
         error      repairable   10.0.0.3 is held by the lease of shop/db-3 eth0 on lan100, which is not there; `leasehold check --repair` writes the lease again, which then ends as any other\n\
         error      repairable   the lease of shop/db-4 eth0 on lan100 lists 10.0.0.4, which nobody holds, so another pod could get it; `leasehold check --repair` takes it for this lease\n"
    );
    let before = etcd.dump("/leasehold/");
    assert_eq!(cli(&host, "check --repair --dry-run").code(), Some(3));
    assert_eq!(etcd.dump("/leasehold/"), before);
    assert_eq!(cli(&host, "check --repair").code(), Some(3));
    let after = cli(&host, "check -o json");
    let after: Value = serde_json::from_str(after.stdout()).unwrap();
    assert_eq!(after["items"].as_array().unwrap().len(), 1);
    assert_eq!(after["items"][0]["kind"], "unreadable");
    assert!(cli(&host, "lease list").success().contains("invalid"));
}

#[test]
fn what_check_says_of_a_key_that_cannot_be_read_puts_it_right() {
    require!(Part::Etcd(Version::V34));
    let etcd = Etcd::start(Version::V34);
    let host = site(&etcd);
    bind(&host, "shop/db-0", "c1");
    let keys = || etcd.dump("/leasehold/v1/").into_keys().collect::<Vec<_>>();
    let all = keys();
    let mut told = Vec::new();
    for kind in ["addresses", "attachments", "leases"] {
        let key = all.iter().find(|key| key.starts_with(&format!("/leasehold/v1/{kind}/"))).unwrap();
        etcd.put(key, "?");
        let mended = cli(&host, "check --repair");
        assert_eq!((mended.code(), mended.stdout().lines().count()), (Some(3), 2), "{}", mended.stdout());
        assert_eq!(etcd.get(key).as_deref(), Some("?"), "{key}");
        told.push(mended.stdout().lines().nth(1).unwrap().to_owned());
        etcd.del(key);
        cli(&host, "check --repair").success();
        assert_eq!(keys(), all, "{key}");
    }
    assert!(told[0].contains(", which says who holds 10.0.0."), "{told:?}");
    for line in told {
        assert!(
            line.contains("; it is never ") && line.contains("`leasehold check --repair` writes it again"),
            "{line}"
        );
    }
}

#[test]
fn an_address_key_without_its_lease_is_told_the_same_by_all() {
    require!(Part::Etcd(Version::V34));
    let etcd = Etcd::start(Version::V34);
    let host = site(&etcd);
    for n in 1..=23 {
        let key = format!("/leasehold/v1/addresses/default/4/0a0001{n:02x}");
        etcd.put(&key, &format!(r#"{{"v":1,"lease":"prod-a/shop/web-{n}/lan100/eth0"}}"#));
    }
    let why = "is held by the lease of shop/web-3 eth0 on lan100, which is not there";
    let mends =
        "`leasehold check --repair` writes that lease again, and so does the reaper; then it can be released";
    let shown = cli(&host, "lease show 10.0.1.3");
    assert!(shown.success().contains("state       invalid\n"), "{}", shown.stdout());
    let line = format!("why         {why}: {mends}\n");
    assert!(shown.stdout().contains(&line), "{}", shown.stdout());
    let reserve = Cli::new(&host).line("lease reserve 10.0.1.3 --reason printer").run();
    for refused in [
        reserve,
        cli(&host, "lease reserve shop/web-9 --address 10.0.1.3"),
        cli(&host, "lease release 10.0.1.3"),
    ] {
        ends(&refused, 4, "", &format!("error: 10.0.1.3 {why}\nhint: {mends}\n"));
    }
    // A person reads twenty of a kind, a machine all.
    let check = cli(&host, "check");
    assert_eq!((check.code(), check.stdout().lines().count()), (Some(3), 1 + 20));
    let words = "… and 3 more of address-without-lease (-o json shows all)\n23 errors, 0 warnings\n";
    assert!(check.stderr().ends_with(words), "{}", check.stderr());
    for (format, wanted) in [("wide", 1 + 23), ("name", 1)] {
        assert_eq!(cli(&host, &format!("check -o {format}")).stdout().lines().count(), wanted, "{format}");
    }
    let all: Value = serde_json::from_str(cli(&host, "check -o json").stdout()).unwrap();
    assert_eq!(all["items"].as_array().unwrap().len(), 23);
}

#[test]
fn what_cannot_be_asked_for_is_wrong_usage() {
    require!(Part::Etcd(Version::V34));
    let etcd = Etcd::start(Version::V34);
    let host = site(&etcd);
    ends(
        &cli(&host, "pool create a --network n --subnet 10.0.0.0/33 --range 10.0.0.9-10.0.0.5 --serves a/*"),
        2,
        "",
        "error: flags: --range: 10.0.0.9-10.0.0.5: 10.0.0.9-10.0.0.5 runs backwards\n\
         error: flags: ranges[0].subnet: 10.0.0.0/33: \"10.0.0.0/33\" is not a subnet in CIDR notation, such as 10.0.0.0/24 or fd00:9::/64\n\
         hint: correct the flags; nothing was changed\n",
    );
    ends(
        &cli(&host, "lease list --pool shop-bd"),
        5,
        "",
        "error: no pool shop-bd\nhint: did you mean shop-db? `leasehold pool list` shows all\n",
    );
    assert_eq!(cli(&host, "lease list --pool shop-db -o name").success(), "");
    for (line, words) in [
        ("reap --interval 1m", "--watch"),
        ("cluster add b --uid b", "kubectl get namespace kube-system"),
        ("reap --textfile x.txt", "must end in .prom"),
    ] {
        let refused = cli(&host, line);
        assert_eq!(refused.code(), Some(2), "{line}");
        assert!(refused.stderr().contains(words), "{line}: {}", refused.stderr());
    }
    let flushed: Value = serde_json::from_str(cli(&host, "flush -o json").success()).unwrap();
    assert_eq!(flushed, serde_json::json!({ "dryRun": false, "waiting": 0 }));
}

#[test]
fn the_leases_of_a_pool_that_was_deleted_by_force_are_listed() {
    require!(Part::Etcd(Version::V34));
    let etcd = Etcd::start(Version::V34);
    let host = site(&etcd);
    bind(&host, "shop/db-0", "c1");
    cli(&host, "pool delete shop-db --force").success();
    assert_eq!(cli(&host, "lease list --pool shop-db -o name").success(), "lease/shop/db-0\n");
    assert_eq!(cli(&host, "lease list --pool shop-db -n other").code(), Some(5));
}

#[test]
fn b092_b104_pools_that_cannot_be_are_refused_with_every_fault() {
    require!(Part::Etcd(Version::V34));
    let etcd = Etcd::start(Version::V34);
    let host = site(&etcd);
    let before = etcd.dump("/leasehold/");
    let apply = |text: &str| Cli::new(&host).line("pool apply -f -").stdin(text).run();
    let bad = apply(
        "{name: a, networks: [n], rangeStart: 10.1.0.1, ranges: [{subnet: 10.1.0.0/24, start: 10.1.0.9, end: 10.1.0.5}]}\n---\n\
         {name: b, ranges: [{subnet: 10.2.0.0/24, start: 10.3.0.1}, {subnet: 10.4.0.0/24, gateway: 10.5.0.1}, {subnet: 10.6.0.0/24, end: 'fd00::1'}]}\n---\n\
         {name: c, networks: [n], ranges: [{subnet: 10.7.0.0/24, start: 10.7.0.1, end: 10.7.0.1, exclude: [10.7.0.1]}, {subnet: 10.8.0.0/24}, {subnet: 10.8.0.0/25}]}\n",
    );
    ends(
        &bad,
        1,
        "",
        "error: standard input, document 1: rangeStart: is unknown; did you mean ranges?\n\
         error: standard input, document 1: ranges[0].start: 10.1.0.9: comes after the end 10.1.0.5\n\
         error: standard input, document 2: networks: is missing: name the CNI networks this pool is for, or [\"*\"] for every one\n\
         error: standard input, document 2: ranges[0].start: 10.3.0.1: is outside the subnet 10.2.0.0/24\n\
         error: standard input, document 2: ranges[1].gateway: 10.5.0.1: is outside the subnet 10.4.0.0/24\n\
         error: standard input, document 2: ranges[2].end: fd00::1: is no IPv4 address, but the subnet 10.6.0.0/24 is\n\
         error: standard input, document 3: ranges[0]: 10.7.0.1: nothing usable is left after gateway, network, broadcast and exclusions\n\
         error: standard input, document 3: ranges[2]: 10.8.0.1-10.8.0.126: overlaps 10.8.0.1-10.8.0.254 of the same pool\n\
         hint: correct the document and apply it again; nothing was changed\n",
    );
    let gateway = apply(
        "{name: g, networks: [n], serves: ['*/*'], ranges: [{subnet: 10.0.0.0/22, start: 10.0.0.200, end: 10.0.0.255}]}",
    );
    assert_eq!(gateway.code(), Some(1));
    assert!(gateway.stderr().starts_with("error: standard input: ranges[0]: 10.0.0.200-10.0.0.255: holds 10.0.0.254, the gateway of pool shop-db: exclude it\n"));
    assert_eq!(apply("a: [").code(), Some(1));
    assert_eq!(apply("").code(), Some(1));
    assert_eq!(cli(&host, "pool apply -f /nowhere.yaml").code(), Some(1));
    assert_eq!(etcd.dump("/leasehold/"), before);
}

#[test]
fn what_a_pool_is_shown_as_is_what_it_is_applied_as() {
    require!(Part::Etcd(Version::V34));
    let etcd = Etcd::start(Version::V34);
    let host = site(&etcd);
    let made = cli(
        &host,
        "pool create dual --network lan100 --subnet 10.5.0.0/24 --subnet fd00:9::/64 --range 10.5.0.10-10.5.0.19 --gateway 10.5.0.1 --gateway fe80::1 --default-route --serves shop/* --serves web/site",
    );
    assert_eq!(made.success(), "pool/dual created\n");
    let again = cli(&host, "pool create dual --network lan100 --subnet 10.5.0.0/24 --serves a/*");
    assert_eq!(again.code(), Some(4));
    let alone = cli(
        &host,
        "pool create e --network n --subnet 10.6.0.0/24 --gateway 10.6.0.1 --serves a/* --dry-run",
    );
    assert_eq!(alone.success(), "pool/e created (dry run)\n");
    assert_eq!(
        alone.stderr(),
        "warning: pool e: IPv4: a gateway alone makes no route; add a default route if pods should use it\n"
    );
    let folder = Folder::new();
    for format in ["yaml", "json"] {
        let text = cli(&host, &format!("pool show dual -o {format}")).success().to_owned();
        let file = folder.path().join(format!("dual.{format}"));
        std::fs::write(&file, &text).unwrap();
        assert_eq!(
            cli(&host, &format!("pool apply -f {}", file.display())).success(),
            "pool/dual unchanged\n"
        );
        std::fs::write(&file, text.replace("10.5.0.19", "10.5.0.29")).unwrap();
        let diff = cli(&host, &format!("pool diff -f {}", file.display()));
        assert_eq!(diff.code(), Some(3));
        assert_eq!(diff.stdout(), "pool/dual configured\n  ~ ranges[0].end: 10.5.0.19 -> 10.5.0.29\n");
        std::fs::remove_file(&file).unwrap();
    }
    std::fs::write(folder.path().join("a.yaml"), POOLS).unwrap();
    std::fs::write(folder.path().join("notes.txt"), "not a pool").unwrap();
    let prune = format!("pool apply --prune -f {}", folder.path().display());
    assert_eq!(
        cli(&host, &prune).success(),
        "pool/shop-db unchanged\npool/lan unchanged\npool/dual deleted\n"
    );
    cli(&host, "check").success();
}

#[test]
fn explain_says_who_serves_and_what_to_do() {
    require!(Part::Etcd(Version::V34));
    let etcd = Etcd::start(Version::V34);
    let host = site(&etcd);
    let full = "{name: shop-web, networks: [lan100], serves: [shop/web], ranges: [{subnet: 10.7.0.0/24, start: 10.7.0.1, end: 10.7.0.1}]}";
    Cli::new(&host).line("pool apply -f -").stdin(full).run().success();
    bind(&host, "shop/web-7d9c4f6b5d-qq2zt", "c1");
    let only_n0 = "{name: lan, networks: [lan100], serves: ['*/*'], nodes: ['n0*'], ranges: [{subnet: 10.0.0.0/22, start: 10.0.1.1, end: 10.0.3.254}]}";
    Cli::new(&host).line("pool apply -f -").stdin(only_n0).run().success();
    ends(
        &cli(&host, "explain shop/web-7d9c4f6b5d-x7k2p --node n31"),
        3,
        "pod        shop/web-7d9c4f6b5d-x7k2p  node n31  network lan100\n\
         workload   web   (looked for web-7d9c4f6b5d-x7k2p, web-7d9c4f6b5d, web)\n\
         pools      shop-web  serves shop/web  1 of 1 taken\n           \
         lan       serves */*       not tried: not for node n31 (nodes: n0*)\n\
         answer     none: pool shop-web is full (error 11 to the pod)\n\
         taken      1 by running pods\n\
         do         widen its ranges: leasehold pool show shop-web -o yaml, then pool apply\n",
        "",
    );
    assert!(
        cli(&host, "explain shop/db-0")
            .success()
            .contains("answer     an address of pool shop-db (9 free)\n")
    );
    let none = cli(&host, "explain other/x --network vlan7");
    assert_eq!(none.code(), Some(3));
    assert!(
        none.stdout().contains("answer     none: no pool serves it on network vlan7 (error 7 to the pod)\n")
    );
}

#[test]
fn freeze_thaw_and_clusters() {
    require!(Part::Etcd(Version::V34));
    let etcd = Etcd::start(Version::V34);
    let host = site(&etcd);
    let meta = etcd.get("/leasehold/v1/meta").unwrap();
    assert_eq!(
        cli(&host, "cluster add prod-a --uid 11111111-2222-4333-8444-555555555555").success(),
        "cluster/prod-a unchanged\n"
    );
    ends(
        &cli(&host, "cluster add prod-a --uid 66666666-7777-4888-9999-000000000000"),
        4,
        "",
        "error: cluster prod-a is registered with UID 11111111-2222-4333-8444-555555555555, not 66666666-7777-4888-9999-000000000000\nhint: give this cluster another name; if the old one is gone for good: `leasehold cluster delete`\n",
    );
    assert_eq!(Cli::new(&host).args(["freeze", "--reason", "a restore"]).run().success(), "store frozen\n");
    let frozen = Call::add(&host).pod("shop/db-0").run().error_text(11);
    assert!(frozen.contains("a restore"), "{frozen}");
    assert_eq!(cli(&host, "explain shop/db-0").code(), Some(3));
    assert_eq!(cli(&host, "doctor").code(), Some(3));
    let thawed = cli(&host, "thaw");
    assert_eq!(thawed.success(), "store thawed\n");
    assert!(thawed.stderr().contains("a restore"));
    assert_ne!(etcd.get("/leasehold/v1/meta").unwrap(), meta);
    bind(&host, "shop/db-0", "c1");
    cli(&host, "check").success();
}

#[test]
fn b145_a_store_that_does_not_answer_is_named_with_what_to_do() {
    require!(Part::Etcd(Version::V34));
    let etcd = Etcd::with(Version::V34).auth().start();
    let host = HostFile::on(&etcd);
    cli(&host, "cluster add prod-a --uid 11111111-2222-4333-8444-555555555555").success();
    let wrong = Cli::new(&host).line("lease list").env("ETCDCTL_USER", "leasehold:wrong").run();
    assert_eq!(wrong.code(), Some(1));
    assert!(wrong.stderr().starts_with("error: "), "{}", wrong.stderr());
    assert!(wrong.stderr().contains("\nhint: check user, password and role"), "{}", wrong.stderr());
    assert!(!wrong.stderr().contains("wrong:") && wrong.stdout().is_empty());
    let gone = cli(&host, "lease list --endpoints http://127.0.0.1:1");
    assert_eq!(gone.code(), Some(1));
    assert!(gone.stderr().contains("127.0.0.1:1"), "{}", gone.stderr());
    assert!(gone.stderr().contains("hint: `leasehold doctor`"), "{}", gone.stderr());
    // With --endpoints no host file is needed.
    let flags = Cli::new(&host)
        .line("cluster list --no-headers")
        .env("LEASEHOLD_CONFIG", "/nowhere.json")
        .env("ETCDCTL_ENDPOINTS", etcd.endpoint(0).trim_start_matches("http://"))
        .env("ETCDCTL_USER", format!("{}:{}", etcd.settings()["username"].as_str().unwrap(), password(&etcd)))
        .run();
    assert_eq!(flags.success(), "prod-a   11111111-2222-4333-8444-555555555555   0   never\n");
    let none = Cli::new(&host).line("lease list").env("LEASEHOLD_CONFIG", "/nowhere.json").run();
    ends(
        &none,
        1,
        "",
        "error: there is no host file: looked for /nowhere.json\nhint: say where the store is: --endpoints URL,… (or ETCDCTL_ENDPOINTS), or --local DIR\n",
    );
}

fn password(etcd: &Etcd) -> String {
    let settings = etcd.settings();
    match (settings["password"].as_str(), settings["passwordFile"].as_str()) {
        (Some(password), _) => password.into(),
        (None, Some(file)) => std::fs::read_to_string(file).unwrap().trim().into(),
        (None, None) => String::new(),
    }
}

#[test]
fn doctor_looks_at_each_thing_and_says_what_to_do() {
    require!(Part::Etcd(Version::V34));
    let etcd = Etcd::start(Version::V34);
    let host = HostFile::on(&etcd);
    let new = cli(&host, "doctor");
    assert_eq!(new.code(), Some(3));
    let line = |text: &str, what: &str| -> String {
        text.lines().find(|line| line.split_whitespace().nth(1) == Some(what)).unwrap_or_default().into()
    };
    assert!(line(new.stdout(), "cluster").starts_with("fail"), "{}", new.stdout());
    let host = site(&etcd);
    let good = cli(&host, "doctor");
    assert_eq!(good.code(), Some(0), "{}", good.stdout());
    for what in ["host", "node", "state", "journal", "endpoint", "latency", "contents", "cluster", "frozen"] {
        assert!(line(good.stdout(), what).starts_with("ok"), "{what}: {}", good.stdout());
    }
    etcd.put("/registry/pods/a/b", "x");
    assert_eq!(cli(&host, "doctor").code(), Some(3));
}

#[test]
fn b112_b144_a_long_list_is_one_revision_and_ends_quietly_when_nobody_reads() {
    require!(Part::Etcd(Version::V34));
    let etcd = Etcd::start(Version::V34);
    let host = site(&etcd);
    for chunk in 0..60 {
        let mut script = String::from("\n");
        for index in chunk * 100..chunk * 100 + 100 {
            let address = std::net::Ipv4Addr::from(0x0a10_0000_u32 + index);
            let value = format!(
                r#"{{"v":1,"state":"held","addresses":[{{"address":"{address}","domain":"default"}}]}}"#
            );
            script
                .push_str(&format!("put /leasehold/v1/leases/prod-a/big/p-{index}/lan100/eth0 {value:?}\n"));
        }
        script.push_str("\n\n");
        assert!(etcd.txn(&script));
    }
    let list = cli(&host, "lease list -o json");
    let list: Value = serde_json::from_str(list.success()).unwrap();
    assert_eq!(list["revision"], etcd.revision());
    let addresses: Vec<u32> = list["items"]
        .as_array()
        .unwrap()
        .iter()
        .map(|item| u32::from(item["address"].as_str().unwrap().parse::<std::net::Ipv4Addr>().unwrap()))
        .collect();
    assert_eq!(addresses.len(), 6_000);
    assert!(addresses.windows(2).all(|pair| pair[0] < pair[1]));
    let program = crate::support::parts::leasehold();
    let piped = std::process::Command::new("/bin/sh")
        .args(["-c", &format!("{} lease list | head -1; exit 0", program.display())])
        .env("LEASEHOLD_CONFIG", host.path())
        .output()
        .unwrap();
    assert_eq!(String::from_utf8_lossy(&piped.stderr), "");
}

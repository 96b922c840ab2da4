//! One store, two clusters whose pods have the same names: what a person changes is what was meant.

use serde_json::Value;

use crate::support::{
    call::{Call, Cli},
    etcd::Etcd,
    host::HostFile,
    parts::{Part, Version, require},
    process::Finished,
};

const POOLS: &str = "
name: shop-db
networks: [lan100]
serves: [shop/db]
ranges: [{subnet: 10.0.0.0/22, start: 10.0.0.1, end: 10.0.0.10}]
---
name: shop-cache
networks: [lan100]
serves: [shop/cache]
ranges: [{subnet: 10.0.0.0/22, start: 10.0.0.11, end: 10.0.0.11}]
---
name: lan
networks: [lan100]
serves: ['*/*']
ranges: [{subnet: 10.0.0.0/22, start: 10.0.1.1, end: 10.0.3.254}]
";

/// An etcd, and a node of each of its clusters.
struct Two {
    etcd: Etcd,
    a: HostFile,
    b: HostFile,
}

impl Two {
    /// Both have a pod that runs, one that is away, and one in another namespace.
    fn start() -> Self {
        let etcd = Etcd::start(Version::V34);
        let (a, b) = (HostFile::on(&etcd), HostFile::on(&etcd).with("cluster", "prod-b"));
        cli(&a, "cluster add prod-a --uid 11111111-2222-4333-8444-555555555555").success();
        cli(&b, "cluster add prod-b --uid 22222222-2222-4333-8444-555555555555").success();
        Cli::new(&a).line("pool apply -f -").stdin(POOLS).run().success();
        for host in [&a, &b] {
            for pod in ["shop/db-0", "shop/db-1", "lab/twin-bcdfg"] {
                Call::add(host).pod(pod).container(&pod.replace('/', "-")).run().result();
            }
            Call::del(host).pod("shop/db-1").container("shop-db-1").run().is_silent();
        }
        Self { etcd, a, b }
    }

    /// Without a host file: nothing says which cluster is meant.
    fn anywhere(&self, line: &str) -> Finished {
        let endpoint = self.etcd.endpoint(0);
        let call = Cli::new(&self.a).line(line).env("LEASEHOLD_CONFIG", "/nowhere.json");
        call.env("ETCDCTL_ENDPOINTS", endpoint).run()
    }

    fn address(&self, cluster: &str, pod: &str) -> String {
        let list = cli(&self.a, &format!("lease list --cluster {cluster} -o json"));
        let list: Value = serde_json::from_str(list.success()).unwrap();
        let items = list["items"].as_array().unwrap();
        let of_pod = |item: &&Value| {
            let text = |field: &str| item[field].as_str().unwrap().to_owned();
            format!("{}/{}", text("namespace"), text("pod")) == pod
        };
        items.iter().find(of_pod).unwrap()["address"].as_str().unwrap().to_owned()
    }

    fn refuses(&self, finished: &Finished, code: i32, stderr: &str) {
        assert_eq!((finished.stdout(), finished.stderr()), ("", stderr));
        assert_eq!(finished.code(), Some(code));
    }
}

fn cli(host: &HostFile, line: &str) -> Finished {
    Cli::new(host).line(line).run()
}

#[test]
fn a_write_is_about_the_leases_of_one_cluster() {
    require!(Part::Etcd(Version::V34));
    let two = Two::start();
    let all = || two.etcd.dump("/leasehold/");
    let (a, b) = (two.address("prod-a", "shop/db-1"), two.address("prod-b", "shop/db-1"));
    let before = all();
    let which = "hint: say which: --cluster NAME\n";
    for (line, target) in [
        ("lease release shop/db-1", "shop/db-1"),
        ("lease move shop/db-1 shop/db-3", "shop/db-1"),
        ("lease release --workload shop/db --force", "workload shop/db"),
    ] {
        let wanted = format!("error: {target} has leases in several clusters: prod-a, prod-b\n{which}");
        two.refuses(&two.anywhere(line), 4, &wanted);
    }
    let reserve = two.anywhere("lease reserve shop/db-7 --address 10.0.0.9");
    two.refuses(&reserve, 4, &format!("error: there are several clusters: prod-a, prod-b\n{which}"));
    assert_eq!(all(), before);

    // The host file's, and a word of which.
    let twins = cli(&two.a, "lease release lab/twin-bcdfg --force --dry-run");
    assert_eq!(twins.success().lines().count(), 1, "{}", twins.stdout());
    let workload = cli(&two.a, "lease release --workload shop/db --force --dry-run");
    assert!(workload.success().lines().all(|line| line.contains(" of cluster prod-a")));
    assert_eq!(workload.stdout().lines().count(), 2);
    assert_eq!(
        cli(&two.a, "lease release shop/db-1").success(),
        format!("{a} released from shop/db-1 eth0 on lan100 of cluster prod-a\n")
    );
    let again = "error: shop/db-1: no lease in cluster prod-a, but in prod-b\nhint: if that is meant, say so: --cluster NAME\n";
    two.refuses(&cli(&two.a, "lease release shop/db-1"), 4, again);
    two.refuses(&cli(&two.a, &format!("lease release {b}")), 4, &again.replacen("shop/db-1", &b, 1));

    // The one that is said, and the only one that can be meant.
    let moved = format!("lease/shop/db-1 moved to shop/db-3 in cluster prod-b: {b} (dry run)\n");
    let line = "lease move shop/db-1 shop/db-3 --dry-run";
    assert_eq!(cli(&two.a, &format!("{line} --cluster prod-b")).success(), moved);
    assert_eq!(two.anywhere(line).success(), moved);
    assert_eq!(
        cli(&two.b, "lease reserve shop/cache-0 --address 10.0.0.11 --dry-run").success(),
        "10.0.0.11 reserved for shop/cache-0 eth0 on lan100 of cluster prod-b (dry run)\n"
    );
    cli(&two.a, "check").success();
}

#[test]
fn a_list_of_two_clusters_says_which() {
    require!(Part::Etcd(Version::V34));
    let two = Two::start();
    let first = |line: &str| {
        let listed = cli(&two.a, line);
        listed.success().lines().next().unwrap().split_whitespace().collect::<Vec<_>>().join(" ")
    };
    assert_eq!(first("lease list"), "ADDRESS STATE POD IF NETWORK POOL NODE AGE CLUSTER WHY");
    let one = "ADDRESS STATE POD IF NETWORK POOL NODE AGE WHY";
    assert_eq!(first("lease list --cluster prod-b"), one);
    let listed = cli(&two.a, "lease list --no-headers");
    let of_b = listed.success().lines().filter(|line| line.split_whitespace().any(|word| word == "prod-b"));
    assert_eq!(of_b.count(), 3, "{}", listed.stdout());
}

#[test]
fn what_narrows_a_command_is_followed_or_refused() {
    require!(Part::Etcd(Version::V34));
    let two = Two::start();
    let twin = two.address("prod-a", "lab/twin-bcdfg");
    let before = two.etcd.dump("/leasehold/");
    let other = cli(&two.a, &format!("lease release {twin} -n shop --force"));
    let nobody = format!(
        "error: nobody in namespace shop has {twin} (domains looked in: default)\nhint: `leasehold lease list` shows what is leased\n"
    );
    two.refuses(&other, 5, &nobody);
    for line in [
        "freeze --cluster prod-b",
        "freeze -n shop",
        "thaw --domain default",
        "check --repair -n shop",
        "check --repair --cluster prod-b",
        "check --domain nosuch",
        "lease release shop/db-1 -n lab",
        "lease move shop/db-1 lab/db-3 -n shop",
        "lease release --workload shop/db -n lab",
        "lease reserve 10.0.1.9 --reason printer --cluster prod-b",
        "explain shop/db-1 -n lab",
        "pool list -n shop",
        "flush --cluster prod-b",
    ] {
        let refused = cli(&two.a, line);
        assert_eq!(refused.code(), Some(2), "{line}: {}", refused.stderr());
    }
    assert_eq!(two.etcd.dump("/leasehold/"), before);
    let shown = |line: &str| cli(&two.a, line).success().matches("cluster ").count();
    assert_eq!(shown("lease show shop/db-1"), 2);
    assert_eq!(shown("lease show shop/db-1 --cluster prod-b -n shop"), 1);
    assert_eq!(cli(&two.a, "lease show shop/db-1 --domain other").code(), Some(5));
    let only_b = "{name: only-b, networks: [lan100], clusters: [prod-b], ranges: [{subnet: 10.9.0.0/24}]}";
    Cli::new(&two.a).line("pool apply -f -").stdin(only_b).run().success();
    assert_eq!(
        cli(&two.a, "pool list -o name --cluster prod-a").success(),
        "pool/lan\npool/shop-cache\npool/shop-db\n"
    );
}

#[test]
fn what_is_named_and_not_there_is_told_with_the_nearest() {
    require!(Part::Etcd(Version::V34));
    let two = Two::start();
    let no_cluster = "error: no cluster prd-a is registered\nhint: did you mean prod-a? `leasehold cluster list` shows all\n";
    let no_domain = "error: no pool is of domain defualt\nhint: did you mean default? `leasehold pool list -o wide` shows all\n";
    let no_network =
        "error: no pool is for network lan10\nhint: did you mean lan100? `leasehold pool list` shows all\n";
    for (line, stderr) in [
        ("lease list --cluster prd-a", no_cluster),
        ("pool list --cluster prd-a", no_cluster),
        ("cluster delete prd-a", no_cluster),
        ("lease list --domain defualt", no_domain),
        ("pool list --domain defualt", no_domain),
        ("adopt --domain defualt", no_domain),
        ("check --against-pods --domain defualt", no_domain),
        ("lease list --network lan10", no_network),
        ("adopt --network lan10", no_network),
        ("check --against-pods --network lan10", no_network),
        (
            "pool list --cluster elsewhere",
            "error: no cluster elsewhere is registered\nhint: `leasehold cluster list` shows those that there are\n",
        ),
    ] {
        two.refuses(&cli(&two.a, line), 5, stderr);
    }
    for line in
        ["lease list --cluster prod-a --state declined", "pool list --cluster prod-b", "lease list -n nobody"]
    {
        cli(&two.a, line).success();
    }
    // What is there has a name, whoever knows it.
    cli(&two.a, "cluster delete prod-b --force").success();
    assert_eq!(cli(&two.a, "lease list --cluster prod-b --no-headers").success().lines().count(), 3);

    let made = Cli::new(&two.a)
        .line("pool create b --network n --subnet 10.9.0.0/24 --serves a/* --only-cluster prod-a --only-cluster prd-a --dry-run")
        .run();
    let unknown =
        "cluster prd-a (did you mean prod-a?) is not registered: none of its pods gets an address\n";
    assert_eq!(made.stderr(), format!("warning: pool b: {unknown}"));
    let reserved = cli(&two.a, "lease reserve shop/cache-0 --address 10.0.0.11 --cluster prd-a --dry-run");
    assert_eq!((reserved.code(), reserved.stderr()), (Some(0), format!("warning: {unknown}").as_str()));
    let explained = cli(&two.a, "explain shop/cache-0 --cluster prd-a");
    assert!(
        explained.stdout().contains("if prod-a is meant, say so: --cluster prod-a\n"),
        "{}",
        explained.stdout()
    );

    // Nothing is thawed for a cluster that is not there.
    cli(&two.a, "freeze").success();
    let frozen = two.etcd.dump("/leasehold/");
    two.refuses(&cli(&two.a, "thaw --cluster prd-a"), 5, no_cluster);
    assert_eq!(two.etcd.dump("/leasehold/"), frozen);
    cli(&two.a, "thaw --cluster prod-a").success();
}

#[test]
fn an_error_says_what_was_asked_for() {
    require!(Part::Etcd(Version::V34));
    let two = Two::start();
    let (away, runs) = (two.address("prod-a", "shop/db-1"), two.address("prod-a", "shop/db-0"));
    let before = two.etcd.dump("/leasehold/");
    let all =
        "hint: `leasehold lease list -A` shows all; `leasehold explain NS/POD` says what the pod would get\n";
    let help = "hint: `leasehold COMMAND --help` shows examples\n";
    for (line, code, error, hint) in [
        ("lease show shop/db-1 --domain other", 5, "shop/db-1 has no lease in domain other", all),
        ("lease release shop/db-1 --network lan10", 5, "shop/db-1 has no lease on network lan10", all),
        (
            "lease move shop/db-1 shop/db-3 --network lan10 -n shop",
            5,
            "shop/db-1 has no lease in namespace shop, on network lan10",
            all,
        ),
        (
            "lease move shop/db-1 shop/db-1",
            1,
            "shop/db-1 is moved to itself",
            "hint: name another pod to get its lease\n",
        ),
        ("lease list --workload shop/db -n lab", 2, "shop/db is not in namespace lab, which -n names", help),
        ("freeze --reason ''", 2, "--reason is empty: every pod that gets no address is told it", help),
        ("reap --watch --interval 1s", 2, "--interval must be at least 5s", help),
        (
            "pool list --endpoints http://me:sesame@127.0.0.1:1",
            2,
            "--endpoints must not hold credentials: give them in ETCDCTL_USER",
            help,
        ),
        (
            "lease release --workload shop/db",
            4,
            &format!("shop/db-0 uses {runs} on node n1; nothing was released"),
            "hint: delete the pod, and its lease ends with it; --force releases the address of a pod that may still answer on it\n",
        ),
        (
            "lease reserve shop/x-1 --address 10.0.1.9 --domain other",
            1,
            "10.0.1.9 is in the subnet of no pool of domain other",
            "hint: for a device that is no pod: `leasehold lease reserve ADDRESS --reason TEXT`\n",
        ),
    ] {
        let words = line.split(' ').map(|word| if word == "''" { "" } else { word });
        let refused = Cli::new(&two.a).args(words).run();
        two.refuses(&refused, code, &format!("error: {error}\n{hint}"));
    }
    let dry = cli(&two.a, "freeze --dry-run");
    assert_eq!((dry.success(), dry.stderr()), ("store frozen (dry run)\n", ""));
    assert_eq!(two.etcd.dump("/leasehold/"), before);
    let last: u8 = away.rsplit('.').next().unwrap().parse().unwrap();
    two.etcd.put(&format!("/leasehold/v1/addresses/default/4/0a0000{last:02x}"), "?");
    let taken = cli(&two.a, &format!("lease reserve shop/db-7 --address {away}"));
    assert!(
        taken.stderr().ends_with("\nhint: `leasehold check` says how to put it right\n"),
        "{}",
        taken.stderr()
    );
    let gateway = "pool create g --network n --subnet 10.0.0.0/22 --serves */* --range 10.0.2.1-10.0.2.9 --gateway 10.0.0.5";
    let flags = cli(&two.a, gateway);
    assert_eq!(flags.code(), Some(2));
    assert!(
        flags.stderr().ends_with("\nhint: correct the flags; nothing was changed\n"),
        "{}",
        flags.stderr()
    );
}

#[test]
fn an_address_of_two_domains_is_released_in_the_one_that_is_meant() {
    require!(Part::Etcd(Version::V34));
    let two = Two::start();
    for domain in ["x", "y"] {
        Cli::new(&two.a)
            .args(["lease", "reserve", "10.9.0.9", "--reason", "printer", "--domain", domain])
            .run()
            .success();
        let pool = format!(
            "{{name: {domain}, networks: [lan100], domain: {domain}, ranges: [{{subnet: 10.9.0.0/24}}]}}"
        );
        Cli::new(&two.a).line("pool apply -f -").stdin(&pool).run().success();
    }
    let several = "error: 10.9.0.9 is leased in several domains: x, y\nhint: say which: --domain NAME\n";
    two.refuses(&cli(&two.a, "lease release 10.9.0.9"), 4, several);
    cli(&two.a, "lease release 10.9.0.9 --domain x").success();
    let left = cli(&two.a, "lease show 10.9.0.9 -o json");
    let left: Value = serde_json::from_str(left.success()).unwrap();
    let states: Vec<_> = left["items"].as_array().unwrap().iter().map(|item| &item["state"]).collect();
    assert_eq!(states, ["released", "reserved"]);
}

#[test]
fn a_record_that_cannot_be_read_is_listed_with_its_lease_and_not_released() {
    require!(Part::Etcd(Version::V34));
    let two = Two::start();
    let address = two.address("prod-a", "shop/db-0");
    let last: u8 = address.rsplit('.').next().unwrap().parse().unwrap();
    let key = format!("v1/addresses/default/4/0a0000{last:02x}");
    for text in ["garbage", r#"{"v":9,"lease":"prod-a/shop/db-0/lan100/eth0"}"#] {
        two.etcd.put(&format!("/leasehold/{key}"), text);
        for line in ["", " -n shop", " --cluster prod-a", " --pool shop-db", " --state invalid", " --node n1"]
        {
            let listed = cli(&two.a, &format!("lease list --no-headers{line}"));
            let invalid = |row: &str| row.starts_with(&format!("{address} ")) && row.contains(" invalid ");
            let found = listed.success().lines().find(|row| invalid(row));
            assert!(found.is_some_and(|row| row.contains(&key)), "{line}: {}", listed.stdout());
        }
        for line in [" -n lab", " --cluster prod-b", " --pool lan", " --state bound"] {
            let listed = cli(&two.a, &format!("lease list --no-headers{line}"));
            assert!(!listed.success().contains("invalid"), "{line}: {}", listed.stdout());
        }
    }
    two.etcd.put("/leasehold/v1/leases/prod-a/lab/x/lan100/eth0", "broken");
    let forced = cli(&two.a, "lease release lab/x --force");
    assert_eq!(forced.code(), Some(1), "{}", forced.stderr());
}

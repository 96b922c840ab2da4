//! Certificates, users, secrets, records of a newer version: through the plugin's own output.

use std::{fs, os::unix::fs::PermissionsExt};

use serde_json::{Value, json};

use super::{bound, journal, one, pool_of};
use crate::support::{
    call::{Answer, Call},
    etcd::{Etcd, ROOT, USER, certificates},
    ground,
    host::HostFile,
    parts::{Part, Version, require},
};

const PROXIES: [&str; 8] = [
    "http_proxy",
    "https_proxy",
    "all_proxy",
    "grpc_proxy",
    "HTTP_PROXY",
    "HTTPS_PROXY",
    "ALL_PROXY",
    "GRPC_PROXY",
];

/// Nothing that was said or logged holds a secret.
#[track_caller]
fn tells_no_secret(host: &HostFile, answers: &[Answer]) {
    let key = fs::read_to_string(&certificates().client.1).unwrap();
    let key = key.lines().nth(1).unwrap();
    let log = host.log();
    let said = answers.iter().flat_map(|answer| [answer.0.stdout(), answer.0.stderr()]);
    for text in said.chain([log.as_str()]) {
        for secret in [USER.1, ROOT.1, "wrong-9999", key] {
            assert!(!text.contains(secret), "{text}");
        }
    }
}

/// The host file's store with another value in one field.
fn with(host: HostFile, etcd: &Etcd, field: &str, value: impl Into<Value>) -> HostFile {
    let mut settings = etcd.settings();
    settings[field] = value.into();
    host.with("store", json!({ "etcd": settings }))
}

fn debugging(etcd: &Etcd) -> HostFile {
    let host = HostFile::on(etcd);
    let log = json!({ "file": host.folder().join("leasehold.log"), "level": "debug" });
    host.with("log", log)
}

#[test]
fn b108_b129_mutual_tls_with_a_user() {
    require!(Part::Etcd(Version::V34), Part::Etcd(Version::V36));
    for version in Version::BOTH {
        let etcd = Etcd::with(version).tls().auth().start();
        let host = debugging(&etcd);
        pool_of(&host, 4);
        let through_proxies = |mut call: Call| {
            for name in PROXIES {
                call = call.env(name, "http://127.0.0.1:1");
            }
            call.run()
        };
        let added = through_proxies(Call::add(&host).pod("shop/a").container("A"));
        assert_eq!(added.addresses().len(), 1);
        assert_eq!(bound(&host), one("shop/a", "A"));
        let deleted = through_proxies(Call::del(&host).pod("shop/a").container("A"));
        deleted.is_silent();
        ground::is_empty(&host);
        tells_no_secret(&host, &[added, deleted]);

        let host = with(debugging(&etcd), &etcd, "password", "wrong-9999");
        let refused = Call::add(&host).pod("shop/a").run();
        let text = refused.error_text(11);
        assert!(text.contains(USER.0) && text.contains(&etcd.endpoint(0)), "{text}");
        let told = Call::del(&host).pod("shop/a").run();
        told.is_silent();
        assert_eq!(journal(&host).len(), 1);
        tells_no_secret(&host, &[refused, told]);
    }
}

#[test]
fn b108_the_plugin_names_the_file_and_the_reason() {
    require!(Part::Etcd(Version::V36));
    let etcd = Etcd::with(Version::V36).tls().start();
    let files = certificates();
    let good = debugging(&etcd);
    pool_of(&good, 4);
    let path = |name: &str, text: &str| {
        let path = good.folder().join(name);
        fs::write(&path, text).unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(0o600)).unwrap();
        path
    };
    let (empty, text) = (path("empty", ""), path("text", "no PEM"));
    let missing = good.folder().join("missing");
    let cases = [
        ("cacert", &missing, "missing"),
        ("cert", &missing, "missing"),
        ("key", &missing, "missing"),
        ("cacert", &empty, "is empty"),
        ("cert", &text, "holds no PEM certificate"),
        ("key", &text, "holds no PEM key"),
        ("cacert", &files.other_ca, "did not sign the certificate"),
        ("key", &files.server.1, "does not belong to the certificate"),
        ("cert", &files.expired_client.0, "does not belong to the certificate"),
    ];
    let mut answers = Vec::new();
    for (field, file, reason) in cases {
        let host = with(HostFile::on(&etcd), &etcd, field, json!(file));
        let answer = Call::add(&host).pod("shop/a").run();
        let text = answer.error_text(7);
        let named = text.contains(&file.display().to_string())
            || field == "cert" && text.contains(&files.client.1.display().to_string());
        assert!(named && text.contains(reason), "{field}: {text}");
        answers.push(answer);
        // Nothing was told to the store; DEL is.
        let told = Call::del(&host).pod("shop/a").run();
        told.is_silent();
        assert_eq!(journal(&host).len(), 1);
        let down = Call::status(&host).run();
        if reason != "did not sign the certificate" {
            let text = down.error_text(50);
            assert!(text.contains(&file.display().to_string()) || field == "cert", "{text}");
        }
        answers.extend([told, down]);
    }
    let expired = HostFile::on(&etcd);
    let mut settings = etcd.settings();
    settings["cert"] = json!(files.expired_client.0);
    settings["key"] = json!(files.expired_client.1);
    let expired = expired.with("store", json!({ "etcd": settings }));
    let answer = Call::add(&expired).pod("shop/a").run();
    let text = answer.error_text(7);
    assert!(
        text.contains(&files.expired_client.0.display().to_string()) && text.contains("expired on"),
        "{text}"
    );
    answers.push(answer);
    tells_no_secret(&good, &answers);
    ground::is_empty(&good);
}

#[test]
fn b136_a_record_of_a_newer_leasehold_is_left_alone() {
    require!(Part::Etcd(Version::V34), Part::Etcd(Version::V36));
    for version in Version::BOTH {
        let etcd = Etcd::start(version);
        let host = HostFile::on(&etcd);
        pool_of(&host, 4);
        let _ = Call::add(&host).pod("shop/a").container("A").run().addresses();
        let (key, value) = etcd.dump("/leasehold/v1/leases/").pop_first().unwrap();
        let mut record: Value = serde_json::from_str(&value).unwrap();
        record["v"] = json!(99);
        etcd.put(&key, &record.to_string());
        let text = Call::add(&host).pod("shop/a").container("B").run().error_text(11);
        assert!(text.contains("99"), "{text}");
        Call::del(&host).pod("shop/a").container("A").run().is_silent();
        assert_eq!(journal(&host).len(), 1);
        assert_eq!(etcd.get(&key), Some(record.to_string()));
        // Others go on, and the entry waits for a newer binary.
        let _ = Call::add(&host).pod("shop/b").container("C").run().addresses();
        assert_eq!(journal(&host).len(), 1);
        assert_eq!(etcd.get(&key), Some(record.to_string()));

        let pool = etcd.get("/leasehold/v1/pools/lan").unwrap();
        let mut newer: Value = serde_json::from_str(&pool).unwrap();
        newer["v"] = json!(99);
        etcd.put("/leasehold/v1/pools/lan", &newer.to_string());
        let text = Call::add(&host).pod("shop/c").container("D").run().error_text(11);
        assert!(text.contains("99") && text.contains("lan"), "{text}");
    }
}

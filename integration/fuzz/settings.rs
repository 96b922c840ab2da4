//! The host file.

use leasehold::{
    config::{HostConfig, StoreSettings, check_mode},
    store::etcd::Endpoint,
};
use serde_json::Value;

use super::{MARK, with_marked_passwords};

pub(crate) fn host_file(input: &[u8]) {
    let text = String::from_utf8_lossy(input);
    read(&text);
    if let Ok(mut document) = serde_json::from_str::<Value>(&text)
        && with_marked_passwords(&mut document)
    {
        let shown = read(&document.to_string());
        assert!(!shown.contains(MARK), "a secret is shown: {shown}");
    }
}

/// All that a person may get to see of it.
fn read(text: &str) -> String {
    match HostConfig::parse(text) {
        Ok(config) => {
            if let StoreSettings::Etcd(etcd) = &config.store {
                assert!(!etcd.endpoints.is_empty());
                for endpoint in &etcd.endpoints {
                    assert_eq!(Endpoint::parse(&endpoint.to_string()).as_ref(), Ok(endpoint));
                }
            }
            assert!(config.state_dir.is_absolute());
            assert!(config.secret_files().iter().all(|file| file.is_absolute()));
            assert_eq!(
                check_mode(&config.state_dir, 0o644, config.holds_secret()).is_err(),
                config.holds_secret()
            );
            format!("{config:?}")
        }
        Err(faults) => {
            assert!(!faults.is_empty());
            assert!(faults.iter().all(|fault| !fault.problem.is_empty()));
            format!("{faults:?}{}", faults.iter().map(ToString::to_string).collect::<String>())
        }
    }
}

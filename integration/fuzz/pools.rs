//! Pool documents, as a person writes them.

use leasehold::{
    cli,
    domain::pool::{Range, format_duration, parse_duration},
    store::{Entry, Revision, keys, record},
};

pub(crate) fn pools(input: &[u8]) {
    let text = String::from_utf8_lossy(input);
    let (pools, faults) = cli::pools_of(&text);
    assert!(faults.iter().all(|fault| !fault.fault.problem.is_empty()));
    for wanted in &pools {
        let pool = &wanted.pool;
        pool.ranges().iter().for_each(range_holds);
        let sizes = pool.ranges().iter().map(|range| range.usable().size());
        assert_eq!(pool.size(), sizes.fold(0, u128::saturating_add));
        for duration in [pool.cool_down(), pool.retention().hold_for] {
            assert_eq!(parse_duration(&format_duration(duration)), Ok(duration));
        }
        let _ = pool.warnings();

        let value = record::encode_pool(&wanted.document);
        let entry = Entry { key: keys::pool(pool.name()), value, revision: Revision(1) };
        assert_eq!(record::decode_pool(&entry).unwrap().value, *pool);

        let shown = cli::yaml_of(&wanted.document).unwrap();
        let (again, faults) = cli::pools_of(&shown);
        assert!(faults.is_empty(), "{faults:?}\n{shown}");
        let again: Vec<_> = again.iter().map(|again| &again.document).collect();
        assert_eq!(again, [&wanted.document], "{shown}");
    }
}

/// What may be leased of it is inside of it, and can be counted.
pub(crate) fn range_holds(range: &Range) {
    let usable = range.usable();
    let last = usable.size().checked_sub(1).expect("something is usable");
    for position in [0, last / 2, last] {
        let number = usable.nth(position).unwrap();
        let address = range.family().address(number);
        assert_eq!(usable.position(number), Some(position));
        assert!(
            usable.contains(address) && range.subnet().contains(address) && range.bounds().contains(address)
        );
        assert_ne!(Some(address), range.gateway());
        assert!(!range.exclude().iter().any(|run| run.contains(address)), "{address}");
    }
    assert_eq!(usable.nth(usable.size()), None);
}

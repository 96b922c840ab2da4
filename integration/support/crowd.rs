//! Many at once, so many at a time.

use std::{
    sync::{
        Mutex,
        atomic::{AtomicU32, Ordering},
    },
    thread,
};

/// Runs `count` jobs, `at_once` at a time.
pub(crate) fn crowd<T: Send>(at_once: usize, count: usize, job: impl Fn(usize) -> T + Sync) -> Vec<T> {
    let (next, done) = (AtomicU32::new(0), Mutex::new(Vec::new()));
    thread::scope(|scope| {
        for _ in 0..at_once {
            scope.spawn(|| {
                loop {
                    let number = next.fetch_add(1, Ordering::Relaxed) as usize;
                    if number >= count {
                        return;
                    }
                    let result = job(number);
                    done.lock().unwrap().push(result);
                }
            });
        }
    });
    done.into_inner().unwrap()
}

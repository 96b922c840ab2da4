//! How a pass is asked to end early.

use tokio::sync::watch;

/// Somebody wants a pass to end: what is under way is finished, and nothing else begins.
#[derive(Debug)]
pub struct Stop(watch::Sender<bool>);

impl Default for Stop {
    fn default() -> Self {
        Self(watch::Sender::new(false))
    }
}

impl Stop {
    /// From now on, and for good.
    pub fn stop(&self) {
        self.0.send_replace(true);
    }

    /// Does somebody want it?
    #[must_use]
    pub fn is_wanted(&self) -> bool {
        *self.0.borrow()
    }

    /// What this work ends with; `None`, and the work is dropped, if somebody wants the end first.
    pub async fn or<T>(&self, work: impl Future<Output = T>) -> Option<T> {
        let mut wanted = self.0.subscribe();
        tokio::select! {
            biased;
            _ = wanted.wait_for(|wanted| *wanted) => None,
            done = work => Some(done),
        }
    }
}

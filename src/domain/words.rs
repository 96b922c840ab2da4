//! Words of more than one text for a person.

/// So many of what has a regular plural: `1 lease`, `2 passes`.
#[must_use]
pub fn count(number: usize, one: &str) -> String {
    let ending = match (number, one.ends_with('s')) {
        (1, _) => "",
        (_, true) => "es",
        (_, false) => "s",
    };
    format!("{number} {one}{ending}")
}

/// `a`, `a and b`, `a, b and c`.
#[must_use]
pub fn and(all: &[&str]) -> String {
    match all {
        [] => String::new(),
        [one] => (*one).to_owned(),
        [most @ .., last] => format!("{} and {last}", most.join(", ")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_of_several_follows_an_and() {
        let all = ["a", "b", "c"];
        assert_eq!([0, 1, 2, 3].map(|n| and(&all[..n])), ["", "a", "a and b", "a, b and c"]);
    }

    #[test]
    fn one_is_not_many() {
        for (number, one, wanted) in [
            (0, "lease", "0 leases"),
            (1, "lease", "1 lease"),
            (1, "pass", "1 pass"),
            (2, "pass", "2 passes"),
        ] {
            assert_eq!(count(number, one), wanted);
        }
    }
}

//! The known name that was probably meant: of a key in a document, of a pool.

/// Longer names are far from every other: a wrong document must not cost time.
const LONGEST: usize = 40;

/// The known name nearest to one that is not known, if one is near. Letters' case, `-` and `_` do not count.
#[must_use]
pub fn nearest<'a>(name: &str, known: impl IntoIterator<Item = &'a str>) -> Option<&'a str> {
    let name = fold(name);
    let limit = if name.len() < 4 { 1 } else { (name.len() / 3).max(2) };
    known
        .into_iter()
        .map(|candidate| (score(&name, &fold(candidate)), candidate))
        .filter(|(score, _)| *score <= limit)
        .min_by_key(|(score, _)| *score)
        .map(|(_, candidate)| candidate)
}

fn fold(text: &str) -> String {
    text.to_ascii_lowercase().replace(['-', '_'], "")
}

/// `rangeStart` is `start`, `networks` is `network`; else the slips between them.
fn score(name: &str, other: &str) -> usize {
    let within = name.len() > 2 && other.len() > 2 && (name.contains(other) || other.contains(name));
    if name.ends_with(other) {
        0
    } else if within {
        1
    } else {
        slips(name, other)
    }
}

/// A letter replaced, added, lost, or swapped with its neighbour.
#[must_use]
pub fn slips(a: &str, b: &str) -> usize {
    if a.len() > LONGEST || b.len() > LONGEST {
        return usize::MAX;
    }
    let (a, b): (Vec<char>, Vec<char>) = (a.chars().collect(), b.chars().collect());
    let mut rows = vec![(0..=b.len()).collect::<Vec<usize>>()];
    for (i, x) in a.iter().enumerate() {
        let mut row = vec![i + 1];
        for (j, y) in b.iter().enumerate() {
            let mut best = (rows[i][j] + usize::from(x != y)).min(rows[i][j + 1] + 1).min(row[j] + 1);
            if i > 0 && j > 0 && *x == b[j - 1] && a[i - 1] == *y {
                best = best.min(rows[i - 1][j - 1] + 1);
            }
            row.push(best);
        }
        rows.push(row);
    }
    rows[a.len()][b.len()]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn near(name: &str, wanted: Option<&str>) {
        assert_eq!(nearest(name, ["ranges", "start", "end", "networks", "coolDown", "exclude"]), wanted);
    }

    #[test]
    fn b094_the_nearest_name_is_found() {
        near("range", Some("ranges"));
        near("rangeStart", Some("start"));
        near("range-start", Some("start"));
        near("network", Some("networks"));
        near("netwrosk", Some("networks"));
        near("cooldown", Some("coolDown"));
        near("excludes", Some("exclude"));
        near("colour", None);
        near(&"x".repeat(10_000), None);
    }
}

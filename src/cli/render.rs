//! How data is printed: tables, and the stable JSON. Everything is laid into one text and written once.

use std::{
    borrow::Cow,
    fmt::Write as _,
    io::{self, Write as _},
};

use serde_json::Value;

use super::args::Format;

/// How a column stands.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum Side {
    /// Text.
    Left,
    /// Numbers.
    Right,
}

/// A column.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Column {
    name: &'static str,
    side: Side,
    wide: bool,
}

/// A text column.
pub(crate) const fn text(name: &'static str) -> Column {
    Column { name, side: Side::Left, wide: false }
}

/// A column of numbers.
pub(crate) const fn count(name: &'static str) -> Column {
    Column { name, side: Side::Right, wide: false }
}

/// A text column of `-o wide`.
pub(crate) const fn wide(name: &'static str) -> Column {
    Column { name, side: Side::Left, wide: true }
}

/// Between two columns.
const GAP: usize = 3;

/// Lays out a table. Empty cells are `-`, but in the last column.
pub(crate) fn table(
    columns: &[Column],
    mut rows: Vec<Vec<String>>,
    with_wide: bool,
    headers: bool,
) -> String {
    for cell in rows.iter_mut().flatten() {
        if let Cow::Owned(changed) = visible(cell, "") {
            *cell = changed;
        }
    }
    let shown: Vec<usize> = (0..columns.len()).filter(|i| with_wide || !columns[*i].wide).collect();
    let last = shown.last().copied().unwrap_or(0);
    let widths: Vec<usize> = columns
        .iter()
        .enumerate()
        .map(|(index, column)| {
            let cells = rows.iter().map(|row| row.get(index).map_or(0, |cell| width(cell)));
            let header = if headers { column.name.len() } else { 0 };
            cells.max().unwrap_or(0).max(header).max(1)
        })
        .collect();
    let blank = " ".repeat(widths.iter().max().copied().unwrap_or(0) + GAP);
    let mut out =
        String::with_capacity((rows.len() + 1) * (widths.iter().sum::<usize>() + GAP * widths.len()));
    let mut line = |cells: &[&str]| {
        let begin = out.len();
        for index in &shown {
            let cell = cells.get(*index).copied().unwrap_or_default();
            let cell = if cell.is_empty() && *index != last { "-" } else { cell };
            let padding = widths[*index].saturating_sub(width(cell));
            let (before, after) = match columns[*index].side {
                Side::Left => (0, padding),
                Side::Right => (padding, 0),
            };
            out.push_str(&blank[..before]);
            out.push_str(cell);
            if *index != last {
                out.push_str(&blank[..after + GAP]);
            }
        }
        out.truncate(begin + out[begin..].trim_end().len());
        out.push('\n');
    };
    if headers {
        line(&columns.iter().map(|column| column.name).collect::<Vec<_>>());
    }
    for row in &rows {
        line(&row.iter().map(String::as_str).collect::<Vec<_>>());
    }
    out
}

/// Of megabytes of text, nearly all has one byte a character, and counting those took a tenth of a list's time.
fn width(cell: &str) -> usize {
    if cell.is_ascii() { cell.len() } else { cell.chars().count() }
}

/// Lays out `name  value` lines.
pub(crate) fn pairs(pairs: &[(&str, String)]) -> String {
    let width = pairs.iter().map(|(name, _)| name.len()).max().unwrap_or(0);
    let mut out = String::new();
    for (name, value) in pairs.iter().filter(|(_, value)| !value.is_empty()) {
        for (index, line) in value.lines().enumerate() {
            let name = if index == 0 { *name } else { "" };
            let _ = writeln!(out, "{name:<width$}   {line}");
        }
    }
    out
}

/// A document in JSON or YAML.
pub(crate) fn document(value: &Value, format: Format) -> Result<String, String> {
    match format {
        Format::Yaml => serde_saphyr::to_string(value).map_err(|error| error.to_string()),
        Format::Json | Format::Table | Format::Wide | Format::Name => {
            serde_json::to_string_pretty(value).map(|text| text + "\n").map_err(|error| error.to_string())
        }
    }
}

/// A list with its revision, as JSON or YAML has it.
pub(crate) fn items(revision: crate::store::Revision, items: Vec<Value>) -> Value {
    serde_json::json!({"revision": revision.0, "items": items})
}

/// What a reader of our output who went away means.
#[derive(Debug)]
pub(crate) enum Printed {
    /// It was written.
    Whole,
    /// Nobody reads on (`| head`): end quietly.
    Closed,
}

/// Texts in the store are anybody's: none of them moves the cursor of who reads them.
fn visible<'a>(text: &'a str, kept: &str) -> Cow<'a, str> {
    // A list has megabytes, and of them all: a control character beyond ASCII begins with this byte.
    let suspect = |byte: u8| byte.is_ascii_control() && !kept.as_bytes().contains(&byte) || byte == 0xC2;
    if !text.bytes().any(suspect) {
        return Cow::Borrowed(text);
    }
    let hidden = |c: char| c.is_control() && !kept.contains(c);
    let mut out = String::with_capacity(text.len() + 8);
    for c in text.chars() {
        if hidden(c) { out.extend(c.escape_default()) } else { out.push(c) }
    }
    Cow::Owned(out)
}

/// Writes data to stdout.
pub(crate) fn out(text: &str) -> io::Result<Printed> {
    let text = visible(text, "\n\t");
    let mut stdout = io::stdout().lock();
    match stdout.write_all(text.as_bytes()).and_then(|()| stdout.flush()) {
        Ok(()) => Ok(Printed::Whole),
        Err(error) if error.kind() == io::ErrorKind::BrokenPipe => Ok(Printed::Closed),
        Err(error) => Err(error),
    }
}

/// Talks on stderr.
pub(crate) fn say(text: &str) {
    // Nobody is left to tell that nobody listens.
    let _ = writeln!(io::stderr().lock(), "{}", visible(text, "\n\t"));
}

#[cfg(test)]
mod tests {
    use super::*;

    const COLUMNS: [Column; 4] = [text("NAME"), count("SIZE"), wide("UID"), text("WHY")];

    fn rows() -> Vec<Vec<String>> {
        let row = |cells: [&str; 4]| cells.map(ToOwned::to_owned).to_vec();
        vec![row(["lan", "762", "u", "because"]), row(["shop-db", "9", "", ""])]
    }

    #[test]
    fn columns_stand_under_their_names() {
        assert_eq!(
            table(&COLUMNS, rows(), false, true),
            "NAME      SIZE   WHY\nlan        762   because\nshop-db      9\n"
        );
        assert_eq!(
            table(&COLUMNS, rows(), true, true),
            "NAME      SIZE   UID   WHY\nlan        762   u     because\nshop-db      9   -\n"
        );
        assert_eq!(table(&COLUMNS, rows(), false, false), "lan       762   because\nshop-db     9\n");
    }

    #[test]
    fn what_others_wrote_moves_no_cursor() {
        let row = ["a\nb", "1", "", "\u{1b}[2Jred\r"].map(ToOwned::to_owned).to_vec();
        assert_eq!(table(&COLUMNS, vec![row], false, false), "a\\nb   1   \\u{1b}[2Jred\\r\n");
        assert_eq!(visible("a\tb\n\u{7}", "\n\t"), "a\tb\n\\u{7}");
        assert_eq!(visible("£\u{9b}2J£", ""), "£\\u{9b}2J£");
    }

    #[test]
    fn an_empty_list_has_its_headers() {
        assert_eq!(table(&COLUMNS, Vec::new(), false, true), "NAME   SIZE   WHY\n");
        assert_eq!(table(&COLUMNS, Vec::new(), false, false), "");
    }
}

//! Tables for people: columns as wide as their widest cell, two spaces apart.

use std::fmt::Write as _;

use super::show::clean;

/// A table with a line of headings. Every row has as many cells as there are headings.
pub(super) fn table<const N: usize>(headings: [&str; N], rows: &[[String; N]]) -> String {
    let mut widths = headings.map(width);
    for row in rows {
        for (widest, cell) in widths.iter_mut().zip(row) {
            *widest = (*widest).max(width(cell));
        }
    }
    let headings = headings.map(str::to_owned);
    let mut text = String::new();
    for row in std::iter::once(&headings).chain(rows) {
        let start = text.len();
        for (cell, width) in row.iter().zip(widths) {
            // What a node says of itself is shown, and must not move the cursor.
            let cell = clean(cell);
            // Writing to a string does not fail.
            let _ = write!(text, "{cell:width$}  ");
        }
        text.truncate(start + text[start..].trim_end().len());
        text.push('\n');
    }
    text
}

fn width(text: &str) -> usize {
    text.chars().count()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_are_aligned() {
        let row = |cells: [&str; 3]| cells.map(str::to_owned);
        let rows = [row(["shöp", "1", "x"]), row(["a-longer-name", "", ""])];
        let expected = "\
NAME           N  REST
shöp           1  x
a-longer-name
";
        assert_eq!(table(["NAME", "N", "REST"], &rows), expected);
        assert_eq!(table(["NAME"], &[]), "NAME\n");
    }

    #[test]
    fn cells_cannot_drive_the_terminal() {
        let rows = [["\u{1b}[2J\nx".to_owned()]];
        assert_eq!(table(["A"], &rows), "A\n?[2J?x\n");
    }
}

//! Limits for external texts before they are parsed, and escaping for their display.

use std::borrow::Cow;

use serde::de::DeserializeOwned;
use thiserror::Error;
use toml::de::Error as TomlError;
use toml_parser::{Source, lexer::TokenKind};

/// Maximum bytes of a TOML text, where the caller has no limit of its own.
pub const LONGEST: usize = 1 << 20;
/// Maximum parts of a dotted key, and maximum nesting of brackets. It bounds recursion while values are parsed and
/// dropped.
pub const DEEPEST: usize = 8;

/// A TOML text that can't be parsed.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum TextError {
    /// The text is too long.
    #[error("{bytes} bytes must be at most {most}")]
    Long {
        /// Length of the text.
        bytes: usize,
        /// Maximum length.
        most: usize,
    },
    /// A key has too many parts, or brackets are nested too deeply.
    #[error("line {line}: {what} must be at most {DEEPEST} deep")]
    Deep {
        /// Line number, from 1.
        line: usize,
        /// `a dotted key` or `brackets`.
        what: &'static str,
    },
    /// The text isn't TOML, or has an unexpected content. With the line.
    #[error("{}", .0.to_string().trim_end())]
    Syntax(#[from] TomlError),
}

impl TextError {
    /// The error without the line's text.
    pub fn brief(&self) -> String {
        match self {
            Self::Syntax(error) => error.message().to_owned(),
            other => other.to_string(),
        }
    }
}

/// Checks length and depth of a TOML text before it is parsed ([`read_toml`]). Parsers' results are dropped by
/// recursion, and threads can have small stacks. O(length).
///
/// # Errors
/// The text is too long or too deep. Only the parser checks the syntax.
///
/// ```
/// use trainmaster_core::text::check_toml;
/// assert!(check_toml("worker.gpu = 1", 1000).is_ok());
/// let deep = format!("{}x = 1", "a.".repeat(5000));
/// assert_eq!(check_toml(&deep, 100_000).unwrap_err().to_string(), "line 1: a dotted key must be at most 8 deep");
/// assert!(check_toml(&deep, 1000).unwrap_err().to_string().contains("at most 1000"));
/// ```
pub fn check_toml(text: &str, longest: usize) -> Result<(), TextError> {
    if text.len() > longest {
        return Err(TextError::Long { bytes: text.len(), most: longest });
    }
    let (mut open, mut parts) = (Vec::with_capacity(DEEPEST + 1), 1);
    for token in Source::new(text).lex() {
        match token.kind() {
            TokenKind::Dot => parts += 1,
            TokenKind::LeftSquareBracket => open.push(TokenKind::RightSquareBracket),
            TokenKind::LeftCurlyBracket => open.push(TokenKind::RightCurlyBracket),
            // An unmatched bracket is a syntax error. A parser may continue after it at the same depth.
            closing if open.last() == Some(&closing) => _ = open.pop(),
            _ => {}
        }
        if !matches!(token.kind(), TokenKind::Dot | TokenKind::Whitespace | TokenKind::Atom) && !is_quoted(token.kind())
        {
            parts = 1;
        }
        if open.len() > DEEPEST || parts > DEEPEST {
            let line = text[..token.span().start()].matches('\n').count() + 1;
            let what = if parts > DEEPEST { "a dotted key" } else { "brackets" };
            return Err(TextError::Deep { line, what });
        }
    }
    Ok(())
}

/// Strings can be parts of keys.
fn is_quoted(kind: TokenKind) -> bool {
    matches!(
        kind,
        TokenKind::LiteralString | TokenKind::BasicString | TokenKind::MlLiteralString | TokenKind::MlBasicString
    )
}

/// Parses a TOML text within the limits for length and depth.
///
/// # Errors
/// The exceeded limit, or the parser's error.
pub fn read_toml<T: DeserializeOwned>(text: &str, longest: usize) -> Result<T, TextError> {
    check_toml(text, longest)?;
    Ok(toml::from_str(text)?)
}

/// Escapes a text for display, and truncates it to `most` characters. Characters are escaped if they move a terminal's
/// cursor, change its colours, or change the writing direction.
///
/// ```
/// use trainmaster_core::text::shown;
/// assert_eq!(shown("exit code 1", 100), "exit code 1");
/// assert_eq!(shown("\u{1b}[2Jgone\u{202e}", 100), "\\u{1b}[2Jgone\\u{202e}");
/// assert_eq!(shown("abcdef", 3), "abc…");
/// assert_eq!(shown("\n", usize::MAX), "\\u{a}");
/// ```
pub fn shown(text: &str, most: usize) -> Cow<'_, str> {
    let cut = text.char_indices().nth(most).map(|(at, _)| at);
    if cut.is_none() && !text.chars().any(is_unseen) {
        return Cow::Borrowed(text);
    }
    let mut plain = String::with_capacity(text.len().min(most.saturating_mul(4)));
    for c in text[..cut.unwrap_or(text.len())].chars() {
        if is_unseen(c) { plain.extend(c.escape_unicode()) } else { plain.push(c) }
    }
    if cut.is_some() {
        plain.push('…');
    }
    Cow::Owned(plain)
}

/// Whether a character affects a terminal instead of being visible: control characters, and characters that change the
/// writing direction.
pub fn is_unseen(c: char) -> bool {
    c.is_control()
        || matches!(c, '\u{61c}' | '\u{200e}' | '\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2066}'..='\u{2069}')
}

/// One word of a command, as a shell reads it.
///
/// ```
/// assert_eq!(trainmaster_core::text::quoted("a=1"), "a=1");
/// assert_eq!(trainmaster_core::text::quoted("it's $5"), r"'it'\''s $5'");
/// ```
pub fn quoted(text: &str) -> String {
    let is_plain = |c: char| c.is_ascii_alphanumeric() || "/._-+:=,@%".contains(c);
    let plain = !text.is_empty() && text.chars().all(is_plain);
    if plain { text.into() } else { format!("'{}'", text.replace('\'', r"'\''")) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn depth_is_counted_where_it_nests() {
        for fine in [
            "a.b.c.d.e.f.g.h = 1",
            "a = [1.5, 2.5, 3.5, 4.5, 5.5, 6.5, 7.5, 8.5, 9.5, 10.5]",
            "a = \"1.2.3.4.5.6.7.8.9.10.11\" # 1.2.3.4.5.6.7.8.9.10",
            "a = '[[[[[[[[[[[['",
            "[[[[[",
        ] {
            assert_eq!(check_toml(fine, LONGEST), Ok(()), "{fine}");
        }
        for (deep, line, what) in [
            ("x = 1\na.b.c.d.e.f.g.h.i = 1", 2, "a dotted key"),
            ("a . b . c . d . e . f . g . h . i = 1", 1, "a dotted key"),
            ("\"a\".'b'.c.d.e.f.g.h.i = 1", 1, "a dotted key"),
            ("[a.b.c.d.e.f.g.h.i]", 1, "a dotted key"),
            ("a = [[[[[[[[[1]]]]]]]]]", 1, "brackets"),
            ("a = {a={a={a={a={a={a={a={a=1}}}}}}}}", 1, "brackets"),
            ("a = { ] { ] { ] { ] { ] { ] { ] { ]", 1, "brackets"),
        ] {
            let deep = if what == "brackets" { deep.replacen("= ", "= [", 1) } else { deep.to_owned() };
            assert_eq!(check_toml(&deep, LONGEST), Err(TextError::Deep { line, what }), "{deep}");
        }
        assert!(matches!(read_toml::<toml::Table>("a = ", 10), Err(TextError::Syntax(_))));
    }

    #[test]
    fn shown_texts_are_truncated_between_characters() {
        assert_eq!(shown("ééé", 2), "éé…");
        assert_eq!(shown("é", 1), "é");
        assert_eq!(shown("a\nb", 10), "a\\u{a}b");
        assert_eq!(shown("", 0), "");
    }
}

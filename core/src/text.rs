//! What texts from outside may be before anything is made of them, and how they are shown.

use std::borrow::Cow;

use serde::de::DeserializeOwned;
use thiserror::Error;
use toml::de::Error as TomlError;
use toml_parser::{Source, lexer::TokenKind};

/// Bytes of a TOML text: a policy's weights fit, a job file is a hundredth of it.
pub const LONGEST: usize = 1 << 20;
/// Parts of a dotted key, and brackets within each other: what is read and dropped by recursion stays shallow.
pub const DEEPEST: usize = 8;

/// A TOML text that can't be read.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum TextError {
    /// Longer than anything it could mean.
    #[error("{bytes} bytes must be at most {most}")]
    Long {
        /// Its length.
        bytes: usize,
        /// What is allowed.
        most: usize,
    },
    /// A key of too many parts, or too many brackets within each other.
    #[error("line {line}: {what} must be at most {DEEPEST} deep")]
    Deep {
        /// Where, from 1.
        line: usize,
        /// `a dotted key` or `brackets`.
        what: &'static str,
    },
    /// Not TOML, or not what is expected: with its line.
    #[error("{}", .0.to_string().trim_end())]
    Syntax(#[from] TomlError),
}

impl TextError {
    /// What is wrong, without the line that it is in.
    pub fn brief(&self) -> String {
        match self {
            Self::Syntax(error) => error.message().to_owned(),
            other => other.to_string(),
        }
    }
}

/// Checks length and depth before a TOML text is parsed ([`read_toml`]): what comes out of a parser is dropped by recursion,
/// and threads may have small stacks. O(length).
///
/// # Errors
/// It is too long or too deep. Whether it is TOML is the parser's to say.
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
            // One that closes nothing is a mistake, over which a parser goes on as deep as it is.
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

/// Strings may be parts of keys.
fn is_quoted(kind: TokenKind) -> bool {
    matches!(
        kind,
        TokenKind::LiteralString | TokenKind::BasicString | TokenKind::MlLiteralString | TokenKind::MlBasicString
    )
}

/// What a TOML text says, if it is neither too long nor too deep.
///
/// # Errors
/// Says which, or what the parser says.
pub fn read_toml<T: DeserializeOwned>(text: &str, longest: usize) -> Result<T, TextError> {
    check_toml(text, longest)?;
    Ok(toml::from_str(text)?)
}

/// A text for people: what would move a terminal's cursor, colour it or turn the direction of writing is escaped, and it
/// is cut after so many characters.
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

/// Whether a character does something else on a terminal than being seen: control characters, and those that change the
/// direction of what follows.
pub fn is_unseen(c: char) -> bool {
    c.is_control()
        || matches!(c, '\u{61c}' | '\u{200e}' | '\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2066}'..='\u{2069}')
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
    fn a_text_for_people_is_cut_between_characters() {
        assert_eq!(shown("ééé", 2), "éé…");
        assert_eq!(shown("é", 1), "é");
        assert_eq!(shown("a\nb", 10), "a\\u{a}b");
        assert_eq!(shown("", 0), "");
    }
}

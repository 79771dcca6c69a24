//! Limits for external texts before they are parsed, and escaping for their display.

use std::borrow::Cow;

use serde::de::DeserializeOwned;
use thiserror::Error;
use toml::de::Error as TomlError;
use toml_parser::{Source, lexer::TokenKind};

/// Maximum bytes of a TOML text, where the caller has no limit of its own.
pub const LONGEST: usize = 1 << 20;
/// Maximum characters of a key's path in errors.
const LONGEST_PATH: usize = 200;
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
    #[error("{}", whole(.path, .error))]
    Syntax {
        /// The key with the unexpected content, such as `limits.jobs`. Empty: that isn't known.
        path: String,
        /// The parser's error.
        error: TomlError,
    },
}

impl TextError {
    /// The error without the line's text.
    pub fn brief(&self) -> String {
        match self {
            Self::Syntax { path, error } => {
                let message = in_plain_words(error.message());
                format!("{}{message}", named(path, &message))
            }
            other => other.to_string(),
        }
    }
}

/// The error with the line's text.
fn whole(path: &str, error: &TomlError) -> String {
    let text = error.to_string();
    let text = text.trim_end();
    let Some(line) = text.strip_suffix(error.message()) else { return text.to_owned() };
    let message = in_plain_words(error.message());
    // The line has the key itself, but not its table.
    let place = if path.contains(['.', '[']) { named(path, &message) } else { String::new() };
    format!("{line}{place}{message}")
}

/// The key, unless the message begins with it.
fn named(path: &str, message: &str) -> String {
    if path.is_empty() || message.starts_with(path) { String::new() } else { format!("{path}: ") }
}

/// Serde names an expected type as Rust does. Those who write files need not know Rust.
pub(crate) fn in_plain_words(message: &str) -> String {
    const WORDS: [(&str, &[&str]); 8] = [
        ("a whole number of 0 or more", &["usize", "u8", "u16", "u32", "u64"]),
        ("a whole number of 1 or more", &["a nonzero u32", "a nonzero u64", "a nonzero usize"]),
        ("a whole number", &["isize", "i8", "i16", "i32", "i64"]),
        ("a number", &["f32", "f64"]),
        ("true or false", &["a boolean"]),
        ("a text in quotes", &["a string", "path string"]),
        ("a list", &["a sequence", "a tuple"]),
        ("a table", &["a map", "struct"]),
    ];
    /// What a number that is too large must be at most.
    const MOST: [(&str, &str); 4] = [("u8", "255"), ("u16", "65535"), ("u32", "4294967295"), ("i32", "2147483647")];
    let Some((before, rest)) = message.rsplit_once("expected ") else { return message.to_owned() };
    if let Some((_, most)) = MOST.iter().find(|(name, _)| rest == *name)
        && before.starts_with("invalid value: integer `")
        && !before.contains("`-")
    {
        return format!("{before}expected a whole number of at most {most}");
    }
    let follows = |words: &str| {
        let tail = rest.strip_prefix(words)?;
        (!tail.starts_with(|c: char| c.is_alphanumeric() || c == '_')).then_some(tail)
    };
    let found = WORDS.iter().find_map(|(plain, all)| Some((plain, all.iter().find_map(|words| follows(words))?)));
    match found {
        // The name of a struct, or the length of a tuple.
        Some((plain, tail)) if rest.starts_with("struct ") => {
            format!("{before}expected {plain}{}", tail.trim_start().trim_start_matches(|c: char| c.is_alphanumeric()))
        }
        Some((plain, tail)) => format!("{before}expected {plain}{tail}"),
        None => message.to_owned(),
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
    let parsed = toml::Deserializer::parse(text).map_err(|error| TextError::Syntax { path: String::new(), error })?;
    serde_path_to_error::deserialize(parsed).map_err(unexpected)
}

/// Reads a value from a parsed TOML table.
///
/// # Errors
/// The key with the unexpected content, and what was expected.
pub fn from_table<T: DeserializeOwned>(table: toml::Table) -> Result<T, TextError> {
    serde_path_to_error::deserialize(table).map_err(unexpected)
}

fn unexpected(error: serde_path_to_error::Error<TomlError>) -> TextError {
    let path = error.path().iter().next().map_or_else(String::new, |_| error.path().to_string());
    TextError::Syntax { path: shown(&path, LONGEST_PATH).into(), error: error.into_inner() }
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

/// Bytes as lower-case hexadecimal digits.
///
/// ```
/// use trainmaster_core::text::{from_hex, hex};
///
/// assert_eq!(hex(&[0x0a, 0xff]), "0aff");
/// assert_eq!(from_hex("0aFF"), Some([10, 255]));
/// assert_eq!((from_hex::<2>("0af"), from_hex::<2>("+aff")), (None, None));
/// ```
pub fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// The bytes of a text of exactly two hexadecimal digits for each.
pub fn from_hex<const N: usize>(text: &str) -> Option<[u8; N]> {
    let mut bytes = [0; N];
    if text.len() != 2 * N {
        return None;
    }
    let digit = |byte: u8| char::from(byte).to_digit(16);
    for (byte, pair) in bytes.iter_mut().zip(text.as_bytes().chunks_exact(2)) {
        *byte = (digit(pair[0])? << 4 | digit(pair[1])?) as u8;
    }
    Some(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_mistake_is_named_with_its_key() {
        #[derive(Debug, serde::Deserialize)]
        #[serde(deny_unknown_fields)]
        struct Inner {
            #[expect(dead_code, reason = "only its type is used")]
            jobs: Vec<u32>,
        }
        #[derive(Debug, serde::Deserialize)]
        struct Outer {
            #[expect(dead_code, reason = "only its type is used")]
            limits: Inner,
        }
        let problem = |text: &str| read_toml::<Outer>(text, 1000).unwrap_err();
        let error = problem("[limits]\njobs = [1, \"x\"]");
        assert!(
            error
                .to_string()
                .ends_with("\nlimits.jobs[1]: invalid type: string \"x\", expected a whole number of 0 or more"),
            "{error}"
        );
        assert!(error.to_string().contains("line 2, column 12"), "{error}");
        assert!(error.brief().starts_with("limits.jobs[1]: "), "{}", error.brief());
        assert!(problem("[limits]\njob = 1").to_string().contains("limits.job: unknown field `job`"));
        assert!(problem("limits = 1").to_string().contains("\ninvalid type"), "the line has it");
        assert!(problem("limits").to_string().contains("line 1"));
    }

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
        assert!(matches!(read_toml::<toml::Table>("a = ", 10), Err(TextError::Syntax { .. })));
    }

    #[test]
    fn wrong_types_are_named_in_plain_words() {
        #[derive(Debug, serde::Deserialize)]
        #[serde(deny_unknown_fields)]
        #[expect(dead_code, reason = "only its types matter")]
        struct File {
            count: Option<u32>,
            vcores: Option<std::num::NonZeroU32>,
            share: Option<f64>,
            on: Option<bool>,
            name: Option<String>,
            list: Option<Vec<u32>>,
            pair: Option<(u32, u32)>,
            inner: Option<Inner>,
            labels: Option<std::collections::BTreeMap<String, String>>,
            folder: Option<std::path::PathBuf>,
            #[serde(default, with = "crate::amount::duration")]
            wait: std::time::Duration,
        }
        #[derive(Debug, serde::Deserialize)]
        #[expect(dead_code, reason = "only its type matters")]
        struct Inner {
            count: u32,
        }
        for (text, expected) in [
            ("inner = 1", "integer `1`, expected a table"),
            ("labels = 1", "integer `1`, expected a table"),
            ("folder = 1", "integer `1`, expected a text in quotes"),
            ("pair = 1", "integer `1`, expected a list of size 2"),
            ("cont = 1 # expected u32", "`inner`, `labels`, `folder`, `wait`"),
            ("count = -1", "integer `-1`, expected a whole number of 0 or more"),
            ("count = 5000000000", "integer `5000000000`, expected a whole number of at most 4294967295"),
            ("vcores = 0", "integer `0`, expected a whole number of 1 or more"),
            ("count = \"expected u32\"", "expected a whole number of 0 or more"),
            ("share = \"x\"", "string \"x\", expected a number"),
            ("on = 1", "integer `1`, expected true or false"),
            ("name = 1", "integer `1`, expected a text in quotes"),
            ("list = 1", "integer `1`, expected a list"),
            ("wait = 2", "integer `2`, expected a duration in quotes, such as \"20s\""),
        ] {
            let error = read_toml::<File>(text, 100).unwrap_err();
            assert!(error.to_string().ends_with(expected) && error.brief().ends_with(expected), "{text}: {error}");
            assert!(error.to_string().contains(text), "the line is shown as it is: {error}");
        }
    }

    #[test]
    fn shown_texts_are_truncated_between_characters() {
        assert_eq!(shown("ééé", 2), "éé…");
        assert_eq!(shown("é", 1), "é");
        assert_eq!(shown("a\nb", 10), "a\\u{a}b");
        assert_eq!(shown("", 0), "");
    }
}

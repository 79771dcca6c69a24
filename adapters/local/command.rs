//! Finding the program of a command. The text is split as a shell does, but no shell runs it.

use std::{
    env,
    io::ErrorKind::{NotADirectory, NotFound},
    path::{Path, PathBuf},
};

use rustix::fs::{Access, access};

use super::fleet::plan::Command;

/// The program of an empty command.
pub(crate) const DEFAULT_PROGRAM: &str = "trainmaster-trainer";

/// The places where programs are searched.
#[derive(Clone, Debug)]
pub(crate) struct Programs {
    /// The program for [`DEFAULT_PROGRAM`], if the host specifies one.
    trainer: Option<PathBuf>,
    /// This executable's folder and those of `path`.
    folders: Vec<PathBuf>,
    path: Vec<PathBuf>,
}

impl Programs {
    /// Searches this executable's folder first, then `PATH`.
    pub(crate) fn new(trainer: Option<PathBuf>) -> Self {
        let beside = env::current_exe().ok().and_then(|exe| Some(exe.parent()?.to_owned()));
        let path = env::var_os("PATH").unwrap_or_default();
        let path: Vec<PathBuf> = env::split_paths(&path).collect();
        Self { trainer, folders: beside.into_iter().chain(path.clone()).collect(), path }
    }

    /// Returns the program of a command, and its arguments.
    ///
    /// # Errors
    /// The cause: unbalanced quotes, a missing program, or a program that can't be executed. It doesn't repeat the
    /// command, because more people may read the cause than the command.
    pub(crate) fn resolve(&self, text: &str) -> Result<Command, String> {
        let words = shell_words::split(text).map_err(|error| format!("its command: {error}"))?;
        let mut words = words.into_iter();
        let name = words.next().unwrap_or_else(|| DEFAULT_PROGRAM.into());
        let arguments: Vec<String> = words.collect();
        if name.contains('\0') || arguments.iter().any(|argument| argument.contains('\0')) {
            return Err("its command contains a NUL".into());
        }
        Ok(Command { program: self.find(&name)?, arguments })
    }

    /// Checks a command before its job is taken: also for what only a shell understands, and for the program and the
    /// folder behind `env`, as a job file's `env` and `workdir` put them.
    ///
    /// # Errors
    /// As [`resolve`](Self::resolve), and names what is wrong.
    pub(crate) fn check(&self, text: &str) -> Result<(), String> {
        if let Some(found) = shell_syntax(text) {
            return Err(format!(
                "its command has {found} outside quotes, which only a shell understands; quote it, or write sh -c '…'"
            ));
        }
        let Command { program, arguments } = self.resolve(text)?;
        if program.file_name().is_none_or(|name| name != "env") {
            return Ok(());
        }
        let mut folder = None;
        for word in &arguments {
            if let Some(path) = word.strip_prefix("--chdir=") {
                if is_missing(Path::new(path)) {
                    return Err(format!("workdir {path} isn't there"));
                }
                folder = Some(Path::new(path));
            } else if word.starts_with("PATH=") || word.starts_with('-') {
                // The program is searched elsewhere.
                return Ok(());
            } else if !word.contains('=') {
                let places: Vec<PathBuf> = match folder {
                    _ if word.starts_with('/') => vec![word.into()],
                    Some(folder) if word.contains('/') => vec![folder.join(word)],
                    // The job's own folder isn't there yet.
                    None if word.contains('/') => return Ok(()),
                    _ => self.path.iter().map(|folder| folder.join(word)).collect(),
                };
                let are_missing = places.iter().all(|place| is_missing(place));
                return if are_missing { Err(format!("{} isn't there", named(word))) } else { Ok(()) };
            }
        }
        Ok(())
    }

    fn find(&self, name: &str) -> Result<PathBuf, String> {
        if name == DEFAULT_PROGRAM
            && let Some(trainer) = &self.trainer
        {
            return executable(trainer, &format!("program {}", trainer.display()));
        }
        let shown = named(name);
        if name.contains('/') {
            // The folder's name is the administrator's matter.
            let here = if name.starts_with('/') {
                ""
            } else {
                " in the daemon's folder (give its whole path, or set workdir)"
            };
            return executable(Path::new(name), &format!("{shown}{here}"));
        }
        let found = self.folders.iter().map(|folder| folder.join(name)).find(|path| executable(path, &shown).is_ok());
        let found = found.ok_or_else(|| {
            let hint = if name.contains('=') {
                "variables belong into the job file's env"
            } else {
                "give its path, or install it"
            };
            format!("{shown} is neither beside the daemon nor in PATH; {hint}")
        })?;
        executable(&found, &shown)
    }
}

/// A program for messages, without its name if that may contain more than a name.
fn named(name: &str) -> String {
    let is_plain = |c: char| c.is_alphanumeric() || matches!(c, '/' | '.' | '_' | '-' | '+');
    if name.len() <= 256 && name.chars().all(is_plain) {
        format!("program {name}")
    } else {
        "the program of its command".into()
    }
}

/// Whether a path isn't there. One that can't be looked at may be there for the job's user.
fn is_missing(path: &Path) -> bool {
    path.metadata().is_err_and(|error| matches!(error.kind(), NotFound | NotADirectory))
}

/// What only a shell understands in a command, if it isn't quoted: operators that are words, redirections to paths, and
/// words that are variables. Other words can be meant as they are: `find . -exec rm {} ;`, `--pad <pad>`. O(length).
fn shell_syntax(text: &str) -> Option<&'static str> {
    let (mut quote, mut escaped, mut comment, mut blank) = (None, false, false, true);
    // Quoted characters aren't syntax, and a comment is none.
    let bare = text.chars().map(|c| {
        let was_blank = std::mem::replace(&mut blank, c.is_whitespace());
        if comment {
            comment = c != '\n';
            return ' ';
        }
        if std::mem::take(&mut escaped) {
            return 'q';
        }
        match (quote, c) {
            (None, '#') if was_blank => {
                comment = true;
                ' '
            }
            (None | Some('"'), '\\') => {
                escaped = true;
                'q'
            }
            (None, '"' | '\'') => {
                quote = Some(c);
                'q'
            }
            (Some(open), _) => {
                quote = (c != open).then_some(open);
                'q'
            }
            (None, _) => c,
        }
    });
    let bare: String = bare.collect();
    let starts = |rest: &str| rest.starts_with(|c: char| c.is_ascii_alphabetic() || matches!(c, '_' | '{' | '('));
    let is_path = |rest: &str| rest.starts_with(|c: char| c.is_ascii_alphabetic() || matches!(c, '/' | '.' | '~'));
    let mut words = bare.split_whitespace().peekable();
    while let Some(word) = words.next() {
        let is_redirection = |sign: &str| word.strip_prefix(sign).is_some_and(is_path);
        match word {
            "|" | "||" => return Some("|"),
            "&" | "&&" => return Some("&"),
            "<" | ">" | ">>" | "2>" | "2>&1" | "&>" => return Some("< or >"),
            _ if [">", ">>", "2>", "&>"].into_iter().any(is_redirection) => return Some("< or >"),
            _ if word.find(';') == Some(word.len() - 1) && word.len() > 1 && words.peek().is_some() => {
                return Some(";");
            }
            _ if word.strip_prefix('$').is_some_and(starts) => return Some("$"),
            _ if word.split_once("=$").is_some_and(|(_, rest)| starts(rest)) => return Some("$"),
            _ => {}
        }
    }
    None
}

/// The absolute path of an executable file.
fn executable(path: &Path, shown: &str) -> Result<PathBuf, String> {
    // Symbolic links aren't resolved, because a program may check the name by which it was called.
    let full = std::path::absolute(path).map_err(|error| format!("{shown}: {error}"))?;
    let data = full.metadata().map_err(|error| format!("{shown}: {error}"))?;
    if !data.is_file() {
        return Err(format!("{shown} is not a file"));
    }
    access(&full, Access::EXEC_OK).map_err(|error| format!("{shown} can't be run: {error}"))?;
    Ok(full)
}

#[cfg(test)]
mod tests {
    use std::{fs, os::unix::fs::PermissionsExt as _};

    use super::*;

    #[test]
    fn words_are_split_as_a_shell_does() {
        let programs = Programs::new(None);
        let command = programs.resolve("sh -c 'echo $A \"b c\"' d\\ e").unwrap();
        assert!(command.program.is_absolute() && command.program.ends_with("sh"));
        assert_eq!(command.arguments, ["-c", "echo $A \"b c\"", "d e"]);
    }

    #[test]
    fn an_empty_command_is_the_trainer() {
        let folder = tempfile::tempdir().unwrap();
        let trainer = folder.path().join("any-name");
        fs::write(&trainer, "#!/bin/sh\n").unwrap();
        let programs = Programs::new(Some(trainer.clone()));
        assert!(programs.resolve("").unwrap_err().contains("can't be run"));
        fs::set_permissions(&trainer, fs::Permissions::from_mode(0o755)).unwrap();
        for text in ["", "trainmaster-trainer"] {
            assert_eq!(programs.resolve(text).unwrap(), Command { program: trainer.clone(), arguments: Vec::new() });
        }
    }

    #[test]
    fn a_command_is_checked_for_a_shells_syntax_and_behind_env() {
        let programs = Programs::new(None);
        let folder = tempfile::tempdir().unwrap();
        let script = folder.path().join("train.sh");
        fs::write(&script, "#!/bin/sh\n").unwrap();
        let here = folder.path().display();
        for (text, part) in [
            ("sleep 1 && sleep 2".to_owned(), "& outside quotes"),
            ("sleep 1; sleep 2".into(), "; outside quotes"),
            ("echo a | cat".into(), "| outside quotes"),
            ("echo a >/tmp/a".into(), "< or > outside quotes"),
            ("cat 2>&1".into(), "< or > outside quotes"),
            ("echo $HOME".into(), "$ outside quotes"),
            ("echo ${A}x".into(), "$ outside quotes"),
            ("env --chdir=/no/such/folder true".into(), "workdir /no/such/folder isn't there"),
            ("echo a >> out.txt".into(), "< or > outside quotes"),
            ("python t.py --data=$DATA".into(), "$ outside quotes"),
            ("# don't\nsleep 1 && sleep 2".into(), "& outside quotes"),
            (format!("env --chdir={here} A=1 no-such-program"), "program no-such-program isn't there"),
            (format!("env --chdir={here} other/train.sh"), "program other/train.sh isn't there"),
            ("env A=1 /no/such/program".into(), "program /no/such/program isn't there"),
        ] {
            let error = programs.check(&text).unwrap_err();
            assert!(error.contains(part), "{error:?} should contain {part:?}");
        }
        for text in [
            "sh -c 'a && b; c > $d | e'".to_owned(),
            r#"sh -c "a && b" \; \& a\$b"#.into(),
            "cat http://a?b=1&c=2 a->b x|y 5$ a;b pa$word >0.5 <pad>".into(),
            "sh t.sh # lr > 0.1 && $x".into(),
            "find . -exec rm {} ;".into(),
            "sort --columns a;b; c".into(),
            "env A=1 ./x".into(),
            format!("env --chdir={here} 'A=a & b' ./train.sh"),
            "env PATH=/elsewhere unknown".into(),
            "env -u A unknown".into(),
            "env A=1".into(),
        ] {
            assert_eq!(programs.check(&text), Ok(()), "{text}");
        }
    }

    #[test]
    fn errors_say_what_is_wrong() {
        let programs = Programs::new(None);
        for (text, part) in [
            ("no-such-program-anywhere -x", "neither beside the daemon nor in PATH"),
            ("/no/such/program", "/no/such/program"),
            ("/tmp", "not a file"),
            ("sh -c 'oops", "missing closing quote"),
            ("'train --key=secret'", "the program of its command is neither"),
            ("KEY=secret train", "variables belong into the job file's env"),
            ("'/train --key=secret'", "program of its command"),
            ("sh a\0b", "NUL"),
        ] {
            let error = programs.resolve(text).unwrap_err();
            assert!(error.contains(part), "{error:?} should contain {part:?}");
            assert!(!error.contains("oops") && !error.contains("secret"), "{error:?}");
        }
    }
}

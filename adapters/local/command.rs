//! Finding the program of a command. The text is split as a shell does, but no shell runs it.

use std::{
    env,
    io::ErrorKind::NotFound,
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
    folders: Vec<PathBuf>,
}

impl Programs {
    /// Searches this executable's folder first, then `PATH`.
    pub(crate) fn new(trainer: Option<PathBuf>) -> Self {
        let beside = env::current_exe().ok().and_then(|exe| Some(exe.parent()?.to_owned()));
        let path = env::var_os("PATH").unwrap_or_default();
        Self { trainer, folders: beside.into_iter().chain(env::split_paths(&path)).collect() }
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
    /// As [`resolve`](Self::resolve).
    pub(crate) fn check(&self, text: &str) -> Result<(), String> {
        if let Some(found) = shell_syntax(text) {
            return Err(format!("its command has {found} outside quotes, which only a shell understands: sh -c '…'"));
        }
        let Command { program, arguments } = self.resolve(text)?;
        if program.file_name().is_none_or(|name| name != "env") {
            return Ok(());
        }
        let mut folder = None;
        for word in &arguments {
            if let Some(path) = word.strip_prefix("--chdir=") {
                let path = Path::new(path);
                // A folder that can't be looked at may be there.
                if path.metadata().is_err_and(|error| error.kind() == NotFound) {
                    return Err(format!("workdir {} isn't there", path.display()));
                }
                folder = Some(path);
            } else if word.starts_with("PATH=") || word.starts_with('-') {
                // The program is searched elsewhere.
                return Ok(());
            } else if !word.contains('=') {
                let relative = folder.filter(|_| word.contains('/') && !word.starts_with('/'));
                return match relative {
                    Some(folder) => executable(&folder.join(word), &named(word)).map(drop),
                    None => self.find(word).map(drop),
                };
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
            return executable(Path::new(name), &shown);
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

/// What only a shell understands in a command, if it isn't quoted: operators that are words or begin or end one, and
/// variables. O(length).
fn shell_syntax(text: &str) -> Option<&'static str> {
    let (mut quote, mut escaped) = (None, false);
    // Quoted characters aren't syntax.
    let bare = text.chars().map(|c| match (quote, c) {
        _ if escaped => {
            escaped = false;
            'q'
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
            if c == open {
                quote = None;
            }
            'q'
        }
        (None, _) => c,
    });
    let bare: String = bare.collect();
    let variable = |word: &str| {
        let starts = |rest: &str| rest.starts_with(|c: char| c.is_ascii_alphabetic() || matches!(c, '_' | '{' | '('));
        word.match_indices('$').any(|(at, _)| starts(&word[at + 1..]))
    };
    bare.split_whitespace().find_map(|word| match word {
        "|" | "||" => Some("|"),
        "&" | "&&" => Some("&"),
        ";" => Some(";"),
        _ if word.len() > 1 && word.ends_with(';') => Some(";"),
        _ if ["<", ">", "1>", "2>", "&>"].iter().any(|redirect| word.starts_with(redirect)) => Some("< or >"),
        _ if variable(word) => Some("$"),
        _ => None,
    })
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
            (format!("env --chdir={here} A=1 no-such-program"), "program no-such-program is neither"),
            (format!("env --chdir={here} ./train.sh"), "program ./train.sh can't be run"),
            (format!("env --chdir={here} other/train.sh"), "No such file"),
        ] {
            let error = programs.check(&text).unwrap_err();
            assert!(error.contains(part), "{error:?} should contain {part:?}");
        }
        fs::set_permissions(&script, fs::Permissions::from_mode(0o755)).unwrap();
        for text in [
            "sh -c 'a && b; c > $d | e'".to_owned(),
            r#"sh -c "a && b" \; \& a\$b"#.into(),
            "cat http://a?b=1&c=2 a->b x|y 5$ a;b".into(),
            format!("env --chdir={here} 'A=a & b' ./train.sh"),
            "env PATH=/elsewhere unknown".into(),
            "env -u A unknown".into(),
            "env A=1".into(),
            "".into(),
        ] {
            assert!(text.is_empty() || programs.check(&text).is_ok(), "{text}: {:?}", programs.check(&text));
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

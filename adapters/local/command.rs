//! Finding the program of a command. The text is split as a shell does, but no shell runs it.

use std::{
    env,
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

    fn find(&self, name: &str) -> Result<PathBuf, String> {
        if name == DEFAULT_PROGRAM
            && let Some(trainer) = &self.trainer
        {
            return executable(trainer, &trainer.display().to_string());
        }
        if name.contains('/') {
            return executable(Path::new(name), plain(name));
        }
        let found = self.folders.iter().map(|folder| folder.join(name)).find(|path| executable(path, name).is_ok());
        let found = found.ok_or_else(|| {
            let shown = plain(name);
            format!("program {shown} is neither beside the daemon nor in PATH; give its path, or install it")
        })?;
        executable(&found, plain(name))
    }
}

/// A program's name for messages. Hidden if it may contain more than a name.
fn plain(name: &str) -> &str {
    let is_plain = |c: char| c.is_alphanumeric() || matches!(c, '/' | '.' | '_' | '-' | '+');
    if name.len() <= 256 && name.chars().all(is_plain) { name } else { "of its command" }
}

/// The absolute path of an executable file.
fn executable(path: &Path, shown: &str) -> Result<PathBuf, String> {
    // Symbolic links aren't resolved, because a program may check the name by which it was called.
    let full = std::path::absolute(path).map_err(|error| format!("program {shown}: {error}"))?;
    let data = full.metadata().map_err(|error| format!("program {shown}: {error}"))?;
    if !data.is_file() {
        return Err(format!("program {shown} is not a file"));
    }
    access(&full, Access::EXEC_OK).map_err(|error| format!("program {shown} can't be run: {error}"))?;
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
    fn errors_say_what_is_wrong() {
        let programs = Programs::new(None);
        for (text, part) in [
            ("no-such-program-anywhere -x", "neither beside the daemon nor in PATH"),
            ("/no/such/program", "/no/such/program"),
            ("/tmp", "not a file"),
            ("sh -c 'oops", "missing closing quote"),
            ("'train --key=secret'", "program of its command is neither"),
            ("'/train --key=secret'", "program of its command"),
            ("sh a\0b", "NUL"),
        ] {
            let error = programs.resolve(text).unwrap_err();
            assert!(error.contains(part), "{error:?} should contain {part:?}");
            assert!(!error.contains("oops") && !error.contains("secret"), "{error:?}");
        }
    }
}

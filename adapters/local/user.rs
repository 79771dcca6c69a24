//! The user that runs jobs: the daemon's own, or another one, which can't read the daemon's files.

use std::{
    fs::DirBuilder,
    io,
    os::unix::{
        fs::{DirBuilderExt as _, lchown},
        process::CommandExt as _,
    },
    path::{Path, PathBuf},
    process::Command,
};

/// Another user for jobs, from the cluster file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RunAs {
    /// The user's name.
    pub user: String,
    /// The folder for jobs' folders, because this user can't reach the daemon's folder.
    pub folder: PathBuf,
}

/// An existing user.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct User {
    pub(crate) name: String,
    pub(crate) uid: u32,
    pub(crate) gid: u32,
}

impl User {
    /// Finds a user by name.
    ///
    /// # Errors
    /// There is no such user, or this process can't start other users' processes.
    pub(crate) fn find(name: &str) -> Result<Self, String> {
        if !rustix::process::geteuid().is_root() {
            return Err(format!(
                "user = {name:?}: only a daemon that runs as root can start processes as another user"
            ));
        }
        Ok(Self { name: name.to_owned(), uid: id("-u", name)?, gid: id("-g", name)? })
    }

    /// The first existing folder on the path that this user can't enter.
    pub(crate) fn stopped_at<'a>(&self, folder: &'a Path) -> Option<&'a Path> {
        let enters = |folder: &Path| {
            let mut test = Command::new("test");
            test.arg("-x").arg(folder).uid(self.uid).gid(self.gid);
            test.status().is_ok_and(|said| said.success())
        };
        let mut way: Vec<&Path> = folder.ancestors().filter(|folder| folder.exists()).collect();
        way.reverse();
        way.into_iter().find(|folder| !enters(folder))
    }

    /// Creates a folder that only this user can access. An existing one isn't changed, because the user may have
    /// replaced it.
    ///
    /// # Errors
    /// The folder can't be created.
    pub(crate) fn make_folder(&self, path: &Path) -> io::Result<()> {
        match DirBuilder::new().mode(0o700).create(path) {
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => Ok(()),
            made => made.and_then(|()| self.give(path)),
        }
    }

    /// Makes this user the owner of a path.
    ///
    /// # Errors
    /// The path doesn't exist.
    pub(crate) fn give(&self, path: &Path) -> io::Result<()> {
        lchown(path, Some(self.uid), Some(self.gid))
    }
}

fn id(which: &str, name: &str) -> Result<u32, String> {
    let said = Command::new("id").args([which, "--", name]).output().map_err(|error| format!("id: {error}"))?;
    let number = String::from_utf8_lossy(&said.stdout).trim().parse();
    number.map_err(|_| format!("user = {name:?}: {}", String::from_utf8_lossy(&said.stderr).trim()))
}

#[cfg(test)]
mod tests {
    use std::{fs, os::unix::fs::PermissionsExt as _};

    use super::*;

    #[test]
    fn a_user_is_found_by_name() {
        if !rustix::process::geteuid().is_root() {
            assert!(User::find("nobody").unwrap_err().contains("runs as root"));
            return;
        }
        let root = User::find("root").unwrap();
        assert_eq!((root.uid, root.gid), (0, 0));
        let folder = tempfile::tempdir().unwrap();
        fs::set_permissions(folder.path(), fs::Permissions::from_mode(0o700)).unwrap();
        let inside = folder.path().join("inside");
        let nobody = User::find("nobody").unwrap();
        assert_eq!(nobody.stopped_at(&inside), Some(folder.path()), "it is root's alone");
        assert_eq!(root.stopped_at(&inside), None);
        assert_eq!(nobody.stopped_at(Path::new("/nowhere/x")), None);
        for wrong in ["no-such-user", "-n", "a b"] {
            let error = User::find(wrong).unwrap_err();
            assert!(error.contains("no such user") && error.contains(wrong), "{error}");
        }
    }
}

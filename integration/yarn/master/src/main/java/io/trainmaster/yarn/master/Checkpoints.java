package io.trainmaster.yarn.master;

import com.sun.security.auth.module.UnixSystem;
import java.io.IOException;
import java.nio.file.FileAlreadyExistsException;
import java.nio.file.Files;
import java.nio.file.LinkOption;
import java.nio.file.Path;
import java.nio.file.attribute.PosixFilePermissions;

/** A job's folder among those of other users, who may not be trusted. */
final class Checkpoints {
    private Checkpoints() {}

    /**
     * Makes the folder for its user only, or checks an existing one.
     *
     * @throws IllegalArgumentException if it can't be made, or belongs to another user
     */
    static Path folder(Path parent, String application) {
        Path folder = parent.resolve(application);
        try {
            return Files.createDirectory(
                    folder, PosixFilePermissions.asFileAttribute(PosixFilePermissions.fromString("rwx------")));
        } catch (FileAlreadyExistsException earlier) {
            // The folder of an earlier ApplicationMaster of this job, or a trap by another user.
            return check(folder);
        } catch (IOException error) {
            throw new IllegalArgumentException(
                    "the job's folder " + folder + " can't be made in " + Settings.CHECKPOINTS + ": " + error, error);
        }
    }

    private static Path check(Path folder) {
        if (!Files.isDirectory(folder, LinkOption.NOFOLLOW_LINKS)) {
            throw new IllegalArgumentException("the job's folder " + folder + " exists, but is not a folder");
        }
        long own = new UnixSystem().getUid();
        long owner;
        try {
            owner = ((Number) Files.getAttribute(folder, "unix:uid", LinkOption.NOFOLLOW_LINKS)).longValue();
        } catch (IOException error) {
            throw new IllegalArgumentException("the job's folder " + folder + " can't be read: " + error, error);
        }
        if (owner != own) {
            throw new IllegalArgumentException("the job's folder " + folder + " belongs to user " + owner
                    + ", but the ApplicationMaster is user " + own);
        }
        return folder;
    }
}

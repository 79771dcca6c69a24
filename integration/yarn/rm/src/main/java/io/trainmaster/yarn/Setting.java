package io.trainmaster.yarn;

import java.nio.file.Path;
import java.util.List;
import java.util.Optional;
import java.util.function.Function;
import org.apache.hadoop.conf.Configuration;

/**
 * One key of {@code yarn-site.xml}, with its default and what is allowed.
 *
 * @param <T> what its text means
 * @param key the property's name
 * @param fallback the value where none, or a bad one, is given
 * @param allowed for people
 * @param parser throws {@link IllegalArgumentException} where the text is none of what is allowed
 */
record Setting<T>(String key, T fallback, String allowed, Function<String, T> parser) {

    static Setting<Integer> millis(String key, int fallback, int least, int most) {
        return new Setting<>(key, fallback, "whole milliseconds from " + least + " to " + most, text -> {
            int value = Integer.parseInt(text);
            if (value < least || value > most) {
                throw new IllegalArgumentException();
            }
            return value;
        });
    }

    static Setting<Boolean> flag(String key, boolean fallback) {
        return new Setting<>(key, fallback, "true or false", text -> switch (text) {
            case "true" -> true;
            case "false" -> false;
            default -> throw new IllegalArgumentException();
        });
    }

    static Setting<Optional<Path>> file(String key, String what) {
        return new Setting<>(key, Optional.empty(), what, text -> Optional.of(Path.of(text)));
    }

    /**
     * The configured value; the default, with a complaint that names the key, the value and what is allowed, if it is bad.
     */
    T read(Configuration configuration, List<String> complaints) {
        String text = configuration.getRaw(key);
        try {
            // Fails where variables in it can't be replaced.
            text = configuration.getTrimmed(key);
            return text == null || text.isEmpty() ? fallback : parser.apply(text);
        } catch (IllegalArgumentException | IllegalStateException bad) {
            complaints.add(complaint(text) + ". Going on with "
                    + (fallback instanceof Optional<?> none && none.isEmpty() ? "none" : fallback));
            return fallback;
        }
    }

    /** What is wrong about a value: the key, the value, what is allowed. */
    String complaint(Object value) {
        return key + " is \"" + value + "\"; allowed: " + allowed;
    }
}

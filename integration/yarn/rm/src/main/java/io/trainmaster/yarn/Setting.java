package io.trainmaster.yarn;

import java.nio.file.Path;
import java.util.List;
import java.util.Optional;
import java.util.function.Function;
import org.apache.hadoop.conf.Configuration;

/**
 * A key of {@code yarn-site.xml}, with its default and allowed values.
 *
 * @param <T> the type of the value
 * @param key the property's name
 * @param fallback the value of a missing or invalid property
 * @param allowed a description of the allowed values
 * @param parser throws {@link IllegalArgumentException} for other texts
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
     * The configured value. For an invalid one, the default, with a complaint that has the key, the value and the
     * allowed values.
     */
    T read(Configuration configuration, List<String> complaints) {
        String text = configuration.getRaw(key);
        try {
            // Fails if a variable in the value can't be replaced.
            text = configuration.getTrimmed(key);
            return text == null || text.isEmpty() ? fallback : parser.apply(text);
        } catch (IllegalArgumentException | IllegalStateException bad) {
            complaints.add(complaint(text) + ". Using "
                    + (fallback instanceof Optional<?> none && none.isEmpty() ? "none" : fallback));
            return fallback;
        }
    }

    /** The message about an invalid value: the key, the value and the allowed values. */
    String complaint(Object value) {
        return key + " is \"" + value + "\"; allowed: " + allowed;
    }
}

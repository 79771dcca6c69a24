package io.trainmaster.yarn;

import java.util.List;
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

    /**
     * The configured value; the default, with a complaint that names the key, the value and what is allowed, if it is bad.
     */
    T read(Configuration configuration, List<String> complaints) {
        String text = configuration.getTrimmed(key);
        if (text == null || text.isEmpty()) {
            return fallback;
        }
        try {
            return parser.apply(text);
        } catch (IllegalArgumentException bad) {
            complaints.add(key + " is \"" + text + "\"; allowed: " + allowed + ". Going on with " + fallback);
            return fallback;
        }
    }
}

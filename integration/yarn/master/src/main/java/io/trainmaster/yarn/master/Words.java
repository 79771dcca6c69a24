package io.trainmaster.yarn.master;

import java.util.ArrayList;
import java.util.List;
import java.util.regex.Pattern;

/** A command's text as words, split as a shell does, and words as a shell takes them. */
final class Words {
    /** Between two braces, and after what begins one of the names that NodeManagers know. */
    private static final Pattern MARKS = Pattern.compile("(?<=\\{)(?=\\{)|(?<=})(?=})|(?<=<)(?=(?:LOG_DIR|CPS|ADD_OPENS)>)");

    private static final Pattern NAME = Pattern.compile("[A-Za-z_][A-Za-z0-9_]*");

    private Words() {}

    /**
     * Quotes and backslashes mean what they do in a shell; nothing else does.
     *
     * @throws IllegalArgumentException a quote isn't closed
     */
    static List<String> split(String text) {
        List<String> words = new ArrayList<>();
        StringBuilder word = null;
        char quote = 0;
        for (int at = 0; at < text.length(); at++) {
            char c = text.charAt(at);
            if (quote == 0 && Character.isWhitespace(c)) {
                if (word != null) {
                    words.add(word.toString());
                }
                word = null;
                continue;
            }
            word = word == null ? new StringBuilder() : word;
            if (c == quote) {
                quote = 0;
            } else if (quote == 0 && (c == '\'' || c == '"')) {
                quote = c;
            } else if (c == '\\' && quote != '\'' && at + 1 < text.length() && isEscape(quote, text.charAt(at + 1))) {
                at++;
                word.append(text.charAt(at));
            } else {
                word.append(c);
            }
        }
        if (quote != 0) {
            throw new IllegalArgumentException("command \"" + text + "\": a quote isn't closed");
        }
        if (word != null) {
            words.add(word.toString());
        }
        return words;
    }

    private static boolean isEscape(char quote, char next) {
        return quote == 0 || "\"\\$`".indexOf(next) >= 0;
    }

    /** A word that a shell takes as it is. */
    static String quote(String word) {
        return "'" + word.replace("'", "'\\''") + "'";
    }

    /**
     * For between the double quotes that NodeManagers put around values and commands. Before that, they replace the names
     * of a few things in angle brackets, and two braces in a row, in both: each of these is cut by quotes that close and
     * open again, which a shell drops.
     *
     * @throws IllegalArgumentException it has a character that no environment or command line can have
     */
    static String escape(String text) {
        if (text.indexOf('\0') >= 0) {
            throw new IllegalArgumentException("\"" + text.replace("\0", "\\0") + "\" has a NUL character");
        }
        return MARKS.matcher(text.replaceAll("[\"\\\\$`]", "\\\\$0")).replaceAll("\"\"");
    }

    /**
     * A variable's name, which a shell takes.
     *
     * @throws IllegalArgumentException it is none
     */
    static String variable(String name) {
        if (!NAME.matcher(name).matches()) {
            throw new IllegalArgumentException(
                    "environment variable \"" + name + "\": allowed are letters, digits and _, and no digit first");
        }
        return name;
    }
}

package io.trainmaster.yarn.master;

import java.util.ArrayList;
import java.util.List;
import java.util.regex.Pattern;

/** Splits commands into words as a shell does, and quotes words for a shell. */
final class ShellWords {
    /** Positions between two equal braces, and inside the names in angle brackets that NodeManagers replace. */
    private static final Pattern MARKS =
            Pattern.compile("(?<=\\{)(?=\\{)|(?<=})(?=})|(?<=<)(?=(?:LOG_DIR|CPS|ADD_OPENS)>)");

    private static final Pattern NAME = Pattern.compile("[A-Za-z_][A-Za-z0-9_]*");

    private ShellWords() {}

    /**
     * Splits a command. Only quotes and backslashes have their meaning in a shell.
     *
     * @throws IllegalArgumentException if a quote isn't closed
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

    /** Quotes a word, so that a shell doesn't change it. */
    static String quote(String word) {
        return "'" + word.replace("'", "'\\''") + "'";
    }

    /**
     * Escapes a text for the double quotes that NodeManagers put around values and commands. Inside them, NodeManagers
     * replace some names in angle brackets, and double braces. So such names and braces are split by two double quotes,
     * which a shell removes.
     *
     * @throws IllegalArgumentException if the text has a NUL character
     */
    static String escape(String text) {
        if (text.indexOf('\0') >= 0) {
            throw new IllegalArgumentException("\"" + text.replace("\0", "\\0") + "\" has a NUL character");
        }
        return MARKS.matcher(text.replaceAll("[\"\\\\$`]", "\\\\$0")).replaceAll("\"\"");
    }

    /**
     * Checks that a shell accepts a variable's name.
     *
     * @throws IllegalArgumentException if it doesn't
     */
    static String variable(String name) {
        if (!NAME.matcher(name).matches()) {
            throw new IllegalArgumentException(
                    "environment variable \"" + name + "\": must be letters, digits and _, without a digit first");
        }
        return name;
    }
}

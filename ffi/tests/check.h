// Assertions that print the file and line of a failure, and shorthands.
#ifndef CHECK_H
#define CHECK_H

#include "trainmaster.h"

#include <stdio.h>
#include <stdlib.h>

#define CHECK(condition)                                                                  \
    do {                                                                                  \
        if (!(condition)) {                                                               \
            fprintf(stderr, "%s:%d: %s\n", __FILE__, __LINE__, #condition);               \
            exit(1);                                                                      \
        }                                                                                 \
    } while (0)

// Checks that a call returns this number. A failure prints the library's message from `error_text`.
#define EXPECT(number, call)                                                              \
    do {                                                                                  \
        uint32_t got = (call);                                                            \
        if (got != (uint32_t)(number)) {                                                  \
            fprintf(stderr, "%s:%d: %s: %s (%s)\n", __FILE__, __LINE__, #call,            \
                    trainmaster_error_name(got), error_text);                             \
            exit(1);                                                                      \
        }                                                                                 \
    } while (0)

#define OK(call) EXPECT(TRAINMASTER_OK, call)
#define ERROR_HAS(text) CHECK(strstr(error_text, text) != NULL)

static char error_text[512];
static struct trainmaster_message error = {error_text, sizeof error_text, 0};

static inline struct trainmaster_string text(const char *from) { return trainmaster_text(from); }

static inline int same(struct trainmaster_string a, const char *b) {
    return a.length == strlen(b) && (a.length == 0 || memcmp(a.data, b, a.length) == 0);
}

#endif

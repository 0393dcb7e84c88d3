/* scratch.h - a directory for a test's files, empty at first and removed at the end. */
#ifndef TESTS_SCRATCH_H
#define TESTS_SCRATCH_H

#include <stddef.h>

/* For cmocka's group setup and teardown. */
int scratch_make(void **state);
int scratch_remove(void **state);

/* Removes what the directory holds. */
void scratch_clear(void);

/* The path of name in the directory; valid until the eighth call after this one. */
const char *scratch_path(const char *name);

void scratch_directory(const char *name);
void scratch_write(const char *name, const void *data, size_t bytes);
int scratch_count(void); /* files in the directory itself */

/* All of a file, to be freed. */
unsigned char *scratch_read(const char *name, size_t *bytes);

/* A safetensors file with this header and data of bytes 0, 1, 2... */
void scratch_write_tensors(const char *name, const char *header, size_t data_bytes);

/* A file in memory, for what many write at once: without O_APPEND they write over each other, since
 * such a file does not lock its position. */
int scratch_log(void);

#endif /* TESTS_SCRATCH_H */

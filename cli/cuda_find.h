/* cuda_find.h - opens a library of NVIDIA's wherever the loader, a toolkit or a Python wheel has
 * it. */
#ifndef CLI_CUDA_FIND_H
#define CLI_CUDA_FIND_H

/* The file that the environment variable names, and no other, if it is set; else the first of
 * names, which NULL ends, that is found.  NULL: none. */
void *cuda_find_library(const char *variable, const char *const *names);

void *cuda_find_symbol(void *library, const char *name); /* NULL: none */

#endif /* CLI_CUDA_FIND_H */

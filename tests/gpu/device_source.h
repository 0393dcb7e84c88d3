/* device_source.h - the kernels of device_*.h as one text for the run-time compiler. */
#ifndef DEVICE_SOURCE_H
#define DEVICE_SOURCE_H

/* What comes first (#defines), imbrex_device.h with all it includes, then the named files of
 * tests/.  NULL, and why was printed: one cannot be read.  Free it with free(). */
char *device_source(const char *first, const char *const *files, int count);

/* The same with all kernels of tests/gpu/device_*.h. */
char *device_source_all(const char *first);

#endif /* DEVICE_SOURCE_H */

/* wheels.h - where this process has its Python packages from: wheels hold NVIDIA's libraries. */
#ifndef IMX_WHEELS_H
#define IMX_WHEELS_H

#include <stdbool.h>
#include <stddef.h>

/* The folder that holds the PyTorch which this process has loaded, <folder>/torch/lib/libtorch.so;
 * false: it has not, or the name has no room.  Nothing may be loaded from within the loader's walk,
 * which holds a lock of its own: a dlopen on another thread may wait for that one, and hold the one
 * that dlopen needs.  So who wants a library from there loads it afterwards. */
bool imx_wheels_folder(char *folder, size_t size);

#endif /* IMX_WHEELS_H */

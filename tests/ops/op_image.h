/* op_image.h - the matrices of one rank in one run: in one piece of memory with guards between
 * them, as the host has it and as the device does. */
#ifndef OP_IMAGE_H
#define OP_IMAGE_H

#include <stdbool.h>

#include "reference.h"

typedef struct op_matrix {
    size_t at, bytes; /* in the image */
} op_matrix;

typedef struct op_image {
    char *host, *device; /* the same where the device takes host memory */
    size_t bytes;
    op_matrix a, b, bias, c, gathered, residual, gamma, h, normed, scale;
} op_image;

/* Where h and c lie: maybe in residual and a. */
op_matrix op_image_h(const op_case *c, const op_image *image);
op_matrix op_image_c(const op_case *c, const op_image *image);

/* Inputs are filled; outputs and guards are not a number in any dtype.  device: memory for it, or
 * NULL: host memory serves; it must have bytes_most.  Free with op_image_drop. */
op_image op_image_take(const op_case *c, int64_t m, int ranks, int r, void *device);
/* to: empty, or an earlier copy, whose memory serves again.  The device's memory is the same. */
void op_image_copy(op_image *to, const op_image *of);
void op_image_drop(op_image *image); /* leaves device memory alone */

/* Bytes of the largest image of any rank. */
size_t op_image_bytes(const op_case *c, int ranks);

/* Enqueues nothing that waits for a peer: stream must be idle, and is so afterwards.  0: done. */
int op_image_upload(imbrex_group *group, const op_image *image);
int op_image_download(imbrex_group *group, const op_image *image);

imbrex_args op_image_args(const op_case *c, const op_image *image, int64_t m);

/* A line on stderr about what is wrong; after some dozens only that there is more. */
void op_image_complain(const char *format, ...) __attribute__((format(printf, 1, 2)));

/* Nothing was written beside a matrix. */
bool op_image_intact(const op_image *image);

/* The matrix that is not the same in both images of one case and m, and its first such byte; or
 * NULL. */
const char *op_image_differ(const op_image *image, const op_image *other, size_t *at);

#endif /* OP_IMAGE_H */

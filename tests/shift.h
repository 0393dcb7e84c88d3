/* shift.h - a kernel of the kind that callers write, for tests: every rank's numbers go to the next
 * one, with signals and credits, in blocks that run side by side. */
#ifndef SHIFT_H
#define SHIFT_H

#include "imbrex_device.h"
#include "ranks.h"

enum { SHIFT_N = 1000, SHIFT_BLOCKS = 5 };

/* out[n] of every rank = in[n] of the rank before it, by way of inbox, symmetric. */
typedef struct shift_args {
    const int *in;
    int *out;
    int *inbox;
    int n;
} shift_args;

/* Of the kernels shift and quarters, which take them; quarters: out becomes in, by one block. */
extern const char shift_text[];
extern const imbrexd_entry *const shift_entry, *const quarters_entry;

/* No kernel for any compiler: lines 1 to 9 are wrong.  The fake one looks for the tenth. */
extern const char wrong_text[];

/* Its signals and its blocks' memory. */
enum { SHIFT_SIGNALS = 2 * SHIFT_BLOCKS, SHIFT_SHARED = (SHIFT_N / SHIFT_BLOCKS + 1) * 4 };

typedef struct shift {
    imbrex_group *group;
    imbrex_kernel *kernel;
    shift_args args;
    int numbers[SHIFT_N]; /* on the host */
} shift;

/* desc: where the kernel is and how it is to be made ready; collective.  These return 0, or 1 when
 * they have said why not. */
int shift_open(shift *s, imbrex_group *group, const imbrex_kernel_desc *desc);

/* Puts the numbers of a round in, on the stream. */
int shift_fill(shift *s, int round, imbrex_stream stream);
int shift_launch(shift *s, imbrex_stream stream);

/* Waits for the stream, and looks at what came out: of the rank before, or what is in. */
int shift_check(shift *s, int round, imbrex_stream stream);
int shift_same(const shift *s, imbrex_stream stream);

#endif /* SHIFT_H */

/* trace.h - what a kernel that is compiled with IMX_TRACE writes down: when a block began and ended
 * something, by the GPU's clock.  Every block has room for a list of its own; what comes after
 * it is full is counted only. */
#ifndef IMX_TRACE_RECORD_H
#define IMX_TRACE_RECORD_H

#include <stdint.h>

typedef enum imx_trace_what {
    IMX_TRACE_KERNEL, /* the block, from when the kernel ahead of it has ended */
    IMX_TRACE_TILE,   /* a tile's product: its first loads are here, to its last product is done */
    IMX_TRACE_STORE,  /* a tile on its way to its rows' owner, post included; index: chunk */
    IMX_TRACE_CHUNK,  /* waits, for a chunk or slice of a peer's */
    IMX_TRACE_PART,   /* for the peers' parts of own rows */
    IMX_TRACE_CREDIT, /* for leave to write into the peers' memory */
    IMX_TRACE_PUSH,   /* this block's share of a chunk to a peer; -1: of a slice, to all */
    IMX_TRACE_FOLD,   /* own rows: the peers' parts are added */
    IMX_TRACE_LAST,   /* what is stored after the last product */
    IMX_TRACE_KINDS
} imx_trace_what;

typedef struct imx_trace_record {
    uint64_t begin, end; /* ns of %globaltimer */
    int32_t what;
    int32_t peer, index; /* -1 where they say nothing */
    int32_t pad;
} imx_trace_record;

/* The symbol imx_trace_to of a module. */
typedef struct imx_trace_room {
    imx_trace_record *records; /* [blocks][each] */
    uint32_t *counts;          /* [blocks]: records so far; may run past each */
    uint32_t each, pad;
} imx_trace_room;

#endif /* IMX_TRACE_RECORD_H */

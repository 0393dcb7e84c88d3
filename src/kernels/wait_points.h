/* wait_points.h - what the library's own waits wait for: imbrexd_wait_point.what.  The words for
 * them are in group/fault.c and plan/plan_waits.c. */
#ifndef IMX_WAIT_POINTS_H
#define IMX_WAIT_POINTS_H

enum {
    IMX_POINT_USER,    /* imbrex_signal_wait; index: none */
    IMX_POINT_BARRIER, /* imbrex_barrier */
    IMX_POINT_CREDIT,  /* rank has read this buffer's previous epoch */
    IMX_POINT_CHUNK, /* rank's chunk has arrived; index: number within the rank, -1: all its rows */
    IMX_POINT_PART,  /* rank's part of a chunk of the sum has arrived; index: its number, -1: all */
    IMX_POINT_DONE, /* this rank's own product of a chunk is finished; index: number of the chunk */
    IMX_POINT_NET,  /* a step of the engine between nodes, with rank; index: -1 */
    IMX_POINT_PASS  /* rank has passed rows of a on; index: row of the whole matrix */
};

#endif /* IMX_WAIT_POINTS_H */

/* sites.h - what the library's own waits wait for: imbrexd_site.what.  The words for them are in
 * group/fault.c and plan/plan_waits.c. */
#ifndef IMX_SITES_H
#define IMX_SITES_H

enum {
    IMX_SITE_USER,    /* imbrex_signal_wait; index: none */
    IMX_SITE_BARRIER, /* imbrex_barrier */
    IMX_SITE_CREDIT,  /* rank has read this buffer's previous epoch */
    IMX_SITE_CHUNK, /* rank's chunk has arrived; index: number within the rank, -1: all its rows */
    IMX_SITE_PART,  /* rank's part of a chunk of the sum has arrived; index: its number, -1: all */
    IMX_SITE_DONE,  /* this rank's own product of a chunk is finished; index: number of the chunk */
    IMX_SITE_NET,   /* a step of the engine between nodes, with rank; index: -1 */
    IMX_SITE_PASS   /* rank has passed rows of a on; index: row of the whole matrix */
};

#endif /* IMX_SITES_H */

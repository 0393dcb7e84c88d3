/* memory.h - memory of a group that every rank has a piece of. */
#ifndef IMX_MEMORY_H
#define IMX_MEMORY_H

#include "state.h"

/* The ways to reach a peer, by IMX_LOCAL_THREADS and its like. */
extern const imx_transport_kind *const imx_memory_transports[IMX_TRANSPORTS];

/* Collective, with mine as in imx_agree.  Zeroed.  words: as for imx_memory_own, of this rank's
 * piece, said before any rank goes on; count 0: nothing is. */
imbrex_status imx_memory_alloc(imbrex_group *group, const char *call, imbrex_status mine,
                               size_t bytes, const imx_words *words, int count,
                               imx_symmetric **memory) IMX_MUST_CHECK;

/* The same in host memory that devices reach too. */
imbrex_status imx_memory_alloc_host(imbrex_group *group, const char *call, size_t bytes,
                                    imx_symmetric **memory) IMX_MUST_CHECK;
void imx_memory_free(imbrex_group *group, imx_symmetric *memory); /* NULL is fine */

/* Says to a checker of protocols that nobody but streams and kernels writes there, and that signals
 * and counters lie in words alone; over nodes the engine writes, too. */
void imx_memory_own(const imbrex_group *group, const imx_memory *memory, const imx_words *words,
                    int count);

/* The caller's piece that ptr lies in; NULL: it lies in none. */
const imx_symmetric *imx_memory_piece(const imbrex_group *group, const void *ptr);

/* rank's mapping of [ptr, ptr + bytes), which must lie in one piece of symmetric memory. */
imbrex_status imx_memory_find(imbrex_group *group, const char *what, const void *ptr, size_t bytes,
                              int rank, void **peer) IMX_MUST_CHECK;

#endif /* IMX_MEMORY_H */

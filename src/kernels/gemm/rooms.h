/* rooms.h - as many products by OpenBLAS at once as it has memory for.
 *
 * OpenBLAS maps 128 MiB for each product that runs beside others, keeps them for the next, and asks
 * for ever where they are refused, as a limit on addresses does.  So a product begins only where
 * there is such a room: whoever finds none takes one more if it is to be had, and else waits for
 * another product to end, which none holds up.
 */
#ifndef IMX_GEMM_ROOMS_H
#define IMX_GEMM_ROOMS_H

#include <stdbool.h>
#include <stddef.h>

/* Whether there is one room at least: then every product comes to its end, whatever is refused
 * later.  Else why is a sentence about what refuses it. */
bool imx_gemm_rooms_ready(char *why, size_t size);

/* Around a product, which waits for nothing else in between. */
void imx_gemm_rooms_enter(void);
void imx_gemm_rooms_leave(void);

#endif /* IMX_GEMM_ROOMS_H */

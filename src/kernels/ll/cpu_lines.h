/* cpu_lines.h - lines (args.h) on CPU ranks: the epoch is stored last. */
#ifndef IMX_LL_CPU_LINES_H
#define IMX_LL_CPU_LINES_H

#include <string.h>

#include "args.h"

typedef struct imx_ll_line {
    char data[IMX_LL_LINE];
    uint64_t epoch;
} imx_ll_line;

static inline int64_t imx_ll_lines(int64_t bytes)
{
    return imx_ll_units(1, bytes) / IMX_LL_UNITS;
}

/* Bytes of a shard's piece at `at`, where pieces have `each`; 0: there are none. */
static inline size_t imx_ll_piece(int64_t bytes, int64_t at, int64_t each)
{
    int64_t left = bytes - at;
    return left <= 0 ? 0 : (size_t)(left < each ? left : each);
}

/* Release, acquire: the epoch comes after its line's data.  Only the last one is posted, for
 * whoever sleeps, and says that all are there. */
static inline void imx_ll_send_lines(imx_ll_unit *to, const char *from, int64_t bytes,
                                     uint64_t epoch)
{
    imx_ll_line *line = (imx_ll_line *)to;
    int64_t count = imx_ll_lines(bytes);
    imbrexd_check_write(line, IMX_LL_LINE, sizeof *line, (size_t)count);
    for (int64_t i = 0; i < count; i++) {
        size_t here = imx_ll_piece(bytes, i * IMX_LL_LINE, IMX_LL_LINE);
        if (here)
            memcpy(line[i].data, from + i * IMX_LL_LINE, here);
        if (i < count - 1)
            imbrexd_store_release(&line[i].epoch, epoch);
    }
    imbrexd_signal_post(&line[count - 1].epoch, epoch);
}

/* Until all lines of `bytes` are here; 0: give up. */
static inline int imx_ll_wait_lines(const imx_ll_unit *from, int64_t bytes, uint64_t epoch,
                                    const imbrexd_watch *watch, imbrexd_wait_point point)
{
    const imx_ll_line *line = (const imx_ll_line *)from;
    int64_t count = imx_ll_lines(bytes);
    if (!imbrexd_signal_wait(watch, &line[count - 1].epoch, epoch, point))
        return 0;
    imbrexd_check_read(line, IMX_LL_LINE, sizeof *line, (size_t)count);
    return 1;
}

/* The same, and puts them together. */
static inline int imx_ll_take_lines(const imx_ll_unit *from, char *to, int64_t bytes,
                                    uint64_t epoch, const imbrexd_watch *watch,
                                    imbrexd_wait_point point)
{
    const imx_ll_line *line = (const imx_ll_line *)from;
    if (!imx_ll_wait_lines(from, bytes, epoch, watch, point))
        return 0;
    for (int64_t i = 0; i * IMX_LL_LINE < bytes; i++)
        memcpy(to + i * IMX_LL_LINE, line[i].data,
               imx_ll_piece(bytes, i * IMX_LL_LINE, IMX_LL_LINE));
    return 1;
}

#endif /* IMX_LL_CPU_LINES_H */

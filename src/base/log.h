/* log.h - lines on stderr about what the library did, where IMBREX_LOG asks for them. */
#ifndef IMX_LOG_H
#define IMX_LOG_H

#include "base/imx.h"

/* Whether a rank prints lines of so high a level: at "info" rank 0 alone, and at "debug" all. */
static inline bool imx_log_wants(const imx_env *env, int rank, imx_env_level level)
{
    return env->log >= level && (rank == 0 || env->log >= IMX_LOG_DEBUG);
}

/* Prints "imbrex [rank/size] " and the line, as one write, so that lines of ranks do not mix. */
void imx_log(int rank, int size, const char *format, ...) __attribute__((format(printf, 3, 4)));

#endif /* IMX_LOG_H */

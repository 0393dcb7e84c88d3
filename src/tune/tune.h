/* tune.h - from what is asked to how it is cut: a pure function. */
#ifndef IMX_TUNE_H
#define IMX_TUNE_H

#include "config.h"

/* Chunk and tile sizes do not depend on the algorithm, but for input->apart; they do not change how
 * an element is summed, so that all algorithms give the same bits. */
imx_config imx_tune_config(const imx_tune_input *input);

/* How many rows a chunk of a run has in which no rank has more than so many: as evenly as whole
 * tiles allow, and no more chunks than of config->chunk_rows. */
int64_t imx_tune_chunk_rows(const imx_config *config, int64_t rows);

#endif /* IMX_TUNE_H */

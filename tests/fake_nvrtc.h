/* fake_nvrtc.h - the fake driver's compiler, and what its parts share. */
#ifndef FAKE_NVRTC_H
#define FAKE_NVRTC_H

#include "backends/cuda/driver.h"
#include "backends/cuda/nvrtc.h"

#define FAKE_CUBIN "fake cubin of " /* how a cubin begins */

extern const imx_nvrtc_calls fake_nvrtc_calls;

CUresult fake_driver_may_fail(const char *call); /* it is this one's turn to fail */
void fake_driver_count(int objects);
void fake_driver_count_compiled(void);

#endif /* FAKE_NVRTC_H */

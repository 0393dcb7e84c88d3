/* math.h - for kernels that are C on CPUs; NVRTC knows its functions by themselves. */

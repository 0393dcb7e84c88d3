/* string.h - for kernels that are C on CPUs; NVRTC knows memcpy and memset by themselves. */

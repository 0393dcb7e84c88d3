/* stddef.h - what kernels may expect of it, for NVRTC, which knows size_t by itself. */
#ifndef IMX_RTC_STDDEF_H
#define IMX_RTC_STDDEF_H

typedef long ptrdiff_t;
#define NULL 0

#endif /* IMX_RTC_STDDEF_H */

/* now.h - the host's clock, which no change of the date moves. */
#ifndef CLI_NOW_H
#define CLI_NOW_H

#include <stdint.h>

int64_t now_ms(void);
double now_us(void);

#endif /* CLI_NOW_H */

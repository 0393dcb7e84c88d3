/* fake_cublas.h - a cuBLASLt that computes on the host and counts what it gives out. */
#ifndef FAKE_CUBLAS_H
#define FAKE_CUBLAS_H

#include "bench/candidates.h"

typedef struct fake_cublas_state {
    int live;          /* handles and descriptors */
    int ways;          /* that it proposes; every second of them cannot be used */
    uint64_t last_way; /* the one of the last product */
    int type;          /* of its elements */
} fake_cublas_state;

extern fake_cublas_state fake_cublas;
extern const cuda_blas_calls fake_cublas_calls;

#endif /* FAKE_CUBLAS_H */

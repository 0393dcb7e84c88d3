/* ptx_inside.h - what the files of ptx_tensor.h share. */
#ifndef PTX_INSIDE_H
#define PTX_INSIDE_H

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "ptx_tensor.h"

/* false, with a sentence. */
__attribute__((format(printf, 2, 3))) static inline bool ptx_refuse(ptx_why *why,
                                                                    const char *format, ...)
{
    va_list args;
    va_start(args, format);
    vsnprintf(why->text, sizeof why->text, format, args);
    va_end(args);
    return false;
}

static inline uint32_t ptx_get(const ptx_register *from, int thread)
{
    uint32_t word;
    memcpy(&word,
           from->at + (size_t)(thread / 32) * from->warp + (size_t)(thread % 32) * from->lane,
           sizeof word);
    return word;
}

static inline void ptx_set(const ptx_register *to, int thread, uint32_t word)
{
    memcpy(to->at + (size_t)(thread / 32) * to->warp + (size_t)(thread % 32) * to->lane, &word,
           sizeof word);
}

/* A warp's register of sums, of which lane 4 g + t has that of row g, column 2 t: to and from rows
 * that are pitch floats apart. */
static inline void ptx_get_sums(const ptx_register *from, int warp, float *to, int pitch)
{
    const unsigned char *at = from->at + (size_t)warp * from->warp;
    for (int g = 0; g < 8; g++, to += pitch)
        for (int t = 0; t < 4; t++, at += from->lane)
            memcpy(&to[2 * t], at, sizeof *to);
}

static inline void ptx_set_sums(const ptx_register *to, int warp, const float *from, int pitch)
{
    unsigned char *at = to->at + (size_t)warp * to->warp;
    for (int g = 0; g < 8; g++, from += pitch)
        for (int t = 0; t < 4; t++, at += to->lane)
            memcpy(at, &from[2 * t], sizeof *from);
}

/* Whether an instruction that multiplies a by b exists: of one type, or both of 8 bits. */
static inline bool ptx_types_meet(ptx_type a, ptx_type b)
{
    return a == b || (ptx_bits(a) == 8 && ptx_bits(b) == 8);
}

/* Elements of a type as floats; from is aligned to them. */
void ptx_widen_row(ptx_type type, const void *from, int count, float *to);

/* Shared memory at an address of the window, a multiple of align, or NULL with a sentence. */
unsigned char *ptx_shared_at(const ptx_shared *shared, uint32_t address, uint32_t bytes,
                             uint32_t align, const char *what, ptx_why *why);

/* Global memory, likewise. */
unsigned char *ptx_memory_at(const ptx_memory *memory, uint64_t address, uint64_t bytes,
                             uint32_t align, bool writes, const char *what, ptx_why *why);

#endif /* PTX_INSIDE_H */

/* rope.c - the angles by which positions turn q and k. */
#include "model.h"

#include <math.h>

const char *const decode_rope_names[DECODE_ROPE_LLAMA3 + 1] = {
    [DECODE_ROPE_DEFAULT] = "default",
    [DECODE_ROPE_LINEAR] = "linear",
    [DECODE_ROPE_LLAMA3] = "llama3",
};

static const double pi = 3.14159265358979323846;

/* Waves that are short beside the first context stay, long ones are stretched by the factor, and
 * those between go from one to the other. */
static double stretch(const decode_rope *rope, double frequency)
{
    double waves = rope->original * frequency / (2 * pi); /* in the first context */
    if (waves > rope->high)
        return frequency;
    if (waves < rope->low)
        return frequency / rope->factor;
    double kept = (waves - rope->low) / (rope->high - rope->low);
    return kept * frequency + (1 - kept) * frequency / rope->factor;
}

void decode_rope_turns(const decode_rope *rope, int head_dim, int64_t position, float *turns)
{
    int pairs = head_dim / 2;
    for (int i = 0; i < pairs; i++) {
        double frequency = pow(rope->theta, -2.0 * i / head_dim);
        if (rope->kind == DECODE_ROPE_LINEAR)
            frequency /= rope->factor;
        if (rope->kind == DECODE_ROPE_LLAMA3)
            frequency = stretch(rope, frequency);
        turns[i] = (float)cos((double)position * frequency);
        turns[pairs + i] = (float)sin((double)position * frequency);
    }
}

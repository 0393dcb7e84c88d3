/* op_walk.c - where ranks are in a table of cases, and what is given up when a group has failed. */
#include <stdio.h>

#include "op_cases.h"

enum { ALGORITHMS = 8 }; /* of an operator, at most */

static uint64_t bit_of(int op, int algorithm)
{
    return (uint64_t)1 << (op * ALGORITHMS + algorithm);
}

bool op_walk_step(op_walk *walk, int rank, int number, int algorithm)
{
    int op = walk->op_of(number);
    if (walk->given_up & bit_of(op, algorithm))
        return false;
    walk->at[rank] = (op_place){ number, op, algorithm };
    return true;
}

void op_walk_end(op_walk *walk)
{
    __atomic_add_fetch(&walk->ended, 1, __ATOMIC_RELAXED); /* joins and waits order it */
}

bool op_walk_resume(op_walk *walk, int ranks)
{
    int ended = __atomic_exchange_n(&walk->ended, 0, __ATOMIC_RELAXED);
    if (ended == ranks)
        return false;
    if (++walk->lost >= OP_WALK_FAILURES) {
        fprintf(stderr, "    the group failed once more: the rest is left out\n");
        return false;
    }
    const op_place *last = &walk->at[0];
    for (int r = 1; r < ranks; r++) {
        bool later = walk->at[r].number > last->number || (walk->at[r].number == last->number &&
                                                           walk->at[r].algorithm > last->algorithm);
        last = later ? &walk->at[r] : last;
    }
    if (walk->given_up & bit_of(last->op, last->algorithm))
        return false;
    walk->given_up |= bit_of(last->op, last->algorithm);
    walk->from = last->number;
    const op_case c = { .op = op_cases_op(last->op) };
    fprintf(stderr, "    the group failed at case %d: without %s's \"%s\" from here on\n",
            last->number, c.op, op_cases_algorithm(&c, last->algorithm));
    return true;
}

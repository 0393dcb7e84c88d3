/* ptx_lanes.h - what ptx_lanes.c does for ptx_step.c. */
#ifndef PTX_LANES_H
#define PTX_LANES_H

#include "ptx_run.h"

uint64_t ptx_lanes_special(const ptx_warp *w, int which, int lane);
void ptx_lanes_put(ptx_warp *w, ptx_operand to, int lane, int bytes, uint64_t value);
void ptx_lanes_pack(ptx_warp *w, const ptx_insn *insn, uint32_t active, bool unpack);
void ptx_lanes_shuffle(ptx_warp *w, const ptx_insn *insn, uint32_t active);
void ptx_lanes_match(ptx_warp *w, const ptx_insn *insn, uint32_t active);
void ptx_lanes_reduce(ptx_warp *w, const ptx_insn *insn, uint32_t active);
void ptx_lanes_convert(ptx_warp *w, const ptx_insn *insn, uint32_t active);
void ptx_lanes_convert_integers(ptx_warp *w, const ptx_insn *insn, uint32_t active);
bool ptx_lanes_compare(double a, double b, int how);
double ptx_lanes_number(const ptx_warp *w, const ptx_insn *insn, ptx_operand from, int l);
void ptx_lanes_set(ptx_warp *w, const ptx_insn *insn, uint32_t active, uint32_t bits);

#endif /* PTX_LANES_H */

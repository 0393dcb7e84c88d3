/* policies.h - names of prologues and epilogues, for launch.c and the preprocessor: an option
 * -DIMX_PROLOGUE=IMX_PROLOGUE_WAIT is the name of its number here. */
#ifndef IMX_GEMM_POLICIES_H
#define IMX_GEMM_POLICIES_H

/* All rows are there; chunks of them are waited for, or pushed, too; all of a rank's rows are one
 * chunk, waited for, pushed, or pushed in slices of k; rows go on from rank to rank; the caller's.
 */
#define IMX_PROLOGUE_NONE     0
#define IMX_PROLOGUE_WAIT     1
#define IMX_PROLOGUE_PUSH     2
#define IMX_PROLOGUE_WAIT_ALL 3
#define IMX_PROLOGUE_PUSH_ALL 4
#define IMX_PROLOGUE_SLICES   5
#define IMX_PROLOGUE_RING     6
#define IMX_PROLOGUE_HOOKS    7

/* Tiles go to c; chunks of them are told of; args.h has the others. */
#define IMX_EPILOGUE_STORE        0
#define IMX_EPILOGUE_POST         1
#define IMX_EPILOGUE_SCATTER_PUSH 2
#define IMX_EPILOGUE_REDUCE_PUSH  3
#define IMX_EPILOGUE_REDUCE_PULL  4
#define IMX_EPILOGUE_HOOKS        5

#endif /* IMX_GEMM_POLICIES_H */

/* sm90_credits.cuh - when tiles may go where peers read, or are written to (with reduce_push it is
 * sum_books that looks).
 *
 *     consumers       | products of the first tile | it leaves | ...
 *     an idle warp    | looks for credits |
 *
 * One warp a block looks, since all of them would hold the credits up; and beneath products, since
 * to look takes a microsecond, though credits are seldom late.
 */
#ifndef IMX_SM90_CREDITS_CUH
#define IMX_SM90_CREDITS_CUH

#include "sm90_layout.cuh"
#include "team.cuh"

/* Counted up once they may. */
IMX_FN uint32_t ready_at(void)
{
    return shared_at(&words().ready);
}

/* Before thread 0 meets the others. */
IMX_FN void credits_init(void)
{
    words().ready = 0;
}

/* One warp a block, of which each lane knows what it saw: they may, from here on. */
IMX_FN void let_store(void)
{
    __syncwarp();
    if (lane_here() == 0)
        shared_count(ready_at(), 1);
}

/* One warp a block; 0: it gave up. */
IMX_FN int look_for_credits(const imx_gemm_args &args, const imbrexd_watch *watch)
{
    if (!team_credits(args, watch))
        return 0;
    let_store();
    return 1;
}

/* One warp of a consumer, before it stores: until they may.  0 for all its lanes: give up. */
IMX_FN int may_store(void)
{
    while (!__any_sync(0xffffffffu, gave_up_here())) {
        if (__all_sync(0xffffffffu, shared_counted(ready_at())))
            return 1;
    }
    return 0;
}

#endif /* IMX_SM90_CREDITS_CUH */

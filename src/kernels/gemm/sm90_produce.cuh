/* sm90_produce.cuh - the producer of sm90.cu: which tiles come next, whether their rows have
 * arrived, and their loads into the ring of stages.
 *
 * To work a tile out takes longer than the loads that are under way, and the ring would run dry
 * once a tile: so a warp lists the next ones together, a lane each.  Few blocks have more tiles
 * than one list holds, and those that have not are without the code that lists more: it would hold
 * up the first loads.
 */
#ifndef IMX_SM90_PRODUCE_CUH
#define IMX_SM90_PRODUCE_CUH

#include "sm90_hooks.cuh"
#include "sm90_layout.cuh"
#include "sm90_ring.cuh"
#include "team.cuh"

/* Tile i of the list: what consumers get. */
IMX_FN tile_info *listed(int i)
{
    return (tile_info *)(shared + LIST_AT) + i;
}

/* Where its loads of a begin: a row of map gathered, or ~row of map a. */
IMX_FN int &listed_row(int i)
{
    return ((int *)(shared + ROWS_AT))[i];
}

#ifdef IMX_STORE
/* How far apart, beneath this block's tile number `tile`, the pieces of the one before are stored,
 * whose rows are `owner`'s.  What stays in this GPU: one a step.  What goes to peers takes the
 * whole tile, since a burst would stand in the way of everybody's loads, or half of it where it is
 * the last: then peers wait for what this block sends before they can end. */
IMX_FN int pieces_apart(const imx_gemm_args &args, unsigned tile, int steps, int owner)
{
    if (tile == 0 || owner == args.team.rank)
        return 1;
    int pieces = index_of(tile + 1) < tiles_of() ? PIECES : 2 * PIECES;
    int apart = (steps - 1 - POST_AFTER) / pieces;
    return apart > 1 ? apart : 1;
}
#endif

#ifdef IMX_SPANS
/* A block's own rows of a tile: it need not wait for those of the other block of its cluster. */
IMX_FN void list_spanning(const imx_gemm_args &args, tile_info *info, int *a_row)
{
    const imx_schedule &s = args.schedule;
    imx_sm90_rows share = imx_sm90_rows_of((unsigned)s.m, (unsigned)s.ranks);
    unsigned rows = info->rows < IMX_TILE_M ? info->rows : IMX_TILE_M, rank, last_rank;
    if (info->rows <= 0)
        return;
    info->chunk = (int)imx_sm90_chunk_of(&s, share, info->row, &rank);
    info->last = (int)imx_sm90_chunk_of(&s, share, info->row + rows - 1, &last_rank);
    bool own = (int)rank == args.own && (int)last_rank == args.own;
    *a_row = own ? ~(info->row - (int)imx_sm90_row(share, rank)) : info->row;
}

/* What may have been waited for already, for the tile before. */
IMX_FN int arrival_of(const tile_info *info)
{
    return info->row;
}

/* One thread: until all of them are here; 0: give up.  Of own rows, those at the edges. */
IMX_FN int wait_rows(const imx_gemm_args &args, const imbrexd_watch *watch, const tile_info *info)
{
    const imx_schedule &s = args.schedule;
    if (info->rows <= 0)
        return 1;
    IMX_SCHEDULE_ROLLED
    for (int chunk = info->chunk; chunk <= info->last;) {
        int own = args.own * s.chunks, is_own = chunk >= own && chunk < own + s.chunks;
        if (!team_chunk(args, watch, is_own ? own : chunk))
            return 0;
        if (chunk == info->last)
            break;
        chunk = imx_sm90_next_chunk(&s, chunk);
    }
    return 1;
}
#elif defined(IMX_GATHER) && !defined(IMX_SLICES) && !defined(IMX_RING)
IMX_FN int arrival_of(const tile_info *info)
{
    return info->chunk;
}

IMX_FN int wait_rows(const imx_gemm_args &args, const imbrexd_watch *watch, const tile_info *info)
{
    return hook_wait(args, watch, info->chunk);
}
#endif

/* owner: of the tile before. */
IMX_FN void list_tile(const imx_gemm_args &args, unsigned tile, imx_sm90_tile t, int owner)
{
    tile_info *info = listed(tile % LISTED);
    int below = block_m() * IMX_TILE_M;
    int steps = steps_of(args);
#ifndef IMX_EIGHT
    info->steps = steps;
#endif
    info->row = t.row + below;
    info->col = t.col;
    info->rows = t.rows - below;
    info->chunk = t.chunk;
    int a_row = ~(t.row + below);
#ifdef IMX_GATHER
    a_row = t.rank == args.own ? ~(t.rank_row + below) : t.row + below;
#endif
#ifdef IMX_SPANS
    list_spanning(args, info, &a_row);
#endif
    listed_row(tile % LISTED) = a_row;
#ifdef IMX_EIGHT
    info->a_row = a_row;
#endif
#ifdef IMX_POSTS
    info->tiles = t.chunk_tiles;
#endif
#ifdef IMX_RING
    ring_note(args, t, info);
#endif
#ifdef IMX_STORE
    info->row = t.rank_row + below;
    info->owner = t.rank;
    info->apart = pieces_apart(args, tile, steps, owner);
#endif
}

/* One warp: the block's tiles from number `first` on, which a whole list ends before. */
IMX_FN void list_tiles(const imx_gemm_args &args, unsigned first)
{
    int lane = lane_here(), owner = 0;
    unsigned tile = first + lane, index = index_of(tile);
    bool any = lane < LISTED && index < tiles_of();
    imx_sm90_tile t = {};
    if (any)
        t = imx_sm90_tile_at(&args.schedule, TILE_ROWS, TILE_COLS, hook_order(args, index));
#ifdef IMX_STORE
    owner = __shfl_up_sync(0xffffffffu, t.rank, 1);
    if (lane == 0 && first > 0)
        owner = listed(LISTED - 1)->owner;
    __syncwarp();
#endif
    if (any)
        list_tile(args, tile, t, owner);
    __syncwarp();
}

/* One warp: how many tiles there are, how many rows end a rank's, and the block's first tiles. */
IMX_FN void list_first(const imx_gemm_args &args)
{
    if (lane_here() == 0) {
        tiles_of() = imx_sm90_tiles(&args.schedule, TILE_ROWS, TILE_COLS);
        words().edge = imx_sm90_edge_rows(&args.schedule, IMX_TILE_M);
    }
    __syncwarp();
    list_tiles(args, 0);
}

/* To this block, and where it shares b with the one below or above, to the same place there. */
IMX_FN void load_share(const imx_gemm_args &args, uint32_t to, const imx_tma_map *map, int x, int y,
                       uint32_t bar)
{
    if (IMX_CLUSTER_M > 1)
        tma_load_multicast(to, map, x, y, bar, (1 << IMX_CLUSTER_M) - 1);
    else if (READS_B_ONCE && args.schedule.m <= TILE_ROWS)
        tma_load_once(to, map, x, y, bar);
    else
        tma_load(to, map, x, y, bar);
}

/* Columns of b that a tile at col has here, as they are loaded. */
IMX_FN int cols_here(const imx_gemm_args &args, int col)
{
    int left = (int)args.schedule.n - col;
#ifdef IMX_B_KN
    left = (left + 63) / 64 * 64; /* whole atoms */
#endif
    return left < B_COLS ? left : B_COLS;
}

/* This block's share of them. */
IMX_FN void load_b(const imx_gemm_args &args, const imx_gemm_maps &maps, int col, int k,
                   uint32_t to, uint32_t bar)
{
    int b_part = block_m() * B_SHARE;
    uint32_t b_to = to + A_BYTES + b_part * 128;
#ifdef IMX_B_KN
    for (int end = col + cols_here(args, col); col < end; col += 64, b_to += 8192)
        load_share(args, b_to, &maps.b, col, k + b_part, bar);
#else
    int here = (int)args.schedule.n - col - b_part;
    if (here > 0)
        load_share(args, b_to, here < B_SHARE ? &maps.b_edge : &maps.b, k, col + b_part, bar);
#endif
}

/* One thread, before the kernel ahead of this one has ended: where few rows are multiplied all
 * depends on how soon b is read, and b need wait for nobody.  Should that kernel still write to it,
 * the cache has what it wrote. */
IMX_FN void prefetch_b(const imx_gemm_args &args, const imx_gemm_maps &maps)
{
    const tile_info *first = listed(0);
    int b_part = block_m() * B_SHARE, col = first->col, end = col + cols_here(args, col);
    if (PREFETCH_STEPS == 0 || blockIdx.x / CLUSTER >= tiles_of())
        return;
    for (int i = 0; i < PREFETCH_STEPS && i < steps_of(args, first); i++) {
#ifdef IMX_B_KN
        for (int j = col; j < end; j += 64)
            tma_prefetch(&maps.b, j, k_of(i) + b_part);
#else
        if (col + b_part < end)
            tma_prefetch(&maps.b, k_of(i), col + b_part);
#endif
    }
}

/* What a tile's stages take. */
typedef struct loads {
    const imx_tma_map *a; /* NULL: none of a's rows */
    int row, col, bytes;
} loads;

IMX_FN loads loads_of(const imx_gemm_args &args, const imx_gemm_maps &maps, unsigned tile)
{
    const tile_info *info = listed(tile % LISTED);
    int row = listed_row(tile % LISTED), here = info->rows;
    loads l = { row < 0 ? &maps.a : &maps.gathered, row < 0 ? ~row : row, info->col,
                cols_here(args, info->col) * 128 };
    if (here >= IMX_TILE_M) {
        l.bytes += A_BYTES;
    } else if (here > 0) {
        l.a += &maps.a_edge - &maps.a;
        l.bytes += words().edge * 128;
    } else {
        l.a = NULL;
    }
    return l;
}

#ifdef IMX_LAST_PARTS

/* One thread: which chunk of own rows a block's last tile is of; -1: it is of a peer's. */
IMX_FN int last_number(const imx_gemm_args &args, const tile_info *last)
{
    int rank = args.team.rank;
    return last->owner == rank ? last->chunk - rank * args.schedule.chunks : -1;
}

/* One thread, while there are loads to do that nobody waits for yet: whether all peers' parts are
 * there already.  Looking takes a microsecond, which would hold up their loads; one by one, with an
 * acquire each, half of one a peer. */
IMX_FN int parts_here(const imx_gemm_args &args, int number)
{
    int here = 1;
#pragma unroll 4
    for (int r = 0; r < IMX_RANKS; r++) {
        if (r != args.team.rank)
            here &= imbrexd_load_relaxed(team_part_signal(args, r, number)) >= team_use(args);
    }
    imbrexd_fence_post(); /* what was seen comes before the loads of parts */
    return here;
}

/* One thread, behind the loads of the block's last tile, which is of own rows: the peers' parts of
 * it, column by column of boxes, in rank order.  here: they have been seen.  Who gives up goes on
 * all the same: consumers count on what comes, and so does the other block of the cluster. */
IMX_FN void load_parts(const imx_gemm_args &args, const imbrexd_watch *watch,
                       const imx_tma_map *parts, const tile_info *last, int here, uint32_t base,
                       place *at)
{
    const imx_team &team = args.team;
    int number = last_number(args, last);
    imx_trace_begin(IMX_TRACE_PART);
#pragma unroll 1
    for (int r = 0; r < IMX_RANKS && !here && !gave_up_here(); r++)
        if (!team_part(args, watch, r, number))
            gave_up_here() = 1;
    imx_trace_end(IMX_TRACE_PART, -1, number);
    imbrexd_fence_tma();

    int rank = team.rank == 0, col = last->col;
    for (int left = PIECES * (IMX_RANKS - 1); left > 0; left -= BOXES) {
        int boxes = left < BOXES ? left : BOXES;
        mbar_wait(empty_of(base, at->stage), at->phase);
        mbar_expect(full_of(base, at->stage), boxes * BOX_BYTES);
        for (int i = 0; i < boxes; i++) {
            tma_load_plane(base + at->stage * STAGE_BYTES + i * BOX_BYTES, parts, col, last->row,
                           rank, full_of(base, at->stage));
            rank += rank + 1 == team.rank ? 2 : 1;
            if (rank >= IMX_RANKS) {
                rank = team.rank == 0;
                col += PIECE_COLS;
            }
        }
        step(at);
    }
}

#endif

/* The first threads, of which one waits and loads. */
IMX_FN void produce(const imx_gemm_args &args, const imbrexd_watch *watch,
                    const imx_gemm_maps &maps)
{
    uint32_t base = shared_base();
    int steps = steps_of(args);
    place at = { 0, 1 }; /* an empty ring is free at once */
    unsigned tile = 0;   /* of this block's */
    int early = 0;       /* stages whose b is on its way already */
#if defined(IMX_SLICES)
    int ready_k = args.ready ? 0 : SLICES_ALL; /* columns of a that are here */
#elif defined(IMX_RING)
    if (threadIdx.x == 0)
        ring_use() = team_use(args);
#elif defined(IMX_GATHER)
    int waited = -1;
#endif
#ifdef IMX_LAST_PARTS
    int here = 0; /* the peers' parts of the last tile */
#endif

    for (; index_of(tile) < tiles_of(); tile++) {
        if (PRODUCERS > 1 && tile > 0 && tile % LISTED == 0) {
            __syncwarp();
            list_tiles(args, tile);
        }
        if (threadIdx.x != 0)
            continue;
        tile_info *info = listed(tile % LISTED);
        loads l = loads_of(args, maps, tile);
#if defined(IMX_SLICES)
        if (args.ready && tile == 0) { /* the ring is empty: b need not wait */
            for (; early < IMX_STAGES && early < steps; early++)
                load_b(args, maps, l.col, k_of(early), base + early * STAGE_BYTES,
                       full_of(base, early));
        }
#elif defined(IMX_RING)
        ring_begin(listed_row(tile % LISTED) < 0);
#elif defined(IMX_GATHER)
        if (hook_waits(args) && listed_row(tile % LISTED) >= 0 && arrival_of(info) != waited &&
            !gave_up_here()) {
            waited = arrival_of(info);
            if (!wait_rows(args, watch, info))
                gave_up_here() = 1;
            imbrexd_fence_tma();
        }
        /* Other blocks of the cluster count on what this one brings: go on, but post nothing. */
        if (gave_up_here())
            info->chunk = GAVE_UP;
#endif
#ifdef IMX_RING
        int strip = info->strip;
#endif

        for (int i = 0; i < steps; i++) {
            int k = k_of(i);
#ifdef IMX_SLICES
            if (k >= ready_k)
                ready_k = slices_here(args, watch, k);
#elif defined(IMX_RING)
            if (k >= ring_here())
                ring_wait(args, strip, k);
#endif
            mbar_wait(empty_of(base, at.stage), at.phase);
            if (i == 0)
                *info_of(at.stage) = *info;
            uint32_t to = base + at.stage * STAGE_BYTES, full = full_of(base, at.stage);
            mbar_expect(full, l.bytes);
            if (l.a)
                tma_load(to, l.a, k, l.row, full);
            if (early > 0) /* b is on its way: bytes may well come before they are expected */
                early--;
            else
                load_b(args, maps, l.col, k, to, full);
            step(&at);
#ifdef IMX_LAST_PARTS
            if (i == steps - IMX_STAGES && index_of(tile + 1) >= tiles_of() &&
                last_number(args, info) >= 0)
                here = parts_here(args, last_number(args, info));
#endif
        }
    }
    if (threadIdx.x != 0)
        return;
#ifdef IMX_LAST_PARTS
    const tile_info *last = listed((tile - 1) % LISTED);
    if (tile > 0 && last_number(args, last) >= 0)
        load_parts(args, watch, &maps.parts, last, here, base, &at);
#endif
#ifdef IMX_ENDS_EARLY
    for (int i = 0; i < IMX_STAGES; i++, step(&at)) /* the last load of each */
        mbar_wait(full_of(base, at.stage), at.phase);
#endif
}

#endif /* IMX_SM90_PRODUCE_CUH */

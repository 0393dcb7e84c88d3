/* sm80_lines.cuh - the push kernel's lines: every worker sends its words to all peers, then takes
 * the same words of what they send.
 */
#ifndef IMX_PUSH_SM80_LINES_CUH
#define IMX_PUSH_SM80_LINES_CUH

PUSH_FN void store_line(imx_push_line *at, uint64_t word, uint64_t epoch)
{
    imx_vector_store_whole(at, make_uint4((uint32_t)word, (uint32_t)(word >> 32), (uint32_t)epoch,
                                          (uint32_t)(epoch >> 32)));
}

PUSH_FN imx_push_line load_line(const imx_push_line *at)
{
    uint4 v = imx_vector_load_whole(at);
    return imx_push_line{ v.x | (uint64_t)v.y << 32, v.z | (uint64_t)v.w << 32 };
}

/* What a thread loads before it stores: its word for all, or for so many ranks. */
enum { SHARDS = TO_OWNERS ? IMX_RANKS : 1, WORDS = SHARDS <= 8 ? SHARDS : 4 };

/* This rank's words number i, of WORDS shards from `first` on. */
PUSH_FN void load_words(const imx_push_args &args, int64_t i, int first, uint64_t *word)
{
    int64_t at = i * IMX_PUSH_WORD;
#pragma unroll
    for (int j = 0; j < WORDS; j++) {
        int64_t left = first + j < SHARDS ? sent_bytes(args, args.team.rank, first + j) - at : 0;
        word[j] = left > 0 ? imx_vector_load_word(sent(args, first + j) + at, left) : 0;
    }
}

PUSH_FN void store_words(const imx_push_args &args, int64_t i, int first, const uint64_t *word,
                         uint64_t epoch)
{
    int64_t at = i * IMX_PUSH_WORD;
#pragma unroll
    for (int j = 0; j < (TO_OWNERS ? WORDS : IMX_RANKS); j++) {
        int to = first + j;
        if (to < IMX_RANKS && to != args.team.rank && at < sent_bytes(args, args.team.rank, to))
            store_line(imx_push_lines(&args, to, args.team.rank, epoch) + i,
                       word[TO_OWNERS ? j : 0], epoch);
    }
    int64_t left = shard_bytes(args, args.team.rank) - at;
    if (!TO_OWNERS && left > 0)
        imx_vector_store_word((char *)args.to + first_byte(args, args.team.rank) + at, word[0],
                              left);
}

/* Whether rank sends this one a word number i. */
PUSH_FN bool comes(const imx_push_args &args, int rank, int64_t i)
{
    return rank < IMX_RANKS && rank != args.team.rank &&
           i * IMX_PUSH_WORD < sent_bytes(args, rank, args.team.rank);
}

/* Words number i of AT_ONCE ranks from `first` on; 0: not all that come are there yet. */
PUSH_FN int look(const imx_push_args &args, int64_t i, uint64_t epoch, int first, uint64_t *word)
{
    imx_push_line line[AT_ONCE];
    int there = 1;
#pragma unroll
    for (int j = 0; j < AT_ONCE; j++) {
        line[j].word = 0;
        line[j].epoch = epoch;
        if (comes(args, first + j, i))
            line[j] = load_line(imx_push_lines(&args, args.team.rank, first + j, epoch) + i);
    }
#pragma unroll
    for (int j = 0; j < AT_ONCE; j++) {
        there &= line[j].epoch >= epoch;
        word[j] = line[j].word;
    }
    return there;
}

/* Until they are, with an eye on the clock; 0: give up. */
PUSH_FN int wait_words(const imx_push_args &args, const imbrexd_watch &watch, int64_t i,
                       uint64_t epoch, int first)
{
#pragma unroll 1
    for (int r = first; r < first + AT_ONCE; r++) {
        if (!comes(args, r, i))
            continue;
        const imx_push_line *line = imx_push_lines(&args, args.team.rank, r, epoch) + i;
        if (!wait_for(args, watch, &line->epoch, epoch, SHARD, r, -1))
            return 0;
    }
    return 1;
}

/* The same as look, until all are there. */
PUSH_FN int take_words(const imx_push_args &args, const imbrexd_watch &watch, int64_t i,
                       uint64_t epoch, int first, uint64_t *word)
{
#pragma unroll 1
    for (int looks = 0; !look(args, i, epoch, first, word); looks++) {
        if (looks >= IMX_TEAM_LOOKS && !wait_words(args, watch, i, epoch, first))
            return 0;
    }
    return 1;
}

#if ADDS

/* Words number i of all ranks, this one's among them, added in rank order; 0: gave up. */
PUSH_FN int put_words(const imx_push_args &args, const imbrexd_watch &watch, int64_t i,
                      uint64_t epoch)
{
    int64_t at = i * IMX_PUSH_WORD, left = shard_bytes(args, args.team.rank) - at;
    if (left <= 0)
        return 1;
    uint64_t own = imx_vector_load_word(sent(args, args.team.rank) + at, left), word[AT_ONCE];
    float sum[4];
#pragma unroll 1
    for (int first = 0; first < IMX_RANKS; first += AT_ONCE) {
        if (!take_words(args, watch, i, epoch, first, word))
            return 0;
#pragma unroll
        for (int j = 0; j < AT_ONCE; j++) {
            if (first + j < IMX_RANKS)
                imx_vector_add_word(IMX_DTYPE, sum, first + j == args.team.rank ? own : word[j],
                                    first + j == 0);
        }
    }
    if (adds_more(args)) {
        add_bias<IMX_IS_F32 ? 2 : 1>(args, at, sum);
        add_residual<IMX_IS_F32 ? 2 : 1>(args, at, left, sum);
    }
    imx_vector_store_word((char *)args.to + at, imx_vector_round_word(IMX_DTYPE, sum), left);
    return 1;
}

#else

/* Where the bytes of rank's shard go. */
PUSH_FN char *put_at(const imx_push_args &args, int rank)
{
    int64_t at = TO_OWNERS ? rank * shard_bytes(args, args.team.rank) : first_byte(args, rank);
    return (char *)args.to + at;
}

/* The words number i that come, and own ones that are not there yet, each at its place; 0: gave
 * up. */
PUSH_FN int put_words(const imx_push_args &args, const imbrexd_watch &watch, int64_t i,
                      uint64_t epoch)
{
    int64_t at = i * IMX_PUSH_WORD;
    uint64_t word[AT_ONCE];
#pragma unroll 1
    for (int first = 0; first < IMX_RANKS; first += AT_ONCE) {
        if (!take_words(args, watch, i, epoch, first, word))
            return 0;
#pragma unroll
        for (int j = 0; j < AT_ONCE; j++) {
            int from = first + j;
            bool own = from == args.team.rank;
            if (TO_OWNERS && own && at < shard_bytes(args, from))
                imx_vector_store_word(
                    put_at(args, from) + at,
                    imx_vector_load_word(sent(args, from) + at, shard_bytes(args, from) - at),
                    shard_bytes(args, from) - at);
            if (comes(args, from, i))
                imx_vector_store_word(put_at(args, from) + at, word[j],
                                      sent_bytes(args, from, args.team.rank) - at);
        }
    }
    return 1;
}

#endif

/* word: the first ones, loaded before. */
PUSH_FN void by_lines(const imx_push_args &args, const imbrexd_watch &watch, uint64_t epoch,
                      uint64_t *word)
{
    int64_t first = (int64_t)blockIdx.x * IMX_WORKERS + threadIdx.x;
    int64_t step = (int64_t)gridDim.x * IMX_WORKERS;
    for (int64_t i = first; i * IMX_PUSH_WORD < args.most; i += step) {
#pragma unroll 1
        for (int shard = 0; shard < SHARDS; shard += WORDS) {
            if (i != first || shard)
                load_words(args, i, shard, word);
            store_words(args, i, shard, word, epoch);
        }
    }
    for (int64_t i = first; i * IMX_PUSH_WORD < args.most; i += step) {
        if (!put_words(args, watch, i, epoch))
            return;
    }
}

#endif /* IMX_PUSH_SM80_LINES_CUH */

/* ptx_barrier.c - the mbarrier: arrivals and bytes of a phase, in 8 bytes of shared memory. */
#include "ptx_inside.h"

typedef struct barrier {
    uint32_t arrivals; /* of each phase */
    uint32_t pending;  /* of this one */
    int32_t bytes;     /* expected more than came */
    uint32_t parity;   /* of this phase */
} barrier;

/* From bit 0: arrivals, pending, bytes and PTX_BARRIER_MOST more, parity, MARK. */
enum { FIELD = 20, PARITY_AT = 61, MARK_AT = 62, MARK = 1 };

static uint64_t pack(const barrier *b)
{
    return (uint64_t)b->arrivals | (uint64_t)b->pending << FIELD |
           (uint64_t)(b->bytes + PTX_BARRIER_MOST) << 2 * FIELD | (uint64_t)b->parity << PARITY_AT |
           (uint64_t)MARK << MARK_AT;
}

static bool unpack(uint64_t word, barrier *b)
{
    b->arrivals = word & PTX_BARRIER_MOST;
    b->pending = word >> FIELD & PTX_BARRIER_MOST;
    b->bytes = (int32_t)(word >> 2 * FIELD & (2 * PTX_BARRIER_MOST + 1)) - PTX_BARRIER_MOST;
    b->parity = word >> PARITY_AT & 1;
    return word >> MARK_AT == MARK && b->arrivals && b->pending <= b->arrivals;
}

static unsigned char *find(const ptx_shared *shared, uint32_t address, barrier *b, ptx_why *why)
{
    unsigned char *at = ptx_shared_at(shared, address, 8, 8, "mbarrier", why);
    uint64_t word;
    if (!at)
        return NULL;
    memcpy(&word, at, sizeof word);
    if (unpack(word, b))
        return at;
    ptx_refuse(why, "mbarrier: none was made at 0x%x", (unsigned)address);
    return NULL;
}

static void keep(unsigned char *at, const barrier *b)
{
    uint64_t word = pack(b);
    memcpy(at, &word, sizeof word);
}

/* With the next phase begun, if this one is over. */
static void settle(unsigned char *at, barrier *b)
{
    if (!b->pending && !b->bytes) {
        b->pending = b->arrivals;
        b->parity ^= 1;
    }
    keep(at, b);
}

bool ptx_barrier_init(const ptx_shared *shared, uint32_t address, uint32_t arrivals, ptx_why *why)
{
    barrier b;
    unsigned char *at = ptx_shared_at(shared, address, 8, 8, "mbarrier.init", why);
    uint64_t word;
    if (!at)
        return false;
    if (!arrivals || arrivals > PTX_BARRIER_MOST)
        return ptx_refuse(why, "mbarrier.init: of %u arrivals, not 1 to %d", (unsigned)arrivals,
                          PTX_BARRIER_MOST);
    memcpy(&word, at, sizeof word);
    if (unpack(word, &b))
        return ptx_refuse(why, "mbarrier.init: there is a barrier at 0x%x already",
                          (unsigned)address);
    keep(at, &(barrier){ .arrivals = arrivals, .pending = arrivals });
    return true;
}

bool ptx_barrier_end(const ptx_shared *shared, uint32_t address, ptx_why *why)
{
    barrier b;
    unsigned char *at = find(shared, address, &b, why);
    if (!at)
        return false;
    memset(at, 0, sizeof(uint64_t));
    return true;
}

static bool expect(barrier *b, uint32_t address, uint32_t bytes, ptx_why *why)
{
    if (bytes > PTX_BARRIER_MOST || b->bytes + (int32_t)bytes > PTX_BARRIER_MOST)
        return ptx_refuse(why, "mbarrier: 0x%x would expect %u bytes besides %d; %d is the most",
                          (unsigned)address, (unsigned)bytes, (int)b->bytes, PTX_BARRIER_MOST);
    b->bytes += (int32_t)bytes;
    return true;
}

bool ptx_barrier_arrive(const ptx_shared *shared, uint32_t address, uint32_t arrivals,
                        uint32_t bytes, uint64_t *state, ptx_why *why)
{
    barrier b;
    unsigned char *at = find(shared, address, &b, why);
    if (!at)
        return false;
    if (!arrivals || arrivals > b.pending)
        return ptx_refuse(why, "mbarrier: %u arrive at 0x%x, where %u of %u are pending",
                          (unsigned)arrivals, (unsigned)address, (unsigned)b.pending,
                          (unsigned)b.arrivals);
    uint64_t before = pack(&b);
    if (!expect(&b, address, bytes, why))
        return false;
    if (arrivals == b.pending && b.bytes < 0)
        return ptx_refuse(why, "mbarrier: %d bytes came to 0x%x that nobody expects", (int)-b.bytes,
                          (unsigned)address);
    b.pending -= arrivals;
    settle(at, &b);
    if (state)
        *state = before;
    return true;
}

bool ptx_barrier_expect(const ptx_shared *shared, uint32_t address, uint32_t bytes, ptx_why *why)
{
    barrier b;
    unsigned char *at = find(shared, address, &b, why);
    if (!at || !expect(&b, address, bytes, why))
        return false;
    settle(at, &b);
    return true;
}

bool ptx_barrier_complete(const ptx_shared *shared, uint32_t address, uint32_t bytes, ptx_why *why)
{
    barrier b;
    unsigned char *at = find(shared, address, &b, why);
    if (!at)
        return false;
    int64_t left = (int64_t)b.bytes - bytes;
    if (left < (b.pending ? -PTX_BARRIER_MOST : 0))
        return ptx_refuse(why, "mbarrier: %u bytes came to 0x%x, which expects %d", (unsigned)bytes,
                          (unsigned)address, (int)b.bytes);
    b.bytes = (int32_t)left;
    settle(at, &b);
    return true;
}

bool ptx_barrier_over(const ptx_shared *shared, uint32_t address, uint64_t state, bool *over,
                      ptx_why *why)
{
    barrier then;
    if (!unpack(state, &then))
        return ptx_refuse(why, "mbarrier: 0x%llx is no state of one", (unsigned long long)state);
    return ptx_barrier_parity_over(shared, address, then.parity, over, why);
}

bool ptx_barrier_parity_over(const ptx_shared *shared, uint32_t address, uint32_t parity,
                             bool *over, ptx_why *why)
{
    barrier b;
    if (!find(shared, address, &b, why))
        return false;
    if (parity > 1)
        return ptx_refuse(why, "mbarrier: parity is 0 or 1, not %u", (unsigned)parity);
    *over = b.parity != parity;
    return true;
}

void ptx_barrier_describe(const ptx_shared *shared, uint32_t address, ptx_why *why)
{
    barrier b;
    if (find(shared, address, &b, why))
        ptx_refuse(why, "phase of parity %u: %u of %u arrivals and %d bytes to come",
                   (unsigned)b.parity, (unsigned)b.pending, (unsigned)b.arrivals, (int)b.bytes);
}

/* handshake.c - challenge and response under SipHash: fresh nonces from both sides, so that nothing
 * heard once can be said again. */
#include "handshake.h"

#include <stdio.h>
#include <string.h>
#include <sys/random.h>

#include "base/siphash.h"

#define MAGIC(letter)   (0x0002786572626d69 + ((uint64_t)(letter) << 56)) /* "imbrex", version 2 */
#define MAGIC_HELLO     MAGIC('h')
#define MAGIC_CHALLENGE MAGIC('c')
#define MAGIC_PROOF     MAGIC('p')
#define MAGIC_VERDICT   MAGIC('v')

/* All that was said.  Who proves is part of it: no proof can be sent back to its maker. */
typedef struct transcript {
    uint64_t role;
    imx_handshake_hello hello;
    imx_handshake_challenge challenge;
    imx_handshake_verdict verdict;
} transcript;

/* The last two make a key of two words each. */
enum { ROLE_GUEST = 1, ROLE_HOST = 2, ROLE_GUEST_SENDS = 3, ROLE_HOST_SENDS = 5 };

static uint64_t guest_proof(const uint64_t key[2], const imx_handshake_hello *hello,
                            const imx_handshake_challenge *challenge)
{
    const transcript said = { .role = ROLE_GUEST, .hello = *hello, .challenge = *challenge };
    return imx_siphash(key, &said, sizeof said);
}

static uint64_t host_proof(const uint64_t key[2], const imx_handshake_hello *hello,
                           const imx_handshake_challenge *challenge,
                           const imx_handshake_verdict *verdict)
{
    transcript said = {
        .role = ROLE_HOST, .hello = *hello, .challenge = *challenge, .verdict = *verdict
    };
    said.verdict.proof = 0;
    return imx_siphash(key, &said, sizeof said);
}

/* The key of what one of the two sends from now on. */
static imx_seal make_seal(const uint64_t key[2], uint64_t role, const imx_handshake_hello *hello,
                          const imx_handshake_challenge *challenge)
{
    transcript said = { .role = role, .hello = *hello, .challenge = *challenge };
    imx_seal seal = { .count = 0 };
    for (int i = 0; i < 2; i++, said.role++)
        seal.key[i] = imx_siphash(key, &said, sizeof said);
    return seal;
}

uint64_t imx_handshake_name(const imx_handshake_id *id)
{
    return imx_siphash(id->key, &id->sequence, sizeof id->sequence);
}

/* Of another length than all else that is hashed with the group's key. */
void imx_handshake_group_key(const imx_handshake_id *id, uint64_t key[2])
{
    for (uint64_t i = 0; i < 2; i++) {
        const uint64_t words[3] = { id->sequence, (uint64_t)id->size, i };
        key[i] = imx_siphash(id->key, words, sizeof words);
    }
}

static bool make_nonce(unsigned char nonce[16])
{
    return getrandom(nonce, 16, 0) == 16;
}

/* ---- Host ------------------------------------------------------------------------------------ */

enum { STEP_HELLO, STEP_PROOF };

/* A fresh connection has room for these few bytes: a guest who does not take them is none. */
static imx_socket_result say(int fd, const void *message, size_t bytes)
{
    imx_socket_result result = imx_socket_send_all(fd, message, bytes, 0);
    return result == IMX_SOCKET_DONE ? result : IMX_SOCKET_GONE;
}

static imx_socket_result hear(imx_handshake_guest *guest, void *message, size_t bytes)
{
    imx_socket_span rest = { (char *)message + guest->have, bytes - guest->have };
    imx_socket_result result = imx_socket_recv(guest->fd, &rest);
    guest->have = result == IMX_SOCKET_DONE ? 0 : bytes - rest.left;
    return result;
}

static imx_socket_result hear_hello(imx_handshake_guest *guest, const imx_handshake_id *id)
{
    imx_socket_result result = hear(guest, &guest->hello, sizeof guest->hello);
    if (result != IMX_SOCKET_DONE)
        return result;
    guest->challenge = (imx_handshake_challenge){ MAGIC_CHALLENGE, id->sequence, { 0 } };
    if (guest->hello.magic != MAGIC_HELLO || !make_nonce(guest->challenge.nonce))
        return IMX_SOCKET_GONE;
    guest->step = STEP_PROOF;
    result = say(guest->fd, &guest->challenge, sizeof guest->challenge);
    return result == IMX_SOCKET_DONE ? IMX_SOCKET_AGAIN : result;
}

static imx_socket_result hear_proof(imx_handshake_guest *guest, const imx_handshake_id *id)
{
    imx_socket_result result = hear(guest, &guest->proof, sizeof guest->proof);
    if (result != IMX_SOCKET_DONE)
        return result;
    if (guest->proof.magic != MAGIC_PROOF || guest->hello.sequence != id->sequence)
        return IMX_SOCKET_GONE;
    if (guest->proof.proof != guest_proof(id->key, &guest->hello, &guest->challenge)) {
        const imx_handshake_verdict verdict = { .magic = MAGIC_VERDICT,
                                                .code = IMX_HANDSHAKE_WRONG_KEY };
        say(guest->fd, &verdict, sizeof verdict);
        return IMX_SOCKET_GONE;
    }
    return IMX_SOCKET_DONE;
}

imx_socket_result imx_handshake_step(imx_handshake_guest *guest, const imx_handshake_id *id)
{
    return guest->step == STEP_HELLO ? hear_hello(guest, id) : hear_proof(guest, id);
}

imx_socket_result imx_handshake_answer(imx_handshake_guest *guest, const imx_handshake_id *id,
                                       int code, const char *text)
{
    imx_handshake_verdict verdict = { .magic = MAGIC_VERDICT,
                                      .code = (uint64_t)code,
                                      .launch = id->launch };
    snprintf(verdict.text, sizeof verdict.text, "%s", text);
    verdict.proof = host_proof(id->key, &guest->hello, &guest->challenge, &verdict);
    return say(guest->fd, &verdict, sizeof verdict);
}

imx_seal_pair imx_handshake_seals(const imx_handshake_guest *guest, const imx_handshake_id *id)
{
    return (imx_seal_pair){
        .send = make_seal(id->key, ROLE_HOST_SENDS, &guest->hello, &guest->challenge),
        .receive = make_seal(id->key, ROLE_GUEST_SENDS, &guest->hello, &guest->challenge),
    };
}

/* ---- Guest ----------------------------------------------------------------------------------- */

static imx_handshake_result judge(const imx_handshake_id *id, const imx_handshake_hello *hello,
                                  const imx_handshake_challenge *challenge,
                                  const imx_handshake_verdict *verdict)
{
    if (verdict->magic != MAGIC_VERDICT)
        return IMX_HANDSHAKE_STRANGER;
    if (verdict->code == IMX_HANDSHAKE_WRONG_KEY ||
        verdict->proof != host_proof(id->key, hello, challenge, verdict))
        return IMX_HANDSHAKE_OTHER_KEY;
    return verdict->code == IMX_HANDSHAKE_WELCOME ? IMX_HANDSHAKE_JOINED
                                                  : IMX_HANDSHAKE_TURNED_AWAY;
}

/* The guest's half of the exchange, up to the verdict. */
static imx_socket_result talk(int fd, const imx_handshake_id *id, int64_t first_deadline,
                              int64_t deadline, const imx_handshake_hello *hello,
                              imx_handshake_challenge *challenge, imx_handshake_verdict *verdict)
{
    imx_socket_result result = imx_socket_send_all(fd, hello, sizeof *hello, first_deadline);
    if (result == IMX_SOCKET_DONE)
        result = imx_socket_recv_all(fd, challenge, sizeof *challenge, first_deadline, NULL);
    if (result != IMX_SOCKET_DONE)
        return result;
    if (challenge->magic != MAGIC_CHALLENGE || challenge->sequence != id->sequence)
        return IMX_SOCKET_GONE;
    const imx_handshake_proof proof = { MAGIC_PROOF, guest_proof(id->key, hello, challenge) };
    result = imx_socket_send_all(fd, &proof, sizeof proof, deadline);
    if (result == IMX_SOCKET_DONE)
        result = imx_socket_recv_all(fd, verdict, sizeof *verdict, deadline, NULL);
    return result;
}

imbrex_status imx_handshake_join(int fd, const imx_handshake_id *id, int64_t first_deadline,
                                 int64_t deadline, imx_handshake_outcome *outcome)
{
    imx_handshake_hello hello = { .magic = MAGIC_HELLO,
                                  .rank = (uint32_t)id->rank,
                                  .size = (uint32_t)id->size,
                                  .sequence = id->sequence,
                                  .launch = id->launch,
                                  .remaining_ms = imx_max(deadline - imx_socket_now_ms(), 0) };
    if (!make_nonce(hello.nonce))
        return imx_fail_errno("no random numbers for the handshake");
    imx_handshake_challenge challenge;
    imx_handshake_verdict verdict;
    imx_socket_result end = talk(fd, id, first_deadline, deadline, &hello, &challenge, &verdict);
    if (end == IMX_SOCKET_BROKEN)
        return imx_fail_errno("talking to rank 0 failed");
    *outcome = (imx_handshake_outcome){ .result = IMX_HANDSHAKE_STRANGER };
    if (end != IMX_SOCKET_DONE)
        return IMBREX_OK;
    outcome->launch = verdict.launch;
    outcome->result = judge(id, &hello, &challenge, &verdict);
    outcome->seals.send = make_seal(id->key, ROLE_GUEST_SENDS, &hello, &challenge);
    outcome->seals.receive = make_seal(id->key, ROLE_HOST_SENDS, &hello, &challenge);
    snprintf(outcome->text, sizeof outcome->text, "%.255s", verdict.text);
    return IMBREX_OK;
}

/* tuning_cache.c - the file of tuning cache: finds a case's line, replaces it, counts them all. */
#include "tuning_cache.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/uio.h>
#include <time.h>
#include <unistd.h>

#include "base/folder.h"
#include "base/siphash.h"

static const char file_name[] = "tuning-1.txt"; /* the number changes with the format */
static const char head[] = "imbrex's tuning cache: see docs/tuning.md; a line is one case\n";

enum {
    FILE_BYTES_MOST = 1 << 20,
    KEY_MOST = 640,
    LINE_MOST = 1024,
    DIGEST = 16,
    FIGURES_MOST = 160,
    LOCK_MS = 5000 /* another process writes a small file while it has the folder locked */
};

/* Lines of a file in memory; the last one may lack its end. */
typedef struct line {
    const char *at;
    size_t length; /* without its end */
} line;

static bool next_line(const char **rest, line *out)
{
    if (!**rest)
        return false;
    *out = (line){ *rest, strcspn(*rest, "\n") };
    *rest += out->length + ((*rest)[out->length] == '\n');
    return true;
}

static bool starts(const line *l, const char *with)
{
    size_t length = strlen(with);
    return l->length >= length && memcmp(l->at, with, length) == 0;
}

/* ---- lines ----------------------------------------------------------------------------------- */

/* All kinds of links to the peers of this node, in the order of ranks, and what leads beyond it. */
static void add_links(const imbrex_group *group, imx_text *key)
{
    char words[160] = "";
    imx_text links = { .at = words, .size = sizeof words };
    for (int r = 0; r < group->size; r++) {
        char word[32] = "";
        imx_text text = { .at = word, .size = sizeof word };
        if (r == group->rank || !imx_nodes_here(&group->nodes, r))
            continue;
        group->backend->link(group->device, group->targets[r].id, &text);
        if (!strstr(words, word))
            imx_text_add(&links, "%s%s", links.length ? ", " : "", word);
    }
    if (group->net_kind)
        imx_text_add(&links, "%s%s", links.length ? ", " : "", group->net_facts.text);
    imx_text_add(key, "%s", words);
}

static void add_key(const imbrex_group *group, const imx_request *r, imx_text *key)
{
    const imx_shape *s = &r->shape;
    imx_text_add(key, "%s | %s: %s | ", imbrex_version(), group->backend->name,
                 group->target->name);
    add_links(group, key);
    imx_text_add(key, " | ranks ");
    imx_nodes_sizes(&group->nodes, key);
    imx_text_add(key, ", %d a device | %s m=%lld n=%lld", group->sharers, r->op->info.name,
                 (long long)s->m, (long long)s->n);
    if (r->op->product)
        imx_text_add(key, " k=%lld b=%s", (long long)s->k,
                     s->layout == IMBREX_NK ? "[n,k]" : "[k,n]");
    imx_request_add_own(r->op, r->desc, key);
    imx_text_add(key, " %s", imx_dtype_name(s->dtype));
    if (r->chunk_rows)
        imx_text_add(key, " chunk_rows=%d", r->chunk_rows);
    if (r->sms)
        imx_text_add(key, " sms=%d", r->sms);
    imx_text_add(key, " | ");
}

static void digest_of(const char *text, size_t bytes, char digest[DIGEST + 1])
{
    static const uint64_t key[2] = { 3, 4 };
    snprintf(digest, DIGEST + 1, "%016llx", (unsigned long long)imx_siphash(key, text, bytes));
}

static bool is_whole(const line *l)
{
    char digest[DIGEST + 1];
    if (l->length < DIGEST)
        return false;
    digest_of(l->at, l->length - DIGEST, digest);
    return memcmp(digest, l->at + l->length - DIGEST, DIGEST) == 0;
}

/* The columns behind the key, of a whole line; false: not in a form that this build writes. */
static bool read_columns(const line *l, const char *key, const imx_op *op, imx_tuning_choice *out,
                         imx_text *why)
{
    char text[LINE_MOST], name[24] = "", figures[FIGURES_MOST] = "", date[16] = "";
    size_t behind = l->length - strlen(key);
    if (behind >= sizeof text)
        return false;
    memcpy(text, l->at + strlen(key), behind);
    text[behind] = '\0';
    int end = 0, chunk_rows = 0;
    if (sscanf(text, "%23[^,], chunk_rows=%d | %159[^|] | %15[0-9-] | %n", name, &chunk_rows,
               figures, date, &end) != 4 ||
        behind != (size_t)end + DIGEST || chunk_rows < 0)
        return false;
    const imx_algorithm *algorithm = imx_op_algorithm(op->algorithms, name);
    if (!algorithm)
        return false;
    *out = (imx_tuning_choice){ algorithm, chunk_rows };
    imx_text_add(why, "measured: %.*s; tuned %s", (int)strlen(figures) - 1, figures, date);
    return true;
}

/* ---- reading --------------------------------------------------------------------------------- */

/* All that the folder's file holds behind its head, to be freed with *file; NULL: why says, or is
 * "" where there is no file. */
static const char *open_file(const imx_folder *folder, char **file, imx_text *why)
{
    size_t bytes;
    *file = imx_folder_read(folder, file_name, FILE_BYTES_MOST, &bytes);
    if (*file && strncmp(*file, head, sizeof head - 1) == 0)
        return *file + sizeof head - 1;
    if (*file)
        imx_text_add(why, "%s/%s is ignored: it is no tuning cache", folder->path, file_name);
    else if (errno == EPERM)
        imx_text_add(why,
                     "%s/%s is ignored: it or its folder belongs to someone else, or others may "
                     "write it",
                     folder->path, file_name);
    else if (errno != ENOENT)
        imx_text_add(why, "%s/%s is ignored: %s", folder->path, file_name, strerror(errno));
    free(*file);
    *file = NULL;
    return NULL;
}

void imx_tuning_cache_recall(const imbrex_group *group, const imx_request *request,
                             imx_tuning_choice *out, imx_text *why)
{
    imx_folder folder;
    char key[KEY_MOST] = "", *file = NULL;
    imx_text key_text = { .at = key, .size = sizeof key };
    *out = (imx_tuning_choice){ .algorithm = NULL };
    imx_folder_name(group->env.cache_dir, &folder);
    const char *rest = imx_backend_runs(group->backend) ? open_file(&folder, &file, why) : NULL;
    if (!rest)
        return;
    add_key(group, request, &key_text);
    for (line l; next_line(&rest, &l);) {
        if (!starts(&l, key))
            continue;
        if (!is_whole(&l) || !read_columns(&l, key, request->op, out, why))
            imx_text_add(why, "the line of %s/%s is damaged", folder.path, file_name);
        break;
    }
    free(file);
}

void imx_tuning_cache_info(const char *wanted, imx_text *text)
{
    imx_folder folder;
    char *file = NULL, words[600] = "", version[32];
    imx_text why = { .at = words, .size = sizeof words };
    int whole = 0, ours = 0, damaged = 0;
    imx_folder_name(wanted, &folder);
    const char *rest = open_file(&folder, &file, &why);
    snprintf(version, sizeof version, "%s | ", imbrex_version());
    if (!rest) {
        imx_text_add(text, "tuning cache: none%s%s\n", *words ? ": " : "", words);
        return;
    }
    for (line l; next_line(&rest, &l);) {
        bool is = is_whole(&l);
        whole += is;
        damaged += !is;
        ours += is && starts(&l, version);
    }
    imx_text_add(text, "tuning cache: %d, of this version %d, in %s/%s", whole, ours, folder.path,
                 file_name);
    if (damaged)
        imx_text_add(text, "; %d damaged lines are ignored", damaged);
    imx_text_add(text, "\n");
    free(file);
}

/* ---- writing --------------------------------------------------------------------------------- */

imbrex_status imx_tuning_cache_check(const imbrex_group *group)
{
    imx_folder folder;
    imx_folder_find(group->env.cache_dir, &folder);
    if (!folder.path[0])
        return imx_fail(IMBREX_SYSTEM,
                        "what is measured could not be kept: %s; name a folder in IMBREX_CACHE_DIR",
                        folder.why);
    return IMBREX_OK;
}

/* Keeps of the old lines the whole ones of other cases; in place. */
static size_t filter(char *lines, const char *key)
{
    char *to = lines;
    const char *rest = lines;
    for (line l; next_line(&rest, &l);) {
        if (l.at[l.length] != '\n' || !is_whole(&l) || starts(&l, key))
            continue;
        memmove(to, l.at, l.length + 1);
        to += l.length + 1;
    }
    return (size_t)(to - lines);
}

/* With the folder locked: the head, the old lines, oldest first, and the new one. */
static imbrex_status replace(const imx_folder *folder, const char *key, const imx_text *added)
{
    char *file = NULL, *lines = NULL, none[1] = "";
    char ignored[64];
    imx_text why = { .at = ignored, .size = sizeof ignored };
    size_t bytes = 0, most = FILE_BYTES_MOST - sizeof head - added->length;
    lines = (char *)open_file(folder, &file, &why);
    if (lines)
        bytes = filter(lines, key);
    else
        lines = none; /* what is no file of ours is replaced */
    while (bytes > most) {
        size_t oldest = (size_t)((char *)memchr(lines, '\n', bytes) + 1 - lines);
        lines += oldest;
        bytes -= oldest;
    }
    const struct iovec parts[] = { { (void *)head, sizeof head - 1 },
                                   { lines, bytes },
                                   { added->at, added->length } };
    bool kept = imx_folder_write(folder, file_name, parts, 3);
    imbrex_status status =
        kept ? IMBREX_OK : imx_fail_errno("cannot write %s/%s", folder->path, file_name);
    free(file);
    return status;
}

imbrex_status imx_tuning_cache_keep(const imbrex_group *group, const imx_request *request,
                                    const char *algorithm, int chunk_rows, const char *figures)
{
    char key[KEY_MOST] = "", added[LINE_MOST + KEY_MOST], digest[DIGEST + 1], date[16];
    imx_text key_text = { .at = key, .size = sizeof key };
    imx_text text = { .at = added, .size = sizeof added };
    time_t now = time(NULL);
    struct tm day;
    strftime(date, sizeof date, "%Y-%m-%d", gmtime_r(&now, &day));
    add_key(group, request, &key_text);
    imx_text_add(&text, "%s%s, chunk_rows=%d | %.*s | %s | ", key, algorithm, chunk_rows,
                 FIGURES_MOST - 2, figures, date);
    digest_of(added, text.length, digest);
    imx_text_add(&text, "%s\n", digest);

    imx_folder folder;
    imx_folder_find(group->env.cache_dir, &folder);
    int64_t limit_ms = imx_min(LOCK_MS, group->timeout_ms / 2); /* the other ranks wait */
    int lock = imx_folder_lock(&folder, limit_ms);
    if (lock < 0 && errno == EWOULDBLOCK)
        return imx_fail(IMBREX_SYSTEM, "another process has had %s locked for %lld ms", folder.path,
                        (long long)limit_ms);
    if (lock < 0)
        return imx_fail_errno("cannot lock %s", folder.path);
    imbrex_status status = replace(&folder, key, &text);
    close(lock);
    return status;
}

/* request.h - what is asked of a plan: its desc, read by the rows of its operator. */
#ifndef IMX_REQUEST_H
#define IMX_REQUEST_H

#include "op.h"

/* What descs have in common, 0 where the operator's has none such, and the
 * desc itself, for what is the operator's own. */
struct imx_request {
    const imx_op *op;
    imx_shape shape; /* m: the rows of a run, however the desc calls them */
    const char *algorithm;
    int chunk_rows, sms;
    int64_t m_least;
    bool given;                                     /* else the desc was NULL */
    _Alignas(8) unsigned char desc[IMX_DESC_BYTES]; /* a copy */
};

imx_request imx_request_of(const imx_op *op, const void *desc); /* NULL is fine */

/* The size of a desc that a run may have less of; and the field of args that says how much. */
const imbrex_field *imx_request_of_run(const imx_op *op);
const imbrex_field *imx_args_of_run(const imx_op *op);

/* Local: what is wrong with a request, whoever makes it.  desc: what the caller knows it by; least:
 * that sizes which must be given may be. */
imbrex_status imx_request_check(const imbrex_group *group, const imx_request *request,
                                const char *desc, int least) IMX_MUST_CHECK;

/* Local: whether a matrix of the caller's, which it knows as of.name, lies as its elements have to,
 * else INVALID; wide: and as the device's kernels load and store at once, else UNSUPPORTED. */
imbrex_status imx_request_aligned(const imbrex_group *group, const char *of, const char *name,
                                  const void *at, size_t element, bool wide) IMX_MUST_CHECK;

/* What tune.h chooses tiles and algorithm by. */
imx_tune_input imx_request_input(const imbrex_group *group, const imx_request *request);

/* Adds " experts=8 top_k=2": the sizes that the operator alone has. */
void imx_request_add_own(const imx_op *op, const void *desc, imx_text *text);

/* What ranks must have alike, for imx_agree: the desc's numbers.  desc: as above, kept.  Returns
 * how many. */
enum { IMX_REQUEST_FIELDS = 20 };
int imx_request_fields(const imx_request *request, const char *desc,
                       imx_field fields[IMX_REQUEST_FIELDS]);

#endif /* IMX_REQUEST_H */

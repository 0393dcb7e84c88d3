/* rates.h - what a GPU does in a microsecond: the numbers that expected times are made of (cost.h).
 *
 * They stand in a table, a text of lines for each kind of device:
 *
 *     device NVIDIA H200     as the driver calls it; several lines: the rows are for all of them
 *     store 350              # GB/s: a name, a number, and what may be a comment
 *
 * Tables of src/tune/tables/ are in the library.  A file that `imbrex tune --device` wrote, or that
 * IMBREX_RATES names, counts before them, row by row; a device that has neither gets its rates from
 * the driver's attributes.  What depends on the kernels, and not on the device, is no rate: it
 * stands beside what uses it, in cost.c, tune.c, sm90_tune.c and in operators' costs.
 */
#ifndef IMX_RATES_H
#define IMX_RATES_H

#include "base/folder.h"
#include "base/imx.h"

/* field: its name in a table, too; to a microsecond; unit there; the least and the most there;
 * whether more of it is slower. */
#define IMX_RATES_TABLE(ROW)                                                                      \
    ROW(bf16, 1e6, "TFLOP/s", 1e-3, 1e6, false) /* large products of bf16 and f16 */              \
    ROW(fp8, 1e6, "TFLOP/s", 1e-3, 1e6, false)  /* and of 8 bits */                               \
    ROW(f32, 1e6, "TFLOP/s", 1e-3, 1e6, false)                                                    \
    ROW(block, 1e6, "10^6 / us", 1e-3, 1e6, false) /* multiplications of a block in wide tiles */ \
    ROW(block_fp8, 1e6, "10^6 / us", 1e-3, 1e6, false) /* likewise of 8 bits */                   \
    ROW(memory, 1e3, "GB/s", 1e-3, 1e6, false)                                                    \
    ROW(store, 1e3, "GB/s", 1e-3, 1e6, false)  /* to peers, of a kernel that does nothing else */ \
    ROW(slices, 1e3, "GB/s", 1e-3, 1e6, false) /* likewise, slice by slice beneath a product */   \
    ROW(copy, 1e3, "GB/s", 1e-3, 1e6, false)   /* of a copy engine, to all peers in turn */       \
    ROW(copy_us, 1, "us", 1e-3, 1e6, true) /* what a movement by copies takes beside its bytes */ \
    ROW(signal_us, 1, "us", 1e-3, 1e6, true) /* until a peer sees data that brings its flag */    \
    ROW(clock, 1, "MHz", 100, 10000, false)  /* cycles a microsecond, under load */

/* Bytes, operations and cycles a microsecond, and microseconds. */
typedef struct imx_rates {
#define IMX_RATES_FIELD(field, scale, unit, least, most, slower) double field;
    IMX_RATES_TABLE(IMX_RATES_FIELD)
#undef IMX_RATES_FIELD
} imx_rates;

/* What the driver says of a device. */
typedef struct imx_rates_device {
    const char *model; /* its name */
    int arch, sms;     /* see imx_target */
    int clock_mhz;     /* at most; 0: unknown */
    int memory_gb_s;   /* likewise */
    bool nvlink;       /* leads to the other ranks; else it is PCIe */
} imx_rates_device;

/* Which rates a table has, a bit each. */
enum {
#define IMX_RATES_NUMBER(field, scale, unit, least, most, slower) IMX_RATES_AT_##field,
    IMX_RATES_TABLE(IMX_RATES_NUMBER)
#undef IMX_RATES_NUMBER
};

/* Reads all of a text, and sets the rates that it has for the model; given: which.  INVALID, with
 * the line and what is wanted there: name says whose lines. */
imbrex_status imx_rates_parse(const char *text, const char *name, const char *model,
                              imx_rates *rates, uint32_t *given) IMX_MUST_CHECK;

/* Whether a text is rows of rates, one at least, and no device.  Else INVALID, as above. */
imbrex_status imx_rates_check_rows(const char *rows, const char *name) IMX_MUST_CHECK;

/* Of a device that the library has a table for; else false. */
bool imx_rates_built_in(const char *model, imx_rates *out);

/* Of one that nobody has measured. */
imx_rates imx_rates_of_attributes(const imx_rates_device *device);

/* Local: those of a device, and in words where they are from.  INVALID: a file is malformed;
 * SYSTEM: the one of IMBREX_RATES cannot be read. */
imbrex_status imx_rates_read(const imx_env *env, const imx_rates_device *device, imx_rates *out,
                             imx_text *from) IMX_MUST_CHECK;

/* The file that keeps a model's in the folder of the tuning cache. */
enum { IMX_RATES_NAME = 128, IMX_RATES_BYTES = 1 << 16 };
void imx_rates_file_name(const char *model, char name[IMX_RATES_NAME]);

/* Of both the slower ones: what all ranks can count on. */
void imx_rates_slower(imx_rates *rates, const imx_rates *other);

#endif /* IMX_RATES_H */

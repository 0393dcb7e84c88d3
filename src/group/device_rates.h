/* device_rates.h - the rates (tune/rates.h) that a group's ranks choose by. */
#ifndef IMX_DEVICE_RATES_H
#define IMX_DEVICE_RATES_H

#include "state.h"

/* Collective, once devices and links are known: sets group->rates, where it is on GPUs. */
imbrex_status imx_device_rates_agree(imbrex_group *group) IMX_MUST_CHECK;

/* Adds a line for each device that is here: where its rates are from. */
void imx_device_rates_info(const imx_backend *backend, imx_text *text);

#endif /* IMX_DEVICE_RATES_H */

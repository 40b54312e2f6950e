// Marks the functions of the C ABI: all else is hidden.
#pragma once

#define BITMTP_API extern "C" __attribute__((visibility("default")))

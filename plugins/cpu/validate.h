#pragma once

#include <cstdint>
#include <string>

namespace bitmtp {

// Bytes of the operator's record, or 0 for an unknown operator.
size_t record_bytes(int32_t op);

// What is wrong with a record, in one line without a line break; empty where it can run.
std::string fault(int32_t op, const void *args);

}  // namespace bitmtp

// Which build this is.
#pragma once

namespace nccl_ha {

/// As in "0.1.0".
const char* version_number();

/// The commit it was built from, with "+" behind it where sources were changed since; "unknown"
/// where nobody told the build.
const char* version_commit();

}  // namespace nccl_ha

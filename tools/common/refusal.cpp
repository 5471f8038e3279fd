#include "tools/common/refusal.h"

#include "tools/common/refused.h"

namespace nccl_ha::tools {

void Refusal::operator()(const Error& error) const {
  throw Refused(command_, error.message(), status_);
}

}  // namespace nccl_ha::tools

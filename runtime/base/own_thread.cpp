#include "runtime/base/own_thread.h"

#include <dlfcn.h>
#include <link.h>
#include <pthread.h>
#include <signal.h>

namespace nccl_ha {

void prepare_thread(const char* name) {
  sigset_t all;
  sigfillset(&all);
  pthread_sigmask(SIG_SETMASK, &all, nullptr);
  pthread_setname_np(pthread_self(), name);
}

bool keep_code_loaded() {
  Dl_info info{};
  void* found = nullptr;
  static const char somewhere = 0;  // in this library
  if (dladdr1(&somewhere, &info, &found, RTLD_DL_LINKMAP) == 0 || found == nullptr) {
    return false;
  }
  const auto* library = static_cast<const link_map*>(found);
  if (library->l_name == nullptr || *library->l_name == '\0') {
    return true;  // the program itself
  }
  return dlopen(library->l_name, RTLD_NOW | RTLD_NOLOAD | RTLD_NODELETE) != nullptr;
}

}  // namespace nccl_ha

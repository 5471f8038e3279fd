#include "runtime/base/own_thread.h"

#include <dlfcn.h>
#include <link.h>
#include <pthread.h>
#include <signal.h>
#include <sys/resource.h>
#include <unistd.h>

namespace nccl_ha {

void prepare_thread(const char* name) {
  sigset_t all;
  sigfillset(&all);
  pthread_sigmask(SIG_SETMASK, &all, nullptr);
  pthread_setname_np(pthread_self(), name);
}

void give_precedence() {
  constexpr int niceness = 10;  // a weight of 110, where that of 0 is 1024: sched(7)
  setpriority(PRIO_PROCESS, static_cast<id_t>(gettid()), niceness);  // Linux: of a thread
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

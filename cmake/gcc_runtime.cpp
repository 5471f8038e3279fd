// What GCC's own libraries, linked into the plugin and into nccl-ha, take from where they run:
// functions of newer C libraries than the oldest we support (GLIBC_2.34), memory at load, and the
// process itself where a thread's first exception finds no memory.
//
// libstdc++ and libgcc come as archives made for the C library of the build host and refer to what
// is new there. Definitions of our own take the place of those functions; they are hidden, so that
// nobody else meets them. Programs of the tests use the shared libraries.
#include <dlfcn.h>
#include <link.h>
#include <sys/random.h>

#include <cerrno>
#include <cstdint>
#include <cstdlib>

namespace __gnu_cxx {
/// Frees the pool from which libstdc++ takes exceptions when memory is out.
void __freeres();
}  // namespace __gnu_cxx

namespace {

// The pool is 72 KiB that libstdc++ allocates at load and leaves to the end of the process. The
// lowest priority that is not reserved comes after all other destructors of this library.
[[gnu::destructor(101)]] void free_exception_pool() { __gnu_cxx::__freeres(); }

/// What is kept of a thread's exceptions (Itanium C++ ABI: Exception Handling, 2.2.2).
struct ExceptionGlobals {
  void* caught = nullptr;
  unsigned int uncaught = 0;
};

// A part of each thread. libstdc++ has it where the C library makes room at a thread's first
// exception, and ends the process if that exception is that there is no memory.
[[gnu::tls_model("initial-exec")]] thread_local ExceptionGlobals exception_globals;

#ifdef DLFO_STRUCT_HAS_EH_DBASE

struct Search {
  ElfW(Addr) address;
  dl_find_object* result;
};

int look_into(dl_phdr_info* object, size_t, void* context) {
  auto* search = static_cast<Search*>(context);
  bool holds = false;
  const ElfW(Phdr)* unwind = nullptr;
  for (int i = 0; i < object->dlpi_phnum; ++i) {
    const ElfW(Phdr)& segment = object->dlpi_phdr[i];
    const ElfW(Addr) begin = object->dlpi_addr + segment.p_vaddr;
    if (segment.p_type == PT_LOAD && search->address - begin < segment.p_memsz) {
      holds = true;
      search->result->dlfo_map_start = reinterpret_cast<void*>(begin);
      search->result->dlfo_map_end = reinterpret_cast<void*>(begin + segment.p_memsz);
    } else if (segment.p_type == PT_GNU_EH_FRAME) {
      unwind = &segment;
    }
  }
  if (!holds || unwind == nullptr) {
    return holds ? -1 : 0;
  }
  search->result->dlfo_eh_frame = reinterpret_cast<void*>(object->dlpi_addr + unwind->p_vaddr);
  return 1;
}

#endif

}  // namespace

extern "C" {

[[gnu::visibility("hidden"), gnu::used]] void* __cxa_get_globals() noexcept {
  return &exception_globals;
}
[[gnu::visibility("hidden"), gnu::used]] void* __cxa_get_globals_fast() noexcept {
  return &exception_globals;
}

#ifdef DLFO_STRUCT_HAS_EH_DBASE
/// GLIBC_2.35, for libgcc's unwinder: the object that `address` lies in. It only asks for
/// dlfo_eh_frame.
[[gnu::visibility("hidden"), gnu::used]] int _dl_find_object(void* address,
                                                             dl_find_object* result) noexcept {
  *result = {};
  Search search{reinterpret_cast<ElfW(Addr)>(address), result};
  return dl_iterate_phdr(look_into, &search) == 1 ? 0 : -1;
}
#endif

/// GLIBC_2.36, for std::random_device, which nothing here uses.
[[gnu::visibility("hidden"), gnu::used]] uint32_t arc4random() noexcept {
  uint32_t value = 0;
  size_t have = 0;
  while (have < sizeof value) {
    const ssize_t got =
        getrandom(reinterpret_cast<unsigned char*>(&value) + have, sizeof value - have, 0);
    if (got < 0 && errno != EINTR) {
      std::abort();  // as the C library's does: there is no way to say that there is none
    }
    have += got > 0 ? static_cast<size_t>(got) : 0;
  }
  return value;
}

}  // extern "C"

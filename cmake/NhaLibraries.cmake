# Third-party code. The plugin is loaded into processes that carry their own copies of libuv and
# libfmt, so ours are linked statically.

find_package(Threads REQUIRED)

function(nha_require value what package)
  if(NOT ${value})
    message(FATAL_ERROR "${what} not found. Install the package ${package}, or run tools/setup.")
  endif()
endfunction()

# GCC's own libraries become part of the library or program: they need no newer ones where they run.
function(nha_own_gcc_libraries target)
  if(NOT NHA_SANITIZE)
    target_link_options(${target} PRIVATE -static-libstdc++ -static-libgcc)
    target_sources(${target} PRIVATE ${CMAKE_SOURCE_DIR}/cmake/gcc_runtime.cpp)
  endif()
endfunction()

find_path(NHA_LIBUV_INCLUDE uv.h)
find_library(NHA_LIBUV_ARCHIVE NAMES libuv_a.a libuv.a)
nha_require(NHA_LIBUV_INCLUDE "uv.h" libuv1-dev)
nha_require(NHA_LIBUV_ARCHIVE "libuv_a.a (static libuv)" libuv1-dev)
# Debian compiles the archive for programs. It also fits into a shared library but for one thing: it
# refers to four variables of the C library as if they lay in the same file. A copy of the archive
# refers to variables of ours instead, and to functions of ours for what has to do with descriptors
# (cmake/libuv_globals.cpp).
set(libuv_archive ${CMAKE_BINARY_DIR}/archive/libuv_for_nha.a)
add_custom_command(OUTPUT ${libuv_archive}
  COMMAND ${CMAKE_COMMAND} -E make_directory ${CMAKE_BINARY_DIR}/archive
  COMMAND ${CMAKE_OBJCOPY} --redefine-sym environ=nha_uv_environ
          --redefine-sym __environ=nha_uv_environ_too
          --redefine-sym stderr=nha_uv_stderr
          --redefine-sym in6addr_any=nha_uv_in6addr_any
          --redefine-sym socket=nha_uv_socket --redefine-sym pipe2=nha_uv_pipe2
          --redefine-sym epoll_create1=nha_uv_epoll_create1 --redefine-sym eventfd=nha_uv_eventfd
          --redefine-sym open64=nha_uv_open64 --redefine-sym __open64_2=nha_uv_open64_2
          --redefine-sym syscall=nha_uv_syscall
          --redefine-sym pthread_atfork=nha_uv_pthread_atfork
          ${NHA_LIBUV_ARCHIVE} ${libuv_archive}
  DEPENDS ${NHA_LIBUV_ARCHIVE} VERBATIM)
add_custom_target(nha_libuv_archive DEPENDS ${libuv_archive})
add_library(nha_libuv STATIC ${CMAKE_SOURCE_DIR}/cmake/libuv_globals.cpp)
add_dependencies(nha_libuv nha_libuv_archive)
target_include_directories(nha_libuv SYSTEM INTERFACE ${NHA_LIBUV_INCLUDE})
target_include_directories(nha_libuv PRIVATE ${CMAKE_SOURCE_DIR})
target_link_libraries(nha_libuv INTERFACE ${libuv_archive} $<TARGET_FILE:nha_libuv>
                      Threads::Threads ${CMAKE_DL_LIBS})

find_path(NHA_CONCURRENTQUEUE_INCLUDE concurrentqueue/concurrentqueue.h)
nha_require(NHA_CONCURRENTQUEUE_INCLUDE "concurrentqueue/concurrentqueue.h" libconcurrentqueue-dev)
add_library(nha_concurrentqueue INTERFACE)
target_include_directories(nha_concurrentqueue SYSTEM INTERFACE ${NHA_CONCURRENTQUEUE_INCLUDE})

find_path(NHA_FMT_INCLUDE fmt/format.h)
nha_require(NHA_FMT_INCLUDE "fmt/format.h" libfmt-dev)
add_library(nha_fmt STATIC ${CMAKE_SOURCE_DIR}/cmake/fmt_functions.cpp)
target_include_directories(nha_fmt SYSTEM PUBLIC ${NHA_FMT_INCLUDE})

# Headers only: the library itself is opened at run time, where there is one.
find_path(NHA_VERBS_INCLUDE infiniband/verbs.h)
nha_require(NHA_VERBS_INCLUDE "infiniband/verbs.h" libibverbs-dev)
add_library(nha_verbs INTERFACE)
target_include_directories(nha_verbs SYSTEM INTERFACE ${NHA_VERBS_INCLUDE})

# Cryptography: linked statically, as the plugin's process may carry its own copy. The archive is
# compiled for programs, but refers to nothing that would tell.
find_path(NHA_SODIUM_INCLUDE sodium.h)
find_library(NHA_SODIUM_ARCHIVE NAMES libsodium.a)
nha_require(NHA_SODIUM_INCLUDE "sodium.h" libsodium-dev)
nha_require(NHA_SODIUM_ARCHIVE "libsodium.a (static libsodium)" libsodium-dev)
add_library(nha_sodium INTERFACE)
target_include_directories(nha_sodium SYSTEM INTERFACE ${NHA_SODIUM_INCLUDE})
target_link_libraries(nha_sodium INTERFACE ${NHA_SODIUM_ARCHIVE})

if(NOT NHA_FUZZ)
  find_path(NHA_CLI11_INCLUDE CLI/CLI.hpp)
  nha_require(NHA_CLI11_INCLUDE "CLI/CLI.hpp" libcli11-dev)
  find_path(NHA_JSON_INCLUDE nlohmann/json.hpp)
  nha_require(NHA_JSON_INCLUDE "nlohmann/json.hpp" nlohmann-json3-dev)
  # Linked statically, so that the tool runs where only the kernel is (guests, containers).
  find_path(NHA_NETLINK_INCLUDE netlink/genl/genl.h PATH_SUFFIXES libnl3)
  find_library(NHA_NETLINK_ARCHIVE NAMES libnl-3.a)
  find_library(NHA_NETLINK_GENERIC_ARCHIVE NAMES libnl-genl-3.a)
  nha_require(NHA_NETLINK_INCLUDE "netlink/genl/genl.h" libnl-genl-3-dev)
  nha_require(NHA_NETLINK_ARCHIVE "libnl-3.a (static libnl)" libnl-3-dev)
  nha_require(NHA_NETLINK_GENERIC_ARCHIVE "libnl-genl-3.a (static libnl)" libnl-genl-3-dev)
  add_library(nha_agent_libraries INTERFACE)
  target_include_directories(nha_agent_libraries SYSTEM INTERFACE ${NHA_NETLINK_INCLUDE})
  target_link_libraries(nha_agent_libraries INTERFACE nha_sodium ${NHA_NETLINK_GENERIC_ARCHIVE}
                        ${NHA_NETLINK_ARCHIVE})
  add_library(nha_tool_libraries INTERFACE)
  target_include_directories(nha_tool_libraries SYSTEM
                             INTERFACE ${NHA_CLI11_INCLUDE} ${NHA_JSON_INCLUDE})
endif()

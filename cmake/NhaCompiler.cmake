# Warnings and sanitizers, for every target of the project.

add_compile_options(-Wall -Wextra -Wconversion -Wshadow -Wpedantic)
if(CMAKE_CXX_COMPILER_ID STREQUAL "GNU" AND CMAKE_CXX_COMPILER_VERSION VERSION_LESS 13)
  # With -O3, GCC 12 reports impossible copies inside its own std::string and std::vector (GCC bug
  # 105651 and its relatives).
  add_compile_options(-Wno-restrict -Wno-stringop-overread)
endif()

if(CMAKE_CXX_COMPILER_ID STREQUAL "GNU")
  # What runs for each message has a few fields to set and to count, one by one.  Packing two of them
  # into a vector register takes longer than setting them, and who reads one next has to wait.
  add_compile_options(-fno-tree-slp-vectorize)
endif()

if(CMAKE_BUILD_TYPE STREQUAL "Release")
  # Files are named from the top of the tree: the same bytes come out of every folder.
  add_compile_options(-ffile-prefix-map=${CMAKE_SOURCE_DIR}/=)

  # What makes a mistake in memory the end of the process instead of somebody's way in
  # (tests/style/hardening_test.py). tests/CMakeLists.txt takes back what needs optimisation.
  include(CheckCXXSourceCompiles)
  set(CMAKE_REQUIRED_FLAGS "-O1 -U_FORTIFY_SOURCE -D_FORTIFY_SOURCE=3")
  check_cxx_source_compiles("#include <features.h>
static_assert(__USE_FORTIFY_LEVEL == 3);
int main() {}" NHA_FORTIFY_3)
  unset(CMAKE_REQUIRED_FLAGS)
  set(fortify 2)
  if(NHA_FORTIFY_3)
    set(fortify 3)
  endif()
  add_compile_options(-fstack-protector-strong -U_FORTIFY_SOURCE -D_FORTIFY_SOURCE=${fortify})
  if(CMAKE_SYSTEM_PROCESSOR STREQUAL "x86_64")
    add_compile_options(-fcf-protection)
  elseif(CMAKE_SYSTEM_PROCESSOR MATCHES "aarch64|arm64")
    add_compile_options(-mbranch-protection=standard)
  endif()
endif()

include_directories(${CMAKE_SOURCE_DIR})
add_compile_definitions(NHA_VERSION="${PROJECT_VERSION}")

if(NHA_SANITIZE)
  add_compile_options(-fsanitize=${NHA_SANITIZE} -fno-omit-frame-pointer -fno-sanitize-recover=all)
  add_link_options(-fsanitize=${NHA_SANITIZE})
  if(NHA_SANITIZE MATCHES "address")
    # Its tables of places in the source hold millions of addresses, which a program that may lie
    # anywhere relocates each time it starts, for half a second.  The unit tests read their own
    # file as a shared object.
    add_link_options($<$<AND:$<STREQUAL:$<TARGET_PROPERTY:TYPE>,EXECUTABLE>,$<NOT:$<STREQUAL:$<TARGET_PROPERTY:NAME>,nha_unit_tests>>>:-no-pie>)
  endif()
  add_compile_definitions(NHA_DEBUG_CHECKS)
  if(CMAKE_CXX_COMPILER_ID STREQUAL "GNU")
    # The instrumentation hides initialisations from the flow analysis and yields false reports.
    add_compile_options(-Wno-maybe-uninitialized)
  endif()
endif()

# The layers call each other for every message: a call into another file is one that the compiler
# should see through.
if(CMAKE_BUILD_TYPE STREQUAL "Release" AND CMAKE_CXX_COMPILER_ID STREQUAL "GNU" AND NOT NHA_SANITIZE)
  set(NHA_LINK_TIME_OPTIMIZATION ON)
  # But for the plugin: for each test it would take a quarter of a minute.
  add_link_options($<$<NOT:$<STREQUAL:$<TARGET_PROPERTY:NAME>,nccl-net-ha>>:-fno-lto>)
endif()

# Options every sanitizer run needs; tests/CMakeLists.txt puts them into each test's environment.
if(NHA_SANITIZE MATCHES "thread")
  set(NHA_TEST_ENVIRONMENT "TSAN_OPTIONS=halt_on_error=1:second_deadlock_stack=1:suppressions=${CMAKE_SOURCE_DIR}/tests/support/tsan.supp")
elseif(NHA_SANITIZE MATCHES "address")
  set(NHA_TEST_ENVIRONMENT "ASAN_OPTIONS=detect_leaks=1:detect_stack_use_after_return=1")
endif()

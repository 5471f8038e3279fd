# Cross-build for arm64 with Debian's compiler; libraries from the folder that tools/dev/arm64_root makes.
# What is built runs by qemu-aarch64-static, tests too.
set(CMAKE_SYSTEM_NAME Linux)
set(CMAKE_SYSTEM_PROCESSOR aarch64)
set(CMAKE_C_COMPILER aarch64-linux-gnu-gcc)
set(CMAKE_CXX_COMPILER aarch64-linux-gnu-g++)
set(CMAKE_LIBRARY_ARCHITECTURE aarch64-linux-gnu)

set(NHA_ARM64_ROOT "${CMAKE_CURRENT_LIST_DIR}/../build/arm64-root" CACHE PATH "Libraries for arm64")
list(APPEND CMAKE_TRY_COMPILE_PLATFORM_VARIABLES NHA_ARM64_ROOT)
set(CMAKE_FIND_ROOT_PATH "${NHA_ARM64_ROOT}" /usr/aarch64-linux-gnu)
set(CMAKE_FIND_ROOT_PATH_MODE_LIBRARY ONLY)
set(CMAKE_FIND_ROOT_PATH_MODE_INCLUDE ONLY)
set(CMAKE_FIND_ROOT_PATH_MODE_PACKAGE ONLY)
set(CMAKE_FIND_ROOT_PATH_MODE_PROGRAM NEVER)
set(CMAKE_CROSSCOMPILING_EMULATOR qemu-aarch64-static -L /usr/aarch64-linux-gnu -E
    "LD_LIBRARY_PATH=${NHA_ARM64_ROOT}/usr/lib/aarch64-linux-gnu")

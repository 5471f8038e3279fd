# Which commit and which day a build is of. -DNHA_COMMIT and SOURCE_DATE_EPOCH say it where there is no
# repository (an archive, a package); the same of both gives the same bytes.

set(NHA_COMMIT "" CACHE STRING "Commit that the sources are of; empty: git is asked")
find_package(Git QUIET)

function(nha_git out)
  set(${out} "" PARENT_SCOPE)
  if(NOT GIT_FOUND OR NOT EXISTS ${CMAKE_SOURCE_DIR}/.git)
    return()
  endif()
  execute_process(COMMAND ${GIT_EXECUTABLE} -c safe.directory=* ${ARGN}
                  WORKING_DIRECTORY ${CMAKE_SOURCE_DIR} RESULT_VARIABLE status
                  OUTPUT_VARIABLE text ERROR_QUIET OUTPUT_STRIP_TRAILING_WHITESPACE)
  if(status EQUAL 0)
    set(${out} "${text}" PARENT_SCOPE)
  endif()
endfunction()

set(nha_commit "${NHA_COMMIT}")
if(NOT nha_commit)
  nha_git(nha_commit rev-parse --short=12 HEAD)
  nha_git(changed status --porcelain --untracked-files=no)
  if(nha_commit AND changed)
    string(APPEND nha_commit "+")
  endif()
endif()
if(NOT nha_commit)
  set(nha_commit unknown)
endif()

# Of man pages and packages.
if(DEFINED ENV{SOURCE_DATE_EPOCH})
  string(TIMESTAMP NHA_DATE "%Y-%m-%d" UTC)  # CMake heeds SOURCE_DATE_EPOCH
else()
  nha_git(NHA_DATE log -1 --format=%cs)
  if(NOT NHA_DATE)
    string(TIMESTAMP NHA_DATE "%Y-%m-%d" UTC)
  endif()
endif()

# A pull, a commit or a checkout configures anew with the next build.
nha_git(nha_log rev-parse --git-path logs/HEAD)
if(nha_log)
  get_filename_component(nha_log "${nha_log}" ABSOLUTE BASE_DIR ${CMAKE_SOURCE_DIR})
  if(EXISTS "${nha_log}")
    set_property(DIRECTORY APPEND PROPERTY CMAKE_CONFIGURE_DEPENDS "${nha_log}")
  endif()
endif()

set(NHA_COMMIT_SOURCE ${CMAKE_BINARY_DIR}/version_commit.cpp)
file(CONFIGURE OUTPUT ${NHA_COMMIT_SOURCE} @ONLY CONTENT [=[
#include "runtime/base/version.h"
namespace nccl_ha {
const char* version_commit() { return "@nha_commit@"; }
}  // namespace nccl_ha
]=])
# The linker takes this function and leaves that of nha_runtime where it is.
add_library(nha_version OBJECT ${NHA_COMMIT_SOURCE})
target_include_directories(nha_version PRIVATE ${CMAKE_SOURCE_DIR})
set_source_files_properties(${CMAKE_SOURCE_DIR}/runtime/base/version.cpp
                            ${CMAKE_SOURCE_DIR}/runtime/base/version_commit.cpp PROPERTIES
                            SKIP_UNITY_BUILD_INCLUSION ON)

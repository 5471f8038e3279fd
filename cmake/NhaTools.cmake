# The program nccl-ha. All but its main() is a library, so that unit tests reach the parts.

file(GLOB tool_sources CONFIGURE_DEPENDS ${CMAKE_SOURCE_DIR}/tools/*.cpp
     ${CMAKE_SOURCE_DIR}/tools/*/*.cpp)
set(tool_main ${CMAKE_SOURCE_DIR}/tools/main.cpp)
set(tool_parts ${tool_sources})
list(REMOVE_ITEM tool_parts ${tool_main})

# Only the payload's filling and checking is worth the time that optimisation takes.
# Two libraries rather than options of single sources: such sources are left out of unity builds.
set(tool_hot ${tool_parts})
list(FILTER tool_hot INCLUDE REGEX "/perf/(pattern|transfer|latency)\\.cpp$")
set(tool_cold ${tool_parts})
list(REMOVE_ITEM tool_cold ${tool_hot})

# The page that the agent serves is compiled in.
set(page ${CMAKE_SOURCE_DIR}/tools/agent/page.html)
set_property(DIRECTORY APPEND PROPERTY CMAKE_CONFIGURE_DEPENDS ${page})
file(READ ${page} NHA_AGENT_PAGE)
set(page_source ${CMAKE_BINARY_DIR}/agent_page.cpp)
file(CONFIGURE OUTPUT ${page_source} @ONLY CONTENT [=[
#include "tools/agent/page.h"
namespace nccl_ha::tools {
const char* agent_page() {
  return R"nha_page(@NHA_AGENT_PAGE@)nha_page";
}
}  // namespace nccl_ha::tools
]=])
list(APPEND tool_cold ${page_source})

# What several commands and the tests' support use is a library of its own: a build of suites that no command
# takes part in needs no more.
set(tool_base ${tool_cold})
list(FILTER tool_base INCLUDE REGEX "/tools/(common|trace)/")
list(REMOVE_ITEM tool_cold ${tool_base})

add_library(nha_tool_engines STATIC ${tool_hot})
add_library(nha_tool_base STATIC ${tool_base})
add_library(nha_tools STATIC ${tool_cold})
# Times and counts in a damaged or hostile dump may be anything: sums of them say nothing, and wrap.
foreach(library IN ITEMS nha_tool_base nha_tools)
  target_compile_options(${library} PRIVATE $<$<CONFIG:Release>:-O1> -fwrapv)
  # What reads files, messages and pages; the data path, which the plugin shares, goes without.
  target_compile_definitions(${library} PRIVATE $<$<CONFIG:Release>:_GLIBCXX_ASSERTIONS>)
endforeach()
# CLI11 and the JSON library are headers only, and compiling what is used of them takes most of the
# time: where several sources are compiled as one, those that use the same are together.
set_target_properties(nha_tool_base nha_tools PROPERTIES UNITY_BUILD_MODE GROUP)
foreach(source IN LISTS tool_base tool_cold)
  file(STRINGS ${source} command_line REGEX "^#include <CLI/" LIMIT_COUNT 1)
  file(STRINGS ${source} json REGEX "^#include <nlohmann/|perf/message\\.h" LIMIT_COUNT 1)
  if(command_line)
    set(group command_line)
  elseif(json)
    set(group json)
  elseif(source MATCHES "/tools/perf/")
    set(group perf)
  else()
    set(group plain)
  endif()
  set_source_files_properties(${source} PROPERTIES UNITY_GROUP ${group})
endforeach()
target_link_libraries(nha_tool_engines PUBLIC nha_tools)
target_link_libraries(nha_tool_base PUBLIC nha_tool_libraries nha_plugin nha_relay nha_actors nha_ha nha_runtime)
target_link_libraries(nha_tools PUBLIC nha_tool_engines nha_tool_base nha_agent_libraries)
# How the program finds the plugin that is installed with it (tools/common/plugin_search.h).
file(RELATIVE_PATH libraries_from_program ${CMAKE_INSTALL_FULL_BINDIR} ${CMAKE_INSTALL_FULL_LIBDIR})
set(multiarch "")
if(CMAKE_LIBRARY_ARCHITECTURE)
  set(multiarch ../lib/${CMAKE_LIBRARY_ARCHITECTURE})
endif()
target_compile_definitions(nha_tool_base PRIVATE
  NHA_LIBRARIES_FROM_PROGRAM="${libraries_from_program}" NHA_MULTIARCH="${multiarch}")

if(tool_main IN_LIST tool_sources)
  add_executable(nccl-ha ${tool_main})
  target_link_libraries(nccl-ha PRIVATE nha_version nha_tools)
  target_link_options(nccl-ha PRIVATE LINKER:-z,relro LINKER:-z,now $<$<CONFIG:Release>:-pie>)
  nha_own_gcc_libraries(nccl-ha)
  install(TARGETS nccl-ha RUNTIME DESTINATION ${CMAKE_INSTALL_BINDIR} COMPONENT tools)
else()
  message(STATUS "tools/main.cpp is missing: nccl-ha is not built")
endif()

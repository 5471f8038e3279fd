# The program nccl-ha. All but its main() is a library, so that unit tests reach the parts.

file(GLOB tool_sources CONFIGURE_DEPENDS ${CMAKE_SOURCE_DIR}/tools/*.cpp
     ${CMAKE_SOURCE_DIR}/tools/lab/*.cpp ${CMAKE_SOURCE_DIR}/tools/sim/*.cpp)
set(tool_main ${CMAKE_SOURCE_DIR}/tools/main.cpp)
set(tool_parts ${tool_sources})
list(REMOVE_ITEM tool_parts ${tool_main})

set(tool_link nha_tool_libraries nha_plugin nha_relay nha_actors nha_ha nha_runtime)
if(tool_parts)
  add_library(nha_tools STATIC ${tool_parts})
  target_link_libraries(nha_tools PUBLIC ${tool_link})
  # Only the payload's filling and checking and simulations are worth the time that optimisation
  # takes.
  set(tool_hot ${tool_parts})
  list(FILTER tool_hot INCLUDE REGEX "/(perf_(pattern|transfer|latency)|sim/.*)\\.cpp$")
  set(tool_cold ${tool_parts})
  list(REMOVE_ITEM tool_cold ${tool_hot})
  set_source_files_properties(${tool_cold} PROPERTIES COMPILE_OPTIONS "$<$<CONFIG:Release>:-O1>")
else()
  add_library(nha_tools INTERFACE)
  target_link_libraries(nha_tools INTERFACE ${tool_link})
endif()

if(tool_main IN_LIST tool_sources)
  add_executable(nccl-ha ${tool_main})
  target_link_libraries(nccl-ha PRIVATE nha_tools)
  install(TARGETS nccl-ha RUNTIME DESTINATION ${CMAKE_INSTALL_BINDIR})
else()
  message(STATUS "tools/main.cpp is missing: nccl-ha is not built")
endif()

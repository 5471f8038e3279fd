# libnccl-net-ha.so: what NCCL loads. It needs nothing at load time but the C library, and shows
# nothing but NCCL's entry points.

get_target_property(plugin_kind nha_plugin TYPE)
if(plugin_kind STREQUAL "STATIC_LIBRARY")
  set(exports ${CMAKE_SOURCE_DIR}/plugin/exports.map)
  file(GENERATE OUTPUT ${CMAKE_BINARY_DIR}/plugin_anchor.cpp
       CONTENT "// A shared library needs a source of its own; the code comes from nha_plugin.\n")
  add_library(nccl-net-ha SHARED ${CMAKE_BINARY_DIR}/plugin_anchor.cpp)
  set_target_properties(nccl-net-ha PROPERTIES NO_SONAME ON LINK_DEPENDS ${exports})
  target_link_libraries(nccl-net-ha PRIVATE $<LINK_LIBRARY:WHOLE_ARCHIVE,nha_plugin>)
  target_link_options(nccl-net-ha PRIVATE
    LINKER:--version-script=${exports} LINKER:-z,defs LINKER:--exclude-libs,ALL
    LINKER:--gc-sections LINKER:-z,now)
  if(NOT NHA_SANITIZE)
    target_link_options(nccl-net-ha PRIVATE -static-libstdc++ -static-libgcc)
  endif()
  install(TARGETS nccl-net-ha LIBRARY DESTINATION ${CMAKE_INSTALL_LIBDIR})
else()
  message(STATUS "plugin/ has no sources: libnccl-net-ha.so is not built")
endif()

# libnccl-net-ha.so: what NCCL loads. It needs nothing at load time but the C library, and shows
# nothing but NCCL's entry points.

get_target_property(plugin_kind nha_plugin TYPE)
if(plugin_kind STREQUAL "STATIC_LIBRARY")
  set(exports ${CMAKE_SOURCE_DIR}/plugin/exports.map)
  # The objects of plugin/ themselves, not its archive: symbols out of archives are all hidden.
  add_library(nccl-net-ha SHARED $<TARGET_OBJECTS:nha_plugin>)
  set_target_properties(nccl-net-ha PROPERTIES LINKER_LANGUAGE CXX NO_SONAME ON
                        LINK_DEPENDS ${exports})
  target_link_libraries(nccl-net-ha PRIVATE nha_version nha_relay nha_actors nha_ha nha_runtime)
  target_link_options(nccl-net-ha PRIVATE
    LINKER:--version-script=${exports} LINKER:-z,defs LINKER:--exclude-libs,ALL
    LINKER:-z,relro LINKER:-z,now)
  if(NHA_LINK_TIME_OPTIMIZATION)
    target_link_options(nccl-net-ha PRIVATE -flto=auto)
  endif()
  nha_own_gcc_libraries(nccl-net-ha)
  # RCCL looks for it by a prefix of its own. The link is relative, so it moves with the library.
  file(MAKE_DIRECTORY ${CMAKE_LIBRARY_OUTPUT_DIRECTORY})
  file(CREATE_LINK libnccl-net-ha.so ${CMAKE_LIBRARY_OUTPUT_DIRECTORY}/librccl-net-ha.so SYMBOLIC)
  install(TARGETS nccl-net-ha LIBRARY DESTINATION ${CMAKE_INSTALL_LIBDIR} COMPONENT plugin)
  install(FILES ${CMAKE_LIBRARY_OUTPUT_DIRECTORY}/librccl-net-ha.so
          DESTINATION ${CMAKE_INSTALL_LIBDIR} COMPONENT plugin)
else()
  message(STATUS "plugin/ has no sources: libnccl-net-ha.so is not built")
endif()

# What `cmake --install` lays down beside the library and the program. Components: plugin, tools, agent,
# relay and dev, each a package (cmake/NhaPackage.cmake).

file(GLOB man_pages CONFIGURE_DEPENDS ${CMAKE_SOURCE_DIR}/tools/man/*.[17])
foreach(page IN LISTS man_pages)
  cmake_path(GET page FILENAME name)
  cmake_path(GET page EXTENSION LAST_ONLY section)
  string(SUBSTRING ${section} 1 1 section)
  configure_file(${page} ${CMAKE_BINARY_DIR}/man/${name} @ONLY)  # version and date
  install(FILES ${CMAKE_BINARY_DIR}/man/${name}
          DESTINATION ${CMAKE_INSTALL_MANDIR}/man${section} COMPONENT tools)
endforeach()
install(FILES ${CMAKE_SOURCE_DIR}/tools/completion/nccl-ha.bash
        DESTINATION ${CMAKE_INSTALL_DATADIR}/bash-completion/completions RENAME nccl-ha
        COMPONENT tools)
install(FILES ${CMAKE_SOURCE_DIR}/tools/completion/_nccl-ha
        DESTINATION ${CMAKE_INSTALL_DATADIR}/zsh/site-functions COMPONENT tools)
install(FILES ${CMAKE_SOURCE_DIR}/tools/completion/nccl-ha.fish
        DESTINATION ${CMAKE_INSTALL_DATADIR}/fish/vendor_completions.d COMPONENT tools)
install(FILES ${CMAKE_SOURCE_DIR}/README.md ${CMAKE_SOURCE_DIR}/LICENSE
              ${CMAKE_SOURCE_DIR}/SECURITY.md ${CMAKE_SOURCE_DIR}/CONTRIBUTING.md
              ${CMAKE_SOURCE_DIR}/CHANGELOG.md
        DESTINATION ${CMAKE_INSTALL_DATADIR}/doc/nccl-ha COMPONENT tools)
# Pages for those who use and operate it, with pictures, are the program's; the index says which are
# for developers.
set_property(DIRECTORY APPEND PROPERTY CMAKE_CONFIGURE_DEPENDS ${CMAKE_SOURCE_DIR}/docs/README.md)
file(READ ${CMAKE_SOURCE_DIR}/docs/README.md index)
string(FIND "${index}" "\n## Develop" develop)
string(SUBSTRING "${index}" ${develop} -1 index)
file(GLOB pages CONFIGURE_DEPENDS ${CMAKE_SOURCE_DIR}/docs/*.md ${CMAKE_SOURCE_DIR}/docs/*.json
     ${CMAKE_SOURCE_DIR}/docs/*.yml ${CMAKE_SOURCE_DIR}/docs/*.png)
foreach(page IN LISTS pages)
  cmake_path(GET page FILENAME name)
  string(FIND "${index}" "](${name})" for_developers)
  set(component tools)
  if(NOT for_developers EQUAL -1)
    set(component dev)
  endif()
  install(FILES ${page} DESTINATION ${CMAKE_INSTALL_DATADIR}/doc/nccl-ha/docs COMPONENT ${component})
endforeach()
file(GLOB docs_pictures CONFIGURE_DEPENDS ${CMAKE_SOURCE_DIR}/docs/pictures/*.svg)
install(FILES ${docs_pictures} DESTINATION ${CMAKE_INSTALL_DATADIR}/doc/nccl-ha/docs/pictures
        COMPONENT tools)
foreach(service IN ITEMS agent relay)
  configure_file(${CMAKE_SOURCE_DIR}/tools/systemd/nccl-ha-${service}.service.in
                 ${CMAKE_BINARY_DIR}/nccl-ha-${service}.service @ONLY)
  install(FILES ${CMAKE_BINARY_DIR}/nccl-ha-${service}.service DESTINATION lib/systemd/system
          COMPONENT ${service})
  # The same user, in a file of each: one package may be there without the other.
  install(FILES ${CMAKE_SOURCE_DIR}/tools/systemd/nccl-ha.sysusers.conf
          DESTINATION lib/sysusers.d RENAME nccl-ha-${service}.conf COMPONENT ${service})
endforeach()

install(FILES ${CMAKE_SOURCE_DIR}/tools/package/90-nccl-ha.conf
        DESTINATION ${CMAKE_INSTALL_DATADIR}/doc/nccl-ha/examples COMPONENT tools)
configure_file(${CMAKE_SOURCE_DIR}/tools/package/nccl-ha.pc.in ${CMAKE_BINARY_DIR}/nccl-ha.pc @ONLY)
install(FILES ${CMAKE_BINARY_DIR}/nccl-ha.pc DESTINATION ${CMAKE_INSTALL_LIBDIR}/pkgconfig
        COMPONENT dev)
set(examples ${CMAKE_SOURCE_DIR}/tools/examples)
install(PROGRAMS ${examples}/slurm-prolog ${examples}/collect-image
        DESTINATION ${CMAKE_INSTALL_DATADIR}/doc/nccl-ha/examples COMPONENT tools)
install(FILES ${examples}/Containerfile ${examples}/Containerfile.pytorch
        DESTINATION ${CMAKE_INSTALL_DATADIR}/doc/nccl-ha/examples COMPONENT tools)
install(DIRECTORY ${examples}/kubernetes DESTINATION ${CMAKE_INSTALL_DATADIR}/doc/nccl-ha/examples
        COMPONENT tools)

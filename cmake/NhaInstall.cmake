# What `cmake --install` lays down beside the library and the program. Components: plugin, tools, and
# dev, which a host that only runs jobs does without (cmake/NhaPackage.cmake).

file(GLOB man_pages CONFIGURE_DEPENDS ${CMAKE_SOURCE_DIR}/tools/man/*.1)
foreach(page IN LISTS man_pages)
  cmake_path(GET page FILENAME name)
  configure_file(${page} ${CMAKE_BINARY_DIR}/man/${name} @ONLY)  # version and date
  install(FILES ${CMAKE_BINARY_DIR}/man/${name} DESTINATION ${CMAKE_INSTALL_MANDIR}/man1
          COMPONENT tools)
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
        DESTINATION ${CMAKE_INSTALL_DATADIR}/doc/nccl-ha COMPONENT tools)
file(GLOB user_docs CONFIGURE_DEPENDS ${CMAKE_SOURCE_DIR}/docs/*.md)
install(FILES ${user_docs} DESTINATION ${CMAKE_INSTALL_DATADIR}/doc/nccl-ha/docs
        COMPONENT dev)
file(GLOB docs_data CONFIGURE_DEPENDS ${CMAKE_SOURCE_DIR}/docs/*.json
     ${CMAKE_SOURCE_DIR}/docs/*.png)
install(FILES ${docs_data} DESTINATION ${CMAKE_INSTALL_DATADIR}/doc/nccl-ha/docs
        COMPONENT dev)
file(GLOB docs_pictures CONFIGURE_DEPENDS ${CMAKE_SOURCE_DIR}/docs/pictures/*.svg)
install(FILES ${docs_pictures} DESTINATION ${CMAKE_INSTALL_DATADIR}/doc/nccl-ha/docs/pictures
        COMPONENT dev)
foreach(service IN ITEMS nccl-ha-agent nccl-ha-relay)
  configure_file(${CMAKE_SOURCE_DIR}/tools/systemd/${service}.service.in
                 ${CMAKE_BINARY_DIR}/${service}.service @ONLY)
  install(FILES ${CMAKE_BINARY_DIR}/${service}.service DESTINATION lib/systemd/system
          COMPONENT tools)
endforeach()

install(FILES ${CMAKE_SOURCE_DIR}/tools/systemd/nccl-ha.sysusers.conf
        DESTINATION lib/sysusers.d RENAME nccl-ha.conf COMPONENT tools)
install(FILES ${CMAKE_SOURCE_DIR}/tools/package/90-nccl-ha.conf
        DESTINATION ${CMAKE_INSTALL_DATADIR}/doc/nccl-ha/examples COMPONENT tools)
configure_file(${CMAKE_SOURCE_DIR}/tools/package/nccl-ha.pc.in ${CMAKE_BINARY_DIR}/nccl-ha.pc @ONLY)
install(FILES ${CMAKE_BINARY_DIR}/nccl-ha.pc DESTINATION ${CMAKE_INSTALL_LIBDIR}/pkgconfig
        COMPONENT dev)
set(examples ${CMAKE_SOURCE_DIR}/tools/examples)
install(PROGRAMS ${examples}/slurm-prolog ${examples}/collect-image
        DESTINATION ${CMAKE_INSTALL_DATADIR}/doc/nccl-ha/examples COMPONENT tools)
install(FILES ${examples}/Containerfile ${examples}/kubernetes.yaml
        DESTINATION ${CMAKE_INSTALL_DATADIR}/doc/nccl-ha/examples COMPONENT tools)

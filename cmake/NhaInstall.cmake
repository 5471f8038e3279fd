# What `cmake --install` lays down beside the library and the program.

file(GLOB man_pages CONFIGURE_DEPENDS ${CMAKE_SOURCE_DIR}/tools/man/*.1)
install(FILES ${man_pages} DESTINATION ${CMAKE_INSTALL_MANDIR}/man1)
install(FILES ${CMAKE_SOURCE_DIR}/tools/completion/nccl-ha.bash
        DESTINATION ${CMAKE_INSTALL_DATADIR}/bash-completion/completions RENAME nccl-ha)
install(FILES ${CMAKE_SOURCE_DIR}/README.md ${CMAKE_SOURCE_DIR}/LICENSE
        DESTINATION ${CMAKE_INSTALL_DATADIR}/doc/nccl-ha)
file(GLOB user_docs CONFIGURE_DEPENDS ${CMAKE_SOURCE_DIR}/docs/*.md)
install(FILES ${user_docs} DESTINATION ${CMAKE_INSTALL_DATADIR}/doc/nccl-ha/docs)
file(GLOB docs_data CONFIGURE_DEPENDS ${CMAKE_SOURCE_DIR}/docs/*.json
     ${CMAKE_SOURCE_DIR}/docs/*.png)
install(FILES ${docs_data} DESTINATION ${CMAKE_INSTALL_DATADIR}/doc/nccl-ha/docs)
foreach(service IN ITEMS nccl-ha-agent nccl-ha-relay)
  configure_file(${CMAKE_SOURCE_DIR}/tools/systemd/${service}.service.in
                 ${CMAKE_BINARY_DIR}/${service}.service @ONLY)
  install(FILES ${CMAKE_BINARY_DIR}/${service}.service DESTINATION lib/systemd/system)
endforeach()

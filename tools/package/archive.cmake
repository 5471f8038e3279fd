# cpack runs this when packages are made: those of Debian's kind are archives whose members carry the mode
# that the umask of whoever builds gave them. They are archived again with none of the builder's marks.
if(NOT CPACK_GENERATOR STREQUAL "DEB")
  return()
endif()

set(folder ${CPACK_TEMPORARY_DIRECTORY}/members)
foreach(package IN LISTS CPACK_PACKAGE_FILES)
  file(REMOVE_RECURSE ${folder})
  file(MAKE_DIRECTORY ${folder})
  execute_process(COMMAND ${CPACK_NHA_AR} t ${package} OUTPUT_VARIABLE members COMMAND_ERROR_IS_FATAL ANY)
  string(REGEX MATCHALL "[^\n]+" members "${members}")
  execute_process(COMMAND ${CPACK_NHA_AR} x ${package} WORKING_DIRECTORY ${folder}
                  COMMAND_ERROR_IS_FATAL ANY)
  # q: in this order; D: no owner, time or mode of this machine; S: no table of symbols.
  execute_process(COMMAND ${CPACK_NHA_AR} qcDS package ${members} WORKING_DIRECTORY ${folder}
                  COMMAND_ERROR_IS_FATAL ANY)
  file(COPY_FILE ${folder}/package ${package})
endforeach()
file(REMOVE_RECURSE ${folder})

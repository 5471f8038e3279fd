# Tests of the source tree itself and of the install tree.
find_package(Python3 REQUIRED COMPONENTS Interpreter)
set(style_tests "")

function(nha_style_test name)
  add_test(NAME style.${name} COMMAND ${ARGN})
  set_tests_properties(style.${name} PROPERTIES LABELS style TIMEOUT 300 SKIP_RETURN_CODE 77)
endfunction()

set(tool_dir ${CMAKE_SOURCE_DIR}/tools/dev)
nha_style_test(layers ${Python3_EXECUTABLE} ${tool_dir}/check_layers.py)
nha_style_test(text ${Python3_EXECUTABLE} ${tool_dir}/tidy.py text)
nha_style_test(mutants ${Python3_EXECUTABLE} ${CMAKE_SOURCE_DIR}/tests/mutants/plant --check)
nha_style_test(format ${Python3_EXECUTABLE} ${tool_dir}/tidy.py format)
nha_style_test(headers ${Python3_EXECUTABLE} ${tool_dir}/tidy.py headers)
# Header by header: minutes, so it is part of the long suite.
set_tests_properties(style.headers PROPERTIES PROCESSORS 2 LABELS style_long TIMEOUT 600
                     ENVIRONMENT "CXX=${CMAKE_CXX_COMPILER}")
nha_style_test(checkers_find_planted_faults
               ${Python3_EXECUTABLE} ${CMAKE_CURRENT_LIST_DIR}/style_test.py)
nha_style_test(plant ${Python3_EXECUTABLE} ${CMAKE_CURRENT_LIST_DIR}/plant_test.py)
nha_style_test(named_tests ${Python3_EXECUTABLE} ${CMAKE_CURRENT_LIST_DIR}/named_tests_test.py)
nha_style_test(pages ${Python3_EXECUTABLE} ${CMAKE_CURRENT_LIST_DIR}/pages_test.py)
nha_style_test(release ${Python3_EXECUTABLE} ${CMAKE_CURRENT_LIST_DIR}/release_test.py
               ${CMAKE_SOURCE_DIR})
nha_style_test(version ${Python3_EXECUTABLE} ${CMAKE_CURRENT_LIST_DIR}/version_test.py ${CMAKE_COMMAND}
               ${CMAKE_SOURCE_DIR})
set_tests_properties(style.version PROPERTIES LABELS style_long)  # it configures a tree six times
if(TARGET nccl-ha AND TARGET nccl-net-ha)
  nha_style_test(install ${Python3_EXECUTABLE} ${CMAKE_CURRENT_LIST_DIR}/install_test.py
                 ${CMAKE_COMMAND} ${CMAKE_BINARY_DIR} ${CMAKE_INSTALL_LIBDIR})
  if(CMAKE_BUILD_TYPE STREQUAL "Release")
    nha_style_test(hardening ${Python3_EXECUTABLE} ${CMAKE_CURRENT_LIST_DIR}/hardening_test.py
                   $<TARGET_FILE:nccl-net-ha> $<TARGET_FILE:nccl-ha> ${CMAKE_ARCHIVE_OUTPUT_DIRECTORY})
  endif()
  nha_style_test(units ${Python3_EXECUTABLE} ${CMAKE_CURRENT_LIST_DIR}/units_test.py
                 ${CMAKE_BINARY_DIR}/nccl-ha-agent.service ${CMAKE_BINARY_DIR}/nccl-ha-relay.service)
  nha_style_test(completion ${Python3_EXECUTABLE} ${CMAKE_CURRENT_LIST_DIR}/completion_test.py
                 $<TARGET_FILE:nccl-ha> ${CMAKE_SOURCE_DIR}/tools/completion)
  nha_style_test(examples ${Python3_EXECUTABLE} ${CMAKE_CURRENT_LIST_DIR}/examples_test.py
                 ${CMAKE_SOURCE_DIR} $<TARGET_FILE:nccl-ha> $<TARGET_FILE:nccl-net-ha>)
  nha_style_test(packages ${Python3_EXECUTABLE} ${CMAKE_CURRENT_LIST_DIR}/package_test.py
                 ${CMAKE_CPACK_COMMAND} ${CMAKE_BINARY_DIR})
  # Packages are made four times: a minute.
  set_tests_properties(style.packages PROPERTIES LABELS style_long TIMEOUT 600 RESOURCE_LOCK packages)
  if(CMAKE_BUILD_TYPE STREQUAL "Release")
    nha_style_test(first_hour ${Python3_EXECUTABLE} ${CMAKE_CURRENT_LIST_DIR}/first_hour_test.py
                   ${CMAKE_CPACK_COMMAND} ${CMAKE_BINARY_DIR})
    set_tests_properties(style.first_hour PROPERTIES LABELS style_long TIMEOUT 600 PROCESSORS 2
                         RESOURCE_LOCK packages)
  endif()
endif()

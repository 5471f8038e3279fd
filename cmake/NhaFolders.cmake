# nha_add_folder(NAME [APART] SOURCES pattern... LINK library...)
# makes a static library of the sources that match, or an interface library while there are none,
# so that a folder of headers links the same way as one with code. APART: it is no part of the plugin.
function(nha_add_folder name)
  cmake_parse_arguments(PARSE_ARGV 1 folder "APART" "" "SOURCES;LINK")
  list(TRANSFORM folder_SOURCES PREPEND ${CMAKE_SOURCE_DIR}/)
  file(GLOB sources CONFIGURE_DEPENDS ${folder_SOURCES})
  if(sources)
    add_library(${name} STATIC ${sources})
    if(NHA_LINK_TIME_OPTIMIZATION AND NOT folder_APART)
      # Fat objects: the plugin is optimised as a whole when it is linked, tests and tools link as is.
      # To make one takes no longer than an object of the other kind does; the plugin's link takes as
      # long as half of them together. Two kinds of objects would be read and parsed twice.
      target_compile_options(${name} PRIVATE -flto=auto -ffat-lto-objects)
    endif()
    target_link_libraries(${name} PUBLIC ${folder_LINK})
  else()
    add_library(${name} INTERFACE)
    target_link_libraries(${name} INTERFACE ${folder_LINK})
  endif()
endfunction()

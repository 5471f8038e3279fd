# cpack runs this over the staged tree: it is laid out as the distribution has it.

set(root ${CPACK_TEMPORARY_DIRECTORY})
file(GLOB components LIST_DIRECTORIES true ${root}/*)

# Where libraries are.
if(CPACK_GENERATOR STREQUAL "RPM")
  set(libraries lib64)
elseif(CPACK_NHA_MULTIARCH)
  set(libraries lib/${CPACK_NHA_MULTIARCH})
else()
  set(libraries lib)
endif()

# Whatever umask whoever builds has, others may read what is installed.
set(readable OWNER_READ OWNER_WRITE GROUP_READ WORLD_READ)
set(searchable ${readable} OWNER_EXECUTE GROUP_EXECUTE WORLD_EXECUTE)

foreach(component IN LISTS components)
  set(usr ${component}/usr)
  # The link goes while what it leads to is there.
  foreach(what IN ITEMS librccl-net-ha.so libnccl-net-ha.so pkgconfig)
    set(from ${usr}/${CPACK_NHA_LIBDIR}/${what})
    set(to ${usr}/${libraries}/${what})
    if(EXISTS ${from} AND NOT from STREQUAL to)
      file(MAKE_DIRECTORY ${usr}/${libraries})
      file(RENAME ${from} ${to})
    endif()
  endforeach()
  # Folders that are empty now.
  foreach(folder IN ITEMS ${usr}/${CPACK_NHA_LIBDIR} ${usr}/lib)
    file(GLOB left ${folder}/*)
    if(EXISTS ${folder} AND NOT left)
      file(REMOVE_RECURSE ${folder})
    endif()
  endforeach()

  # Files that name where things are.
  file(GLOB named ${usr}/lib/systemd/system/*.service ${usr}/${libraries}/pkgconfig/*.pc)
  foreach(file IN LISTS named)
    file(READ ${file} text)
    string(REPLACE "${CPACK_NHA_PREFIX}/${CPACK_NHA_LIBDIR}" "/usr/${libraries}" text "${text}")
    string(REPLACE "${CPACK_NHA_PREFIX}/" "/usr/" text "${text}")
    string(REPLACE "prefix=${CPACK_NHA_PREFIX}\n" "prefix=/usr\n" text "${text}")
    file(WRITE ${file} "${text}")
  endforeach()

  file(GLOB pages ${usr}/share/man/man[17]/*.[17])
  foreach(page IN LISTS pages)
    execute_process(COMMAND gzip -n -9 -f ${page} COMMAND_ERROR_IS_FATAL ANY)
  endforeach()

  if(CPACK_GENERATOR STREQUAL "DEB")
    cmake_path(GET component FILENAME name)
    string(REGEX REPLACE "^plugin$" "libnccl-net-ha" package "${name}")
    string(REGEX REPLACE "^tools$" "nccl-ha" package "${package}")
    string(REGEX REPLACE "^(agent|relay|dev)$" "nccl-ha-\\1" package "${package}")
    set(doc ${usr}/share/doc/${package})
    file(MAKE_DIRECTORY ${doc})
    file(REMOVE ${usr}/share/doc/nccl-ha/LICENSE)
    string(SUBSTRING "${CPACK_NHA_DATE}" 0 4 year)
    file(WRITE ${doc}/copyright
"Format: https://www.debian.org/doc/packaging-manuals/copyright-format/1.0/
Upstream-Name: nccl-ha
Source: the archive or repository that this package was built from

Files: *
Copyright: ${year} the authors of nccl-ha
License: Apache-2.0

License: Apache-2.0
 On Debian systems the full text of the Apache License, version 2.0, is in
 /usr/share/common-licenses/Apache-2.0.
")
    set(day ${CPACK_NHA_DATE})
    execute_process(COMMAND date -u -R -d "${day} 00:00:00 UTC" OUTPUT_VARIABLE stamp
                    OUTPUT_STRIP_TRAILING_WHITESPACE COMMAND_ERROR_IS_FATAL ANY)
    file(WRITE ${doc}/changelog.Debian
"nccl-ha (${CPACK_PACKAGE_VERSION}-1) unstable; urgency=medium

  * Built from version ${CPACK_PACKAGE_VERSION}.

 -- ${CPACK_PACKAGE_CONTACT}  ${stamp}
")
    execute_process(COMMAND gzip -n -9 -f ${doc}/changelog.Debian COMMAND_ERROR_IS_FATAL ANY)
    if(EXISTS ${doc}/CHANGELOG.md)  # to which README.md leads; Debian's name for it is another one
      execute_process(COMMAND gzip -n -9 -c ${doc}/CHANGELOG.md OUTPUT_FILE ${doc}/changelog.gz
                      COMMAND_ERROR_IS_FATAL ANY)
    endif()
    set(overrides "# The changelog begins with this build, which closes no report.
${package}: initial-upload-closes-no-bugs *
")
    if(name STREQUAL "plugin")
      string(APPEND overrides
"# A plugin has no version in its name: NCCL opens libnccl-net-NAME.so by dlopen(); nothing is linked
# with it.
${package}: sharedobject-in-library-directory-missing-soname *
${package}: no-symbols-control-file *
${package}: package-name-doesnt-match-sonames *
# cpack adds the call where a library is in a folder of the loader's; it does no harm.
${package}: maintscript-calls-ldconfig *
# libuv, libstdc++ and others are linked in so that they do not meet the process's own.
${package}: embedded-library *
")
    endif()
    if(name MATCHES "^(agent|relay)$")
      string(APPEND overrides
"# The scripts are of packages of RPM's kind too, which have no deb-systemd-invoke.
${package}: maintainer-script-calls-systemctl *
")
    endif()
    set(lintian ${usr}/share/lintian/overrides/${package})
    file(WRITE ${lintian} "${overrides}")
    file(GLOB changes ${doc}/changelog.*)
    file(CHMOD ${doc}/copyright ${changes} ${lintian} PERMISSIONS ${readable})
  endif()
  file(CHMOD_RECURSE ${component} DIRECTORY_PERMISSIONS ${searchable})
endforeach()

# Packages of Debian's and of RPM's kind from the same rules: `cpack -G DEB`, `cpack -G RPM` in the
# build folder. With SOURCE_DATE_EPOCH set the same build gives the same bytes. A debian/ and a .spec
# would each list the files of each package and its texts once more.

set(CPACK_PACKAGE_NAME nccl-ha)
set(NHA_CANDIDATE "" CACHE STRING "Of a version to come: rc1 makes packages of 1.0.0~rc1")
set(CPACK_PACKAGE_VERSION ${PROJECT_VERSION})
if(NHA_CANDIDATE)
  string(APPEND CPACK_PACKAGE_VERSION "~${NHA_CANDIDATE}")  # both kinds sort it before the version
endif()
set(CPACK_PACKAGE_VENDOR "nccl-ha")
set(NHA_PACKAGE_CONTACT "nccl-ha maintainers <nccl-ha@users.noreply.github.com>" CACHE STRING
    "Who maintains the packages: NAME <ADDRESS>")
set(CPACK_PACKAGE_CONTACT "${NHA_PACKAGE_CONTACT}")
set(CPACK_PACKAGE_DESCRIPTION_SUMMARY "${PROJECT_DESCRIPTION}")
set(CPACK_RESOURCE_FILE_LICENSE ${CMAKE_SOURCE_DIR}/LICENSE)
set(CPACK_PACKAGING_INSTALL_PREFIX /usr)
set(CPACK_STRIP_FILES ON)
set(CPACK_GENERATOR DEB)
set(CPACK_COMPONENTS_ALL plugin tools agent relay dev)
set(CPACK_COMPONENTS_GROUPING IGNORE)
set(CPACK_PRE_BUILD_SCRIPTS ${CMAKE_SOURCE_DIR}/tools/package/stage.cmake)
set(CPACK_POST_BUILD_SCRIPTS ${CMAKE_SOURCE_DIR}/tools/package/archive.cmake)

set(plugin_text "network plugin for NCCL that survives faults of NICs, cables and relays
 NCCL loads it where NCCL_NET_PLUGIN=ha is set. It keeps jobs running when a
 path fails, uses two rails, and reaches hosts without a cable over others,
 with RDMA verbs or with datagrams over UDP.")
set(tools_text "network plugin for NCCL that survives faults, with its program
 The plugin comes with the package libnccl-net-ha. The program nccl-ha makes
 preflight checks of hosts and their network, shows counters and traces, and
 has benchmarks without a GPU and labs to try faults on. With its manual pages
 and the pages for those who use and operate it.")
set(agent_text "transport agent of nccl-ha, as a service
 It tells the jobs of a host how to split their data over two rails, by what
 switches report. This package has the unit for systemd and its user.")
set(relay_text "relay node of nccl-ha, as a service
 Hosts that are cabled without a switch reach each other through it. This
 package has the unit for systemd and its user.")
set(dev_text "documentation of nccl-ha for developers
 Architecture, protocol and testing of the network plugin, and a file for
 pkg-config.")

# Debian
set(CPACK_DEB_COMPONENT_INSTALL ON)
set(CPACK_DEBIAN_FILE_NAME DEB-DEFAULT)
set(CPACK_DEBIAN_PACKAGE_SECTION net)
set(CPACK_DEBIAN_PACKAGE_PRIORITY optional)
set(CPACK_DEBIAN_PACKAGE_SHLIBDEPS ON)
set(CPACK_DEBIAN_PACKAGE_RELEASE 1)
set(CPACK_DEBIAN_PACKAGE_CONTROL_STRICT_PERMISSION ON)
set(CPACK_DEBIAN_COMPRESSION_TYPE xz)
if(CMAKE_SYSTEM_PROCESSOR MATCHES "aarch64|arm64")
  set(CPACK_DEBIAN_PACKAGE_ARCHITECTURE arm64)
  set(CPACK_RPM_PACKAGE_ARCHITECTURE aarch64)
elseif(CMAKE_SYSTEM_PROCESSOR STREQUAL "x86_64")
  set(CPACK_DEBIAN_PACKAGE_ARCHITECTURE amd64)
endif()
if(NHA_ARM64_ROOT)
  # Which packages the libraries are of is asked there, not on this machine.
  file(REAL_PATH ${NHA_ARM64_ROOT} CPACK_NHA_ROOT)
  set(CPACK_PROJECT_CONFIG_FILE ${CMAKE_SOURCE_DIR}/tools/package/arm64.cmake)
  set(CPACK_DEBIAN_PACKAGE_SHLIBDEPS_PRIVATE_DIRS
      ${CPACK_NHA_ROOT}/lib/aarch64-linux-gnu ${CPACK_NHA_ROOT}/usr/lib/aarch64-linux-gnu)
endif()
set(CPACK_DEBIAN_PLUGIN_PACKAGE_NAME libnccl-net-ha)
set(CPACK_DEBIAN_PLUGIN_DESCRIPTION "${plugin_text}")
set(CPACK_DEBIAN_PLUGIN_PACKAGE_SECTION libs)
set(CPACK_DEBIAN_PLUGIN_PACKAGE_SUGGESTS "nccl-ha, libibverbs1, ibverbs-providers")
set(CPACK_DEBIAN_TOOLS_PACKAGE_NAME nccl-ha)
set(CPACK_DEBIAN_TOOLS_DESCRIPTION "${tools_text}")
set(CPACK_DEBIAN_TOOLS_PACKAGE_DEPENDS "libnccl-net-ha (= ${CPACK_PACKAGE_VERSION}-1)")
set(CPACK_DEBIAN_TOOLS_PACKAGE_RECOMMENDS "iproute2, nftables")
set(CPACK_DEBIAN_TOOLS_PACKAGE_REPLACES "nccl-ha-dev")  # which had the operators' pages
set(CPACK_DEBIAN_DEV_PACKAGE_NAME nccl-ha-dev)
set(CPACK_DEBIAN_DEV_DESCRIPTION "${dev_text}")
set(CPACK_DEBIAN_DEV_PACKAGE_SECTION doc)
set(CPACK_DEBIAN_DEV_PACKAGE_SHLIBDEPS OFF)

# RPM
set(CPACK_RPM_COMPONENT_INSTALL ON)
set(CPACK_RPM_FILE_NAME RPM-DEFAULT)
set(CPACK_RPM_PACKAGE_LICENSE "Apache-2.0")
set(CPACK_RPM_PACKAGE_RELEASE 1)
set(CPACK_RPM_PACKAGE_RELOCATABLE OFF)
set(CPACK_RPM_SPEC_MORE_DEFINE "%define use_source_date_epoch_as_buildtime 1
%define clamp_mtime_to_source_date_epoch 1
%define _buildhost nccl-ha
%define _build_id_links none
%define debug_package %{nil}
%define __brp_strip %{nil}")
set(CPACK_RPM_EXCLUDE_FROM_AUTO_FILELIST_ADDITION
    /usr/share/zsh /usr/share/zsh/site-functions /usr/share/fish /usr/share/fish/vendor_completions.d
    /usr/share/bash-completion /usr/share/bash-completion/completions /usr/share/man
    /usr/share/man/man1 /usr/share/man/man7 /usr/share/doc /usr/share/pkgconfig /usr/lib/systemd /usr/lib/systemd/system
    /usr/lib/sysusers.d
    /usr/lib64/pkgconfig)
set(CPACK_RPM_PLUGIN_PACKAGE_NAME libnccl-net-ha)
set(CPACK_RPM_TOOLS_PACKAGE_NAME nccl-ha)
set(CPACK_RPM_TOOLS_PACKAGE_REQUIRES "libnccl-net-ha = ${CPACK_PACKAGE_VERSION}-1")
set(CPACK_RPM_DEV_PACKAGE_NAME nccl-ha-devel)

# The services.
foreach(service IN ITEMS agent relay)
  string(TOUPPER ${service} component)
  set(scripts ${CMAKE_BINARY_DIR}/package/${service})
  foreach(script IN ITEMS postinst prerm)
    configure_file(${CMAKE_SOURCE_DIR}/tools/package/${script}.in ${scripts}/${script} @ONLY)
  endforeach()
  set(CPACK_DEBIAN_${component}_PACKAGE_NAME nccl-ha-${service})
  set(CPACK_DEBIAN_${component}_DESCRIPTION "${${service}_text}")
  set(CPACK_DEBIAN_${component}_PACKAGE_DEPENDS "nccl-ha (= ${CPACK_PACKAGE_VERSION}-1)")
  set(CPACK_DEBIAN_${component}_PACKAGE_SHLIBDEPS OFF)
  set(CPACK_DEBIAN_${component}_PACKAGE_REPLACES "nccl-ha")  # which had the unit
  set(CPACK_DEBIAN_${component}_PACKAGE_CONTROL_EXTRA "${scripts}/postinst;${scripts}/prerm")
  set(CPACK_RPM_${component}_PACKAGE_NAME nccl-ha-${service})
  set(CPACK_RPM_${component}_PACKAGE_REQUIRES "nccl-ha = ${CPACK_PACKAGE_VERSION}-1")
  set(CPACK_RPM_${component}_POST_INSTALL_SCRIPT_FILE ${scripts}/postinst)
  set(CPACK_RPM_${component}_PRE_UNINSTALL_SCRIPT_FILE ${scripts}/prerm)
endforeach()
foreach(component IN ITEMS PLUGIN TOOLS AGENT RELAY DEV)
  string(TOLOWER ${component} lower)
  string(FIND "${${lower}_text}" "\n" end)
  string(SUBSTRING "${${lower}_text}" 0 ${end} CPACK_RPM_${component}_PACKAGE_SUMMARY)
  set(CPACK_RPM_${component}_PACKAGE_DESCRIPTION "${${lower}_text}")
endforeach()

# What stage.cmake and archive.cmake have to know.
set(CPACK_NHA_AR "${CMAKE_AR}")
set(CPACK_NHA_MULTIARCH "${CMAKE_LIBRARY_ARCHITECTURE}")
set(CPACK_NHA_LIBDIR "${CMAKE_INSTALL_LIBDIR}")
set(CPACK_NHA_PREFIX "${CMAKE_INSTALL_PREFIX}")
set(CPACK_NHA_SOURCE "${CMAKE_SOURCE_DIR}")
set(CPACK_NHA_DATE "${NHA_DATE}")
include(CPack)

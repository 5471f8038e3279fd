# cpack reads this before it begins where preset arm64 built: dpkg-shlibdeps takes the architecture and
# dpkg's database from its environment.
set(ENV{DEB_HOST_ARCH} arm64)
set(ENV{DPKG_ADMINDIR} ${CPACK_NHA_ROOT}/var/lib/dpkg)

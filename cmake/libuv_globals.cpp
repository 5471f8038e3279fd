// Variables of the C library under names of ours, for our copy of libuv's archive;
// NhaLibraries.cmake says why.
//
// uv_os_environ() therefore sees the environment of the moment the library was loaded, and the
// `env` option of uv_spawn() has no effect. Nothing here uses either.
#include <netinet/in.h>
#include <unistd.h>

#include <cstdio>

extern "C" {
extern const in6_addr nha_uv_in6addr_any;

char** nha_uv_environ = environ;
char** nha_uv_environ_too = environ;
FILE* nha_uv_stderr = stderr;
const in6_addr nha_uv_in6addr_any = IN6ADDR_ANY_INIT;
}

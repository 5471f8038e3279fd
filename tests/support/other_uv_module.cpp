// Stands for a process that carries a libuv of its own (uvloop, PyTorch): linked to the shared one,
// with a loop that runs.
#include <uv.h>

extern "C" __attribute__((visibility("default"))) int other_uv_ticks(int milliseconds) {
  uv_loop_t loop;
  uv_loop_init(&loop);
  int ticks = 0;
  uv_timer_t tick;
  uv_timer_t end;
  uv_timer_init(&loop, &tick);
  uv_timer_init(&loop, &end);
  tick.data = &ticks;
  end.data = &tick;
  uv_timer_start(
      &tick, [](uv_timer_t* timer) { ++*static_cast<int*>(timer->data); }, 1, 1);
  uv_timer_start(
      &end,
      [](uv_timer_t* timer) {
        uv_close(static_cast<uv_handle_t*>(timer->data), nullptr);
        uv_close(reinterpret_cast<uv_handle_t*>(timer), nullptr);
      },
      static_cast<uint64_t>(milliseconds), 0);
  uv_run(&loop, UV_RUN_DEFAULT);
  uv_loop_close(&loop);
  return ticks;
}

extern "C" __attribute__((visibility("default"))) const char* other_uv_version() {
  return uv_version_string();
}

// SPDX-License-Identifier: Apache-2.0
// Loaded ahead of the programs of a sanitizer's build: no library is unloaded, so that the leak
// checker can tell by name whose memory it finds. Open MPI unloads its plugins before that.
extern "C" __attribute__((visibility("default"))) int dlclose(void* /*library*/) noexcept {
  return 0;
}

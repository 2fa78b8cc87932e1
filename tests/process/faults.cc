#include "tests/process/faults.h"

#include <dlfcn.h>
#include <pthread.h>

#include <atomic>
#include <cerrno>
#include <cstdlib>
#include <new>

namespace octile::test {
namespace {

// constinit: malloc is called before any constructor runs.
constinit std::atomic<Refuse> refusing = Refuse::kNothing;
constinit std::atomic<std::int64_t> first = 0;
constinit std::atomic<bool> and_on = false;
constinit std::atomic<std::int64_t> counted = 0;
constinit std::atomic<std::int64_t> number_refused = 0;
constinit std::atomic<std::int64_t> live = 0;

bool refuse(Refuse what) {
  if (refusing.load(std::memory_order_relaxed) != what) return false;
  const std::int64_t call = ++counted;
  if (call != first && !(and_on && call > first)) return false;
  ++number_refused;
  return true;
}

void* counted_block(void* block) {
  if (block != nullptr) live.fetch_add(1, std::memory_order_relaxed);
  return block;
}

}  // namespace

Refusal::Refusal(Refuse what, std::int64_t nth, Extent extent) {
  first = nth;
  and_on = extent == Extent::kOn;
  counted = 0;
  number_refused = 0;
  refusing = what;
}
void Refusal::end() { refusing = Refuse::kNothing; }
std::int64_t Refusal::refused() const { return number_refused; }
std::int64_t Refusal::calls() const { return counted; }

std::int64_t live_blocks() { return live; }

}  // namespace octile::test

using octile::test::counted_block;
using octile::test::live;
using octile::test::Refuse;
using octile::test::refuse;

#pragma GCC visibility push(default)  // the C++ library calls these

extern "C" int pthread_create(pthread_t* thread, const pthread_attr_t* attributes,
                              void* (*start)(void*), void* argument) {
  using Create = int (*)(pthread_t*, const pthread_attr_t*, void* (*)(void*), void*);
  static const auto real = reinterpret_cast<Create>(dlsym(RTLD_NEXT, "pthread_create"));
  if (refuse(Refuse::kThreads)) return EAGAIN;
  return real(thread, attributes, start, argument);
}

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)

void* operator new(std::size_t bytes) {
  for (;;) {
    void* block = refuse(Refuse::kMemory) ? nullptr : std::malloc(bytes);
    if (block != nullptr) return counted_block(block);
    const std::new_handler handler = std::get_new_handler();
    if (handler == nullptr) throw std::bad_alloc();
    handler();
  }
}
void* operator new(std::size_t bytes, const std::nothrow_t&) noexcept {
  try {
    return operator new(bytes);
  } catch (const std::bad_alloc&) {
    return nullptr;
  }
}
void operator delete(void* block) noexcept {
  if (block != nullptr) live.fetch_sub(1, std::memory_order_relaxed);
  std::free(block);
}
void operator delete(void* block, std::size_t) noexcept { operator delete(block); }
void operator delete(void* block, const std::nothrow_t&) noexcept { operator delete(block); }

#else

// glibc's own names for its functions, which programs that replace malloc may call.
extern "C" {
void* __libc_malloc(std::size_t bytes);                           // NOLINT
void* __libc_calloc(std::size_t count, std::size_t bytes);        // NOLINT
void* __libc_realloc(void* block, std::size_t bytes);             // NOLINT
void* __libc_memalign(std::size_t alignment, std::size_t bytes);  // NOLINT
void __libc_free(void* block);                                    // NOLINT

static void* none() {
  errno = ENOMEM;
  return nullptr;
}
void* malloc(std::size_t bytes) {
  return refuse(Refuse::kMemory) ? none() : counted_block(__libc_malloc(bytes));
}
void* calloc(std::size_t count, std::size_t bytes) {
  return refuse(Refuse::kMemory) ? none() : counted_block(__libc_calloc(count, bytes));
}
void* realloc(void* block, std::size_t bytes) {
  if (refuse(Refuse::kMemory)) return none();
  void* moved = __libc_realloc(block, bytes);
  if (block == nullptr) counted_block(moved);
  if (block != nullptr && bytes == 0) live.fetch_sub(1, std::memory_order_relaxed);
  return moved;
}
void* memalign(std::size_t alignment, std::size_t bytes) {
  return refuse(Refuse::kMemory) ? none() : counted_block(__libc_memalign(alignment, bytes));
}
void* aligned_alloc(std::size_t alignment, std::size_t bytes) { return memalign(alignment, bytes); }
int posix_memalign(void** out, std::size_t alignment, std::size_t bytes) {
  void* block = memalign(alignment, bytes);
  if (block == nullptr) return ENOMEM;
  *out = block;
  return 0;
}
void free(void* block) {
  if (block != nullptr) live.fetch_sub(1, std::memory_order_relaxed);
  __libc_free(block);
}
}

#endif

#pragma GCC visibility pop

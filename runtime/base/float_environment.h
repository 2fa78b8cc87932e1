// The floating-point environment of the library: round to nearest even, subnormals kept, no traps.
#pragma once

#if defined(__x86_64__)
#include <immintrin.h>

#include <cstdint>
#else
#include <cfenv>
#endif

namespace octile {

// Sets the default floating-point environment for a scope. A caller may round otherwise, flush
// subnormals (deep-learning frameworks offer the switch) or trap, and threads that start inherit
// that; docs/numerics.md does none of it. The caller's environment, with its exception flags, is
// back at the end.
class DefaultFloatEnvironment {
 public:
  DefaultFloatEnvironment(const DefaultFloatEnvironment&) = delete;
  DefaultFloatEnvironment& operator=(const DefaultFloatEnvironment&) = delete;

#if defined(__x86_64__)
  // SSE does the arithmetic. The x87 control word counts too: glibc reads decimal numbers by its
  // rounding mode. Both are read at every call and seldom have to be changed.
  DefaultFloatEnvironment() : sse_(_mm_getcsr()) {
    asm volatile("fnstcw %0" : "=m"(x87_));
    if ((sse_ & ~kSseFlags) != kSseDefault) _mm_setcsr(kSseDefault);
    if (x87_ != kX87Default) set_x87(kX87Default);
  }
  ~DefaultFloatEnvironment() {
    if (_mm_getcsr() != sse_) _mm_setcsr(sse_);
    if (x87_ != kX87Default) set_x87(x87_);
  }

 private:
  static constexpr unsigned kSseDefault = 0x1F80;  // all exceptions masked, nearest even
  static constexpr unsigned kSseFlags = 0x3F;
  static constexpr std::uint16_t kX87Default = 0x037F;
  static void set_x87(std::uint16_t word) { asm volatile("fldcw %0" : : "m"(word)); }

  unsigned sse_;
  std::uint16_t x87_ = 0;
#else
  DefaultFloatEnvironment() {
    std::fegetenv(&saved_);
    std::fesetenv(FE_DFL_ENV);
  }
  ~DefaultFloatEnvironment() { std::fesetenv(&saved_); }

 private:
  std::fenv_t saved_{};
#endif
};

}  // namespace octile

#include "tools/tune/interrupt.h"

#include <csignal>
#include <cstdio>

namespace octile::tools {
namespace {

volatile std::sig_atomic_t g_interrupted = 0;

void note(int) {
  g_interrupted = 1;
  (void)std::signal(SIGINT, SIG_DFL);
}

}  // namespace

bool is_interrupted() { return g_interrupted != 0; }

CatchInterrupt::CatchInterrupt() : before_(std::signal(SIGINT, note)) {}
CatchInterrupt::~CatchInterrupt() { (void)std::signal(SIGINT, before_); }

void end_by_interrupt() {
  (void)std::fflush(nullptr);
  (void)std::signal(SIGINT, SIG_DFL);
  (void)std::raise(SIGINT);
}

}  // namespace octile::tools

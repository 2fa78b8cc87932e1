// Messages between the library and octile-compiler (process/message.h has their form). The library
// sends requests; what the program answers:
//
//   hello     "octile-compiler", version of Octile, path, builtins path, major, minor, files of
//             NVRTC
//   question  "ready?"
//   answer    "ready"
//   request   "compile", name, source, options...
//   beat      "working": at once, and then every second until the answer
//   answer    "cubin", milliseconds, log, cubin
//   refusal   "error", error code, sentence: instead of a hello or of an answer. A program
//             without an NVRTC sends NO_COMPILER
//   end       "ended", signal or 0 for exit(), KiB in use: by a program that NVRTC is ending, at
//             any time
//
// The program's argument is "<bytes of data allowed, or 0>:<NVRTC to open, or nothing>".
#pragma once

#include <string_view>

namespace octile {

constexpr std::string_view kCompilerName = "octile-compiler";
constexpr std::string_view kAsksIfReady = "ready?";
constexpr std::string_view kIsReady = "ready";
constexpr std::string_view kWorks = "working";

}  // namespace octile
